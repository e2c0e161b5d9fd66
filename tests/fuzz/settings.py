"""Draw how a random program is compiled: operators that must run in PyTorch, block sizes, entry points."""

from __future__ import annotations

from pipeline.frozen import FrozenDict
from tests.fuzz.scope import Scope

OPERATORS = (
    *("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor", "tanh.default", "sigmoid.default", "relu.default"),
    *("where.self", "view.default", "permute.default", "slice.Tensor", "select.int", "cat.default", "expand.default"),
    *("unsqueeze.default", "squeeze.dim", "sum.dim_IntList", "mean.dim", "amax.default", "_softmax.default"),
    *("mm.default", "bmm.default", "addmm.default", "matmul.default", "linear.default", "neg.default", "abs.default"),
    *("clamp.default", "exp.default", "copy.default", "clone.default", "index.Tensor", "slice_scatter.default"),
    *("select_scatter.default", "index_put.default", "full.default", "gt.Scalar", "_to_copy.default"),
    *("embedding.default", "layer_norm.default", "cumsum.default", "reshape.default", "transpose.int", "fill.Scalar"),
)
"""Operators by the names they have in ``torch.ops.aten``."""


def options(scope: Scope) -> FrozenDict[str, str]:
    """Arguments of ``check_model``, as source text, without defaults."""
    choose = scope.choose
    chosen: dict[str, str] = {
        "min_block_size": str(choose((1, 1, 2, 3, 5, 8))),
        "max_engines": str(choose((None, None, None, None, 1, 2))),
        "torch_executed_ops": executed(scope),
        "entry": choose(("'dims'",) * 6 + ("'exported'", "'inputs'")),
        "partition": choose(("None",) * 5 + ("pipeline.by_submodule()",)),
        "saved": str(scope.maybe(3)),
        "strided": str(not scope.written and scope.maybe(2)),
    }
    usual = {
        "max_engines": "None",
        "torch_executed_ops": "[]",
        "entry": "'dims'",
        "saved": "False",
        "strided": "False",
        "partition": "None",
    }
    return FrozenDict({name: text for name, text in chosen.items() if usual.get(name) != text})


def executed(scope: Scope) -> str:
    """Operators, names and predicates on module paths, in a list."""
    count = scope.choose((0, 3, 2, 6, 10, 15, 20))
    names = dict.fromkeys(scope.choose(OPERATORS) for _ in range(count))
    entries = [scope.choose((f"torch.ops.aten.{name}", f"'aten.{name}'")) for name in names]
    layers = [name for name, _ in scope.module.named_children()]
    if layers and scope.maybe(3):
        entries.append(f"lambda path: {scope.choose(layers)!r} in path")
    if scope.maybe(6):
        entries.append("lambda path: True")
    return f"[{', '.join(entries)}]"
