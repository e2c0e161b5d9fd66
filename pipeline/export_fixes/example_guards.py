"""Trace data-dependent Python branches as the example input decides them, and check the condition in each call.

With ``propagate_real_tensors`` torch also computes the example's values during the trace, evaluates data-dependent
conditions with them, and adds assertions of the results to the graph. Here each such assertion becomes a bool output of
the program, which is True if a call takes another branch than the example did. At run time, data-dependent sizes are
read from tensors.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Mapping, Sequence
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

from pipeline.aten.graphs import results
from pipeline.aten.naming import origin, unlike
from pipeline.aten.own_ops import SIZE
from pipeline.aten.types import Argument, Node, Target, aten
from pipeline.errors import CaptureError, source_line_in
from pipeline.export_fixes.error_attribution import NOT_THE_MODELS, place_of
from pipeline.export_fixes.patching import Kernel

HINT: Final = (
    "compare the tensor, or its item(), without float(): `if x.mean() > 0.1`; "
    "torch.where(condition, one, other) chooses between values"
)

READS: Final = (aten.item.default, aten._local_scalar_dense.default)

TRUTHS: Final[Mapping[Target, Target]] = {
    **{getattr(operator, name): getattr(aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    operator.and_: aten.logical_and.default,
    operator.or_: aten.logical_or.default,
    torch.sym_not: aten.logical_not.default,
}
OPERATORS: Final[Mapping[Target, Target]] = {
    **TRUTHS,
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
"""Operators on numbers, and those on tensors of one element; the first give a truth."""


@define
class Decisions:
    """The data-dependent conditions that the example decided while a model was traced.

    Attributes:
        places: the lines that branched on each data-dependent symbol: ``model.py:41, if x.sum() > 0:``.
        beside: for each symbol, the symbol itself and the symbols with which it was compared.
        exact: the lines where a float was specialized to the example's value.
    """

    places: dict[str, dict[str, None]] = field(factory=dict)
    beside: dict[str, set[str]] = field(factory=dict)
    exact: dict[str, None] = field(factory=dict)


decisions: ContextVar[Decisions | None] = ContextVar("decisions by the example", default=None)
"""Collects the conditions that the example decides."""


def computing(own: Kernel, mode: FakeTensorMode, **options: Argument) -> None:
    """Wrap `FakeTensorMode.__init__`: the mode also computes the example's values."""
    own(mode, **options)
    mode.propagate_real_tensors, mode.cache_enabled = True, False
    mode.fake_tensor_converter = FakeTensorConverter(copy_data=True, export=bool(options.get("export")))


def noting(_: Kernel, shape_env: object, asked: Argument, answer: Argument) -> None:
    """Replace `ShapeEnv._log_real_tensor_propagation`, which logs the example's decisions: record them."""
    found = decisions.get()
    if found is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_MODELS):
        frame = frame.f_back
    place = "the model" if frame is None else place_of(frame.f_code.co_filename, frame.f_lineno)
    symbols = {str(symbol) for symbol in asked.free_symbols}
    for symbol in filter(_OF_DATA.fullmatch, sorted(symbols)):
        found.places.setdefault(symbol, {})[place] = None
        found.beside.setdefault(symbol, set()).update(symbols)
    is_number = not isinstance(asked, Relational | BooleanFunction) and not isinstance(answer, bool | BooleanAtom)
    if is_number and not asked.is_integer:
        found.exact[place] = None


def counting(own: Kernel, value: Argument) -> Argument:
    """Wrap `len` to return a data-dependent size as a symbol instead of the example's number."""
    rows = value.shape[0] if isinstance(value, FakeTensor) and value.dim() else None
    return rows if isinstance(rows, torch.SymInt) and free_unbacked_symbols(rows) else own(value)


def with_outputs(exported: ExportedProgram, decided: Decisions) -> tuple[str, ...]:
    """Append to an export, in place, a bool output for each condition: whether a call takes the other branch. Return
    the lines of the conditions, in the order of these outputs.

    Raises:
        CaptureError: the program would be valid for a single value of a float, or cannot check a condition.
    """
    if decided.exact:
        place = next(iter(decided.exact))
        raise CaptureError(f"Python reads a float at {place}: a program would hold for this value only", HINT)
    graph, found, seen = exported.graph, dict[str, list[Node]](), set[str]()
    tensors = _Tensors(graph)
    for node in list(graph.nodes):
        symbols = _decided_symbols(node, decided) if node.target is aten._assert_scalar.default else set()
        seen |= symbols
        for symbol in sorted(symbols)[:1]:
            with graph.inserting_before(node):
                place = " or ".join(decided.places[symbol])
                found.setdefault(place, []).append(tensors.otherwise(node.args[0]))
    for symbol in sorted(decided.places.keys() - seen):
        place = " or ".join(decided.places[symbol])
        raise CaptureError(f"the condition on data at {place} cannot be checked in a call", HINT)
    end = graph.output_node()
    with graph.inserting_before(end):
        made = [tensors.any(each) for each in found.values()]
    end.args = ((*results(graph), *made),)
    kind = OutputKind.USER_OUTPUT
    exported.graph_signature.output_specs += [OutputSpec(kind, TensorArgument(node.name), None) for node in made]
    signature = exported.module_call_graph[0].signature
    assert signature is not None
    returned = tree_unflatten([0] * signature.out_spec.num_leaves, signature.out_spec)
    signature.out_spec = tree_flatten((returned, [0] * len(found)))[1]
    exported.graph_module.recompile()
    return tuple(found)


_OF_DATA: Final = re.compile(r"z?uf?\d+")
_SYMBOL: Final = re.compile(r"\b(?:z?uf?|s)\d+\b")


def _decided_symbols(node: Node, decided: Decisions) -> set[str]:
    """Return the symbols in an assertion's condition; empty if torch only bounds a part of a tensor."""
    message = str(node.args[1])
    symbols = set(_SYMBOL.findall(message))
    found = {name for name in symbols & decided.places.keys() if symbols <= decided.beside[name]}
    return found if isinstance(node.args[0], Node) else set()


class _Tensors:
    """Create 0-d tensors for the numbers that Python read in a graph, with the values at the time of the read."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph, self.names = graph, {node.name for node in graph.nodes}
        values = (v for node in graph.nodes for v in tree_leaves(node.meta.get("val")))
        self.mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))
        self.made: dict[Node, Node] = {}

    def otherwise(self, condition: Node) -> Node:
        """Return a node for the negation of a condition."""
        return self.emit(aten.logical_not.default, torch.bool, condition, self.tensor(condition))

    def any(self, truths: Sequence[Node]) -> Node:
        """Return a node that is true if one of several conditions holds."""
        return reduce(lambda a, b: self.emit(aten.logical_or.default, torch.bool, a, a, b), truths)

    def tensor(self, number: Node) -> Node:
        if number not in self.made:
            with self.graph.inserting_before(number):
                self.made[number] = self._of(number, number.target, number.args)
        return self.made[number]

    def _of(self, number: Node, target: Target, args: tuple[Argument, ...]) -> Node:
        if target in READS:
            dtype = args[0].meta["val"].dtype
            one = self.emit(aten.reshape.default, dtype, number, args[0], [])
            return self.emit(aten.clone.default, dtype, number, one)
        if target is aten.sym_size.int:
            return self.emit(SIZE, torch.int64, number, *args)
        if target is cast_symbool_to_symint_guardless:  # before torch 2.13, for sym_ite
            return self.emit(aten._to_copy.default, torch.int64, number, self.tensor(args[0]), dtype=torch.int64)
        operator = OPERATORS.get(target)
        first = next((self.tensor(arg) for arg in args if isinstance(arg, Node)), None)
        if operator is None or first is None:
            why = f"what data decides at {source_line_in(number.meta) or number.name} cannot be checked in a call"
            raise CaptureError(f"{why} ({target})", HINT)
        given = [self.tensor(arg) if isinstance(arg, Node) else self.constant(number, arg, first) for arg in args]
        dtypes = [each.meta["val"].dtype for each in given[target is torch.sym_ite :]]
        widest = max(dtypes, key=lambda dtype: (dtype.is_floating_point, dtype != torch.bool))
        return self.emit(operator, torch.bool if target in TRUTHS else widest, number, *given)

    def constant(self, number: Node, value: Argument, beside: Node) -> Node:
        dtype = {bool: torch.bool, int: torch.int64}.get(type(value), torch.float32)
        return self.emit(aten.full.default, dtype, number, [], value, dtype=dtype, device=beside.meta["val"].device)

    def emit(self, target: Target, kind: torch.dtype, like: Node, /, *args: Argument, **options: Argument) -> Node:
        """Append a call whose result is a tensor."""
        made = self.graph.call_function(target, args, options)
        made.name = unlike("decided", self.names)
        device = next((each.meta["val"].device for each in args if isinstance(each, Node)), options.get("device"))
        with self.mode:
            made.meta = {**origin(like.meta), "val": torch.empty((), dtype=kind, device=device)}
        return made
