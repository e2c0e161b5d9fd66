"""Trace each data-dependent Python branch that the example input takes, and check its condition in every call.

With ``propagate_real_tensors`` torch also computes the example's values during the trace, evaluates data-dependent
conditions with them, and adds assertions of the results to the graph. Here each such assertion becomes a bool output of
the program, which is True if a call takes another branch than the example did. At run time, data-dependent sizes are
read from tensors.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from functools import reduce
from types import FrameType
from typing import Final

import torch
from attrs import define, field
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter, FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx.experimental.symbolic_shapes import cast_symbool_to_symint_guardless, free_unbacked_symbols
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.graphs import results_of
from pipeline.aten.naming import make_unique, origin_of
from pipeline.aten.own_ops import SIZE
from pipeline.aten.types import Argument, Node, Target, aten
from pipeline.errors import CaptureError, source_line_in
from pipeline.export_fixes.error_attribution import NOT_MODEL_CODE, source_line_text
from pipeline.export_fixes.patching import Kernel

HINT: Final = (
    "compare the tensor, or its item(), without float(): `if x.mean() > 0.1`; "
    "to select between values, use torch.where(condition, one, other)"
)

NUMBER_READS: Final = (aten.item.default, aten._local_scalar_dense.default)

BOOL_OPERATORS: Final[Mapping[Target, Target]] = {
    **{getattr(operator, name): getattr(aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    operator.and_: aten.logical_and.default,
    operator.or_: aten.logical_or.default,
    torch.sym_not: aten.logical_not.default,
}
TENSOR_OPERATORS: Final[Mapping[Target, Target]] = {
    **BOOL_OPERATORS,
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.floordiv: aten.floor_divide.default,
    operator.mod: aten.remainder.Tensor,
    operator.neg: aten.neg.default,
    torch.sym_min: aten.minimum.default,
    torch.sym_max: aten.maximum.default,
    torch.sym_ite: aten.where.self,
}
"""For each operator on Python numbers, the ATen operator that computes it on one-element tensors."""


@define
class Decisions:
    """The data-dependent conditions that the example input decided while a model was traced. A data-dependent symbol,
    such as ``u0``, stands for a number that the model reads from a tensor.

    Attributes:
        lines: for each data-dependent symbol, the lines that branched on it: ``model.py:41, if x.sum() > 0:``.
        compared_symbols: for each data-dependent symbol, all symbols in the decided conditions about it.
        float_lines: the lines where a float was specialized to the example's value.
    """

    lines: dict[str, dict[str, None]] = field(factory=dict)
    compared_symbols: dict[str, set[str]] = field(factory=dict)
    float_lines: dict[str, None] = field(factory=dict)


decisions: ContextVar[Decisions | None] = ContextVar("decisions by the example", default=None)
"""Collects the conditions that the example input decides during an export; None at other times."""


def init_with_example_values(orig: Kernel, mode: FakeTensorMode, **options: Argument) -> None:
    """Replace `FakeTensorMode.__init__`: the mode computes the example's values in addition to fake tensors."""
    orig(mode, **options)
    mode.propagate_real_tensors, mode.cache_enabled = True, False
    mode.fake_tensor_converter = FakeTensorConverter(copy_data=True, export=bool(options.get("export")))


def record_decision(_: Kernel, shape_env: object, condition: Argument, answer: Argument) -> None:
    """Record a condition that the example decided; replaces `ShapeEnv._log_real_tensor_propagation`, which logs it."""
    found = decisions.get()
    if found is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_MODEL_CODE):
        frame = frame.f_back
    place = "the model" if frame is None else source_line_text(frame.f_code.co_filename, frame.f_lineno)
    symbols = {str(symbol) for symbol in condition.free_symbols}
    for symbol in filter(_DATA_SYMBOL.fullmatch, sorted(symbols)):
        found.lines.setdefault(symbol, {})[place] = None
        found.compared_symbols.setdefault(symbol, set()).update(symbols)
    is_number = not isinstance(condition, Relational | BooleanFunction) and not isinstance(answer, bool | BooleanAtom)
    if is_number and not condition.is_integer:
        found.float_lines[place] = None


def len_keeping_symbols(orig: Kernel, value: Argument) -> Argument:
    """Replace `len`: return a data-dependent size as a symbol instead of the example's number."""
    rows = value.shape[0] if isinstance(value, FakeTensor) and value.dim() else None
    return rows if isinstance(rows, torch.SymInt) and free_unbacked_symbols(rows) else orig(value)


def add_decision_outputs(exported: ExportedProgram, decisions: Decisions) -> tuple[str, ...]:
    """Append to an export, in place, a bool output for each source line that branches on data: True if a call takes
    another branch there than the example input did. Return these lines, in the order of the outputs.

    Raises:
        CaptureError: a float read from a tensor became a constant of the graph, or no operator can check a condition.
    """
    if decisions.float_lines:
        place = next(iter(decisions.float_lines))
        raise CaptureError(f"{place} reads a float from a tensor: the program would be valid for its value only", HINT)
    graph, found, seen = exported.graph, dict[str, list[Node]](), set[str]()
    tensors = _NumberTensors(graph)
    emit = tensors.emit
    for node in list(graph.nodes):
        symbols = _decided_symbols(node, decisions) if node.target is aten._assert_scalar.default else set()
        seen |= symbols
        for symbol in sorted(symbols)[:1]:
            with graph.inserting_before(node):
                place, condition = " or ".join(decisions.lines[symbol]), node.args[0]
                differs = emit(aten.logical_not.default, torch.bool, condition, tensors.tensor_of(condition))
                found.setdefault(place, []).append(differs)
    for symbol in sorted(decisions.lines.keys() - seen):
        place = " or ".join(decisions.lines[symbol])
        raise CaptureError(f"the program cannot check in each call which branch the call takes at {place}", HINT)
    end = graph.output_node()
    with graph.inserting_before(end):
        made = [
            reduce(lambda a, b: emit(aten.logical_or.default, torch.bool, a, a, b), each) for each in found.values()
        ]
    end.args = ((*results_of(graph), *made),)
    kind = OutputKind.USER_OUTPUT
    exported.graph_signature.output_specs += [OutputSpec(kind, TensorArgument(node.name), None) for node in made]
    signature = exported.module_call_graph[0].signature
    assert signature is not None
    returned = tree_unflatten([0] * signature.out_spec.num_leaves, signature.out_spec)
    signature.out_spec = tree_flatten((returned, [0] * len(found)))[1]
    exported.graph_module.recompile()
    return tuple(found)


_DATA_SYMBOL: Final = re.compile(r"z?uf?\d+")
_SYMBOL: Final = re.compile(r"\b(?:z?uf?|s)\d+\b")


def _decided_symbols(node: Node, decisions: Decisions) -> set[str]:
    """Return the data-dependent symbols of the condition that an assertion checks, if the example input decided the
    condition (see `Decisions`); otherwise an empty set."""
    message = str(node.args[1])
    symbols = set(_SYMBOL.findall(message))
    found = {name for name in symbols & decisions.lines.keys() if symbols <= decisions.compared_symbols[name]}
    return found if isinstance(node.args[0], Node) else set()


class _NumberTensors:
    """Adds to a graph nodes that compute its Python numbers as 0-d tensors, so that the program can check conditions on
    them. A number read from a tensor becomes a copy, which later writes do not change."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph, self.names = graph, {node.name for node in graph.nodes}
        values = (v for node in graph.nodes for v in tree_leaves(node.meta.get("val")))
        self.mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
        self.made: dict[Node, Node] = {}

    def tensor_of(self, number: Node) -> Node:
        """Return the node of a 0-d tensor with the value of ``number``, the node of a Python number."""
        if number not in self.made:
            with self.graph.inserting_before(number):
                self.made[number] = self._emit_number_tensor(number, number.target, number.args)
        return self.made[number]

    def _emit_number_tensor(self, number: Node, target: Target, args: tuple[Argument, ...]) -> Node:
        """Append nodes that compute on tensors what the node ``number`` computes on Python numbers, by
        ``target(*args)``. Return the last one, a 0-d tensor."""
        if target in NUMBER_READS:
            dtype = args[0].meta["val"].dtype
            one = self.emit(aten.reshape.default, dtype, number, args[0], [])
            return self.emit(aten.clone.default, dtype, number, one)
        if target is aten.sym_size.int:
            return self.emit(SIZE, torch.int64, number, *args)
        if target is cast_symbool_to_symint_guardless:  # before torch 2.13, for sym_ite
            return self.emit(aten._to_copy.default, torch.int64, number, self.tensor_of(args[0]), dtype=torch.int64)
        operator = TENSOR_OPERATORS.get(target)
        first = next((self.tensor_of(arg) for arg in args if isinstance(arg, Node)), None)
        if operator is None or first is None:
            place = source_line_in(number.meta) or number.name
            raise CaptureError(f"a program cannot check the branch at {place}: it has no operator for {target}", HINT)
        given = [
            self.tensor_of(arg) if isinstance(arg, Node) else self.emit_constant(number, arg, first) for arg in args
        ]
        dtypes = [each.meta["val"].dtype for each in given[target is torch.sym_ite :]]
        widest = max(dtypes, key=lambda dtype: (dtype.is_floating_point, dtype != torch.bool))
        return self.emit(operator, torch.bool if target in BOOL_OPERATORS else widest, number, *given)

    def emit_constant(self, number: Node, value: Argument, like: Node) -> Node:
        """Append a 0-d tensor of a constant on the device of ``like``; it gets the source line of ``number``."""
        dtype = {bool: torch.bool, int: torch.int64}.get(type(value), torch.float32)
        return self.emit(aten.full.default, dtype, number, [], value, dtype=dtype, device=like.meta["val"].device)

    def emit(self, target: Target, dtype: torch.dtype, source: Node, /, *args: Argument, **options: Argument) -> Node:
        """Append an operator call whose 0-d result has this dtype; it gets the source line of the node ``source``."""
        made = self.graph.call_function(target, args, options)
        made.name = make_unique("decided", self.names)
        device = next((each.meta["val"].device for each in args if isinstance(each, Node)), options.get("device"))
        with self.mode:
            made.meta = {**origin_of(source.meta), "val": torch.empty((), dtype=dtype, device=device)}
        return made
