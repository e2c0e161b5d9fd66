"""Calls of the operators that are listed for their dtypes, and the same with one tensor in another dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.aten.dtypes import ALIKE, ONLY, find_dtype_violations

F, AT = torch.ones, torch.zeros(2, dtype=torch.int64)
CELLS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
OVERLOADS = {
    **dict.fromkeys(CELLS, "input"),
    **dict.fromkeys(("softmax", "log_softmax"), "int"),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), "correction"),
    **dict.fromkeys((n for n in ONLY if n.startswith(("bitwise", "__")) and n != "bitwise_not"), "Tensor"),
    **dict.fromkeys((n for n in ONLY if n.startswith("upsample")), "vec"),
    **dict.fromkeys(("conv_transpose2d", "conv_transpose3d"), "input"),
}
PRODUCTS: dict[str, list[Any]] = {
    "linear": [F(2, 4), F(3, 4), F(3)],
    "mm": [F(2, 4), F(4, 3)],
    "bmm": [F(1, 2, 4), F(1, 4, 3)],
    "mv": [F(2, 4), F(4)],
    "dot": [F(4), F(4)],
    "matmul": [F(2, 4), F(4, 3)],
    "addmm": [F(3), F(2, 4), F(4, 3)],
    "baddbmm": [F(1, 2, 3), F(1, 2, 4), F(1, 4, 3)],
    "cdist": [F(2, 3), F(4, 3)],
    "_cdist_forward": [F(2, 3), F(4, 3), 2.0, None],
    "convolution": [F(1, 1, 3, 3), F(1, 1, 2, 2), F(1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1],
}
PLACES: dict[str, list[Any]] = {
    "grid_sampler": [F(1, 1, 2, 2), F(1, 2, 2, 2), 0, 0, False],
    "grid_sampler_2d": [F(1, 1, 2, 2), F(1, 2, 2, 2), 0, 0, False],
    "grid_sampler_3d": [F(1, 1, 2, 2, 2), F(1, 2, 2, 2, 3), 0, 0, False],
    "index_add": [F(2, 3), 0, AT, F(2, 3)],
    "index_copy": [F(2, 3), 0, AT, F(2, 3)],
    "index_reduce": [F(2, 3), 0, AT, F(2, 3), "amax"],
    "index_put": [F(2, 3), [AT], F(3)],
    "index_select": [F(2, 3), 0, AT],
    "one_hot": [AT, 3],
    "embedding": [F(4, 3), AT],
}


def example(name: str) -> list[Any]:
    """Arguments that every device takes."""
    if name in PRODUCTS or name in PLACES:
        return {**PRODUCTS, **PLACES}[name]
    if name.startswith("conv"):
        rank = int(name[-2])
        return [F(1, 1, *[3] * rank), F(1, 1, *[2] * rank), F(1)]
    if name in CELLS:
        gates = 3 * CELLS[name]
        state = [F(1, 1, 3), F(1, 1, 3)] if name == "lstm" else F(1, 1, 3)
        weights = [F(gates, 2), F(gates, 3), F(gates), F(gates)]
        return [F(4, 1, 2), state, weights, True, 1, 0.0, False, False, False]
    if name.startswith("upsample"):
        rank = int(name[-2])
        align = [] if "nearest" in name else [False]
        return [F(1, 1, *[4] * rank), None, *align, [2.0] * rank]
    if name.startswith(("adaptive", "_adaptive")):
        rank = int(name[-2])
        return [F(1, 1, *[4] * rank), [2] * rank]
    if OVERLOADS.get(name) == "Tensor":
        return [AT, AT.clone()]
    more = [-1] * ("softmax" in name) + [False] * name.startswith(("_softmax", "_log"))
    return [AT if name == "bitwise_not" else F(2, 3), *([F(3)] if name == "_prelu_kernel" else more)]


def target(name: str) -> Any:
    """The overload that is called."""
    return getattr(getattr(torch.ops.aten, name), OVERLOADS.get(name, "default"))


def variants(name: str) -> Iterator[list[Any]]:
    """The same arguments, of which one tensor has another dtype."""
    arguments = example(name)
    for value in tree_leaves(arguments):
        if isinstance(value, torch.Tensor):
            for dtype in {torch.float32, torch.float16, torch.float64, torch.int64, torch.bool} - {value.dtype}:
                yield tree_map(lambda v, value=value, dtype=dtype: v.to(dtype) if v is value else v, arguments)


def is_refused(name: str, arguments: list[Any], device: str = "cpu") -> bool:
    """Whether eager does not take the call."""
    try:
        target(name)(*tree_map(lambda v: v.to(device, copy=True) if isinstance(v, torch.Tensor) else v, arguments))
    except (RuntimeError, IndexError, ValueError):  # among them NotImplementedError
        return True
    return False


def is_misfit(name: str, arguments: list[Any]) -> bool:
    """Whether the table says so."""
    graph = torch.fx.Graph()

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("x")
        node.meta["val"] = value
        return node

    return bool(list(find_dtype_violations(graph.call_function(target(name), tuple(tree_map(placed, arguments))))))


NAMES = sorted({*ALIKE, *ONLY})
