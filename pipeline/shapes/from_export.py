"""Build the shape environment of an exported program.
Ranges, relations and hints come from torch.export, further conditions from the graph."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import sympy
import torch
from attrs import evolve
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from pipeline.aten.arguments import argument
from pipeline.aten.op_predicates import branch_graphs
from pipeline.aten.types import Argument, aten
from pipeline.errors import CaptureError
from pipeline.frozen import FrozenDict
from pipeline.shapes.environment import (
    Range,
    Relation,
    ShapeEnvironment,
    Symbol,
    always_holds,
    bounds,
    evaluate_size,
    expression,
    shape_of,
)
from pipeline.shapes.guards import node_values, operator_conditions, size_guards
from pipeline.shapes.linear import solve_for, symbol_from_size_code

log = logging.getLogger(__name__)

UNBOUNDED_FACTOR = 4
"""The default ``max`` of a dim without an upper bound, as a multiple of its size in the example (and at least 16)."""

UNBOUNDED_DATA_SIZE = 1024
"""The smallest ``max`` of an unbounded data-dependent size, whatever its size in the example."""

VALUE_SIZED: Final = frozenset({aten.bincount.default, aten.one_hot.default, aten.repeat_interleave.Tensor})
"""Operators whose result size is the maximum or the sum of an input's values."""

ONE_SIZE_HINT = "pass it as a static size, or change the model so that it accepts other sizes"

Bounds: TypeAlias = tuple[int, int | None]
"""The minimum and maximum of a range of sizes; the maximum is None if there is no upper bound."""


def shape_environment(
    exported: ExportedProgram,
    graph: torch.fx.Graph,
    inputs: Mapping[str, object],
    sizes: Mapping[str, object],
    requested: Mapping[str, Bounds],
    examples: Mapping[str, torch.Tensor],
) -> ShapeEnvironment:
    """Return the shape environment of a program.

    Args:
        exported, graph: the export, with the ranges that ``requested`` does not override, and its graph.
        inputs: the fake tensor, symbolic int or constant of each user input, by name.
        sizes: the sizes to tune engines for, by input name; by default the sizes in the example.
        requested: the user's bounds, by symbol; those of ``exported`` lack 1 if an operator compared the size with 1.
        examples: the tensors of the example and of the model, by placeholder, to estimate sizes without a bound.

    Raises:
        CaptureError: the conditions on sizes in the graph leave only one size of a requested range.
    """
    ranges = {**_traced_ranges(inputs), **exported.range_constraints}
    found = {
        str(s): _input_symbol(s, ranges, inputs, sizes, requested.get(str(s))) for s in _input_symbols(ranges, inputs)
    }
    shapes = ShapeEnvironment(FrozenDict(found))
    sources = {s.name: (place, expr) for place, expr, _ in _dynamic_sizes(inputs, sizes) for s in expr.free_symbols}
    shapes = _apply_conditions(shapes, _input_size_conditions(graph, shapes), requested, sources)
    unbounded = dict[str, int]()
    for node in graph.nodes:
        for symbol in sorted(_new_data_dependent_symbols(node, shapes), key=str):
            new_symbol = _data_dependent_symbol(node, ranges.get(symbol), shapes, examples, unbounded)
            shapes = evolve(shapes, symbols=FrozenDict({**shapes.symbols, symbol.name: new_symbol}))
    _warn_of_unbounded(unbounded)
    tuned = balanced_split_ranges(graph, shapes)
    pieces = {name: evolve(shapes.symbols[name], range=each) for name, each in tuned.items()}
    return evolve(shapes, symbols=FrozenDict({**shapes.symbols, **pieces}))


def _traced_ranges(inputs: Mapping[str, object]) -> dict[Any, Any]:
    """Return the range of each symbol in the inputs' sizes; an ExportedProgram lacks those from ``mark_dynamic``."""
    sizes: list[Argument] = [size for v in inputs.values() if isinstance(v, torch.Tensor) for size in v.shape]
    nodes = [size.node for size in sizes if isinstance(size, torch.SymInt)]
    return {s: n.shape_env.var_to_range[s] for n in nodes for s in n.expr.free_symbols if s in n.shape_env.var_to_range}


def _input_symbols(ranges: Mapping[sympy.Symbol, object], inputs: Mapping[str, object]) -> list[Any]:
    """Return the symbols of the inputs' sizes in the inputs' order: torch.export's order varies between runs."""
    candidates = (s for value in inputs.values() for expr in _exprs(value) for s in sorted(expr.free_symbols, key=str))
    return [s for s in dict.fromkeys(candidates) if s in ranges and not free_unbacked_symbols(s)]


def _exprs(value: object) -> list[sympy.Expr]:
    """Return the dynamic sizes of an input (a tensor or symbolic int) as sympy expressions."""
    if isinstance(value, torch.Tensor):
        return [s for s in shape_of(value) if not isinstance(s, int)]
    expr = expression(value) if isinstance(value, torch.SymInt) else 0
    return [] if isinstance(expr, int) else [expr]


def _input_symbol(
    symbol: sympy.Symbol,
    ranges: Mapping[sympy.Symbol, Argument],
    inputs: Mapping[str, Argument],
    sizes: Mapping[str, Argument],
    requested: Bounds | None,
) -> Symbol:
    """Return the `Symbol` for a symbol in the inputs' sizes: its range, and the input dims that equal or determine it.
    ``sizes``: by input name, the sizes that engines are tuned for. ``requested``: the user's bounds for this symbol;
    None: those in ``ranges``, from torch.export, apply."""
    places, derived, hint = [], [], None
    for place, expr, size in _dynamic_sizes(inputs, sizes):
        if expr == symbol:
            places.append(place)
        elif expr.free_symbols == {symbol}:
            derived += symbol_from_size_code(expr, symbol.name, place)
        if hint is None and expr.free_symbols == {symbol}:
            hint = solve_for(expr, symbol.name, size)
    low, high = _stated_bounds(ranges[symbol])
    if requested is not None:
        low, high = requested[0], high if requested[1] is None else requested[1]
    elif high is None and low == 2:  # torch.export says 2 where it has not looked at 1, and its module takes 1
        low = 1
    for expr, given in ranges.items():
        if not expr.is_Symbol and expr.free_symbols == {symbol}:
            solutions = (solve_for(expr, symbol.name, end) for end in _stated_bounds(given) if end is not None)
            if len(ends := sorted(end for end in solutions if end is not None)) == 2:
                low, high = max(low or 0, ends[0]), ends[1] if high is None else min(high, ends[1])
    return Symbol(_size_range((*places, *derived, str(symbol))[0], low, high, hint), hint, tuple(places or derived))


def _dynamic_sizes(inputs: Mapping[str, object], sizes: Mapping[str, Argument]) -> Iterator[tuple[str, Argument, int]]:
    """Yield each dynamic size of an input by name (``x.shape[0]``), with its expression and the value to tune for."""
    for name, value in inputs.items():
        if isinstance(value, torch.SymInt) and not isinstance(expression(value), int):
            yield name, expression(value), int(value.node.hint)
        shape: list[Argument] = list(value.shape) if isinstance(value, torch.Tensor) else []
        for dim, size in enumerate(shape):
            expr = expression(size)
            if not isinstance(expr, int):
                yield f"{name}.shape[{dim}]", expr, sizes[name][dim] if name in sizes else int(size.node.hint)


def _stated_bounds(value_range: Any) -> tuple[int | None, int | None]:
    """Return the bounds in a range of torch.export; None for a bound that is infinite or its default."""
    low = int(value_range.lower) if value_range.lower.is_Integer else None
    high = int(value_range.upper) if value_range.upper.is_Integer and int(value_range.upper) < 2**31 else None
    return low, high


def _size_range(size_name: str, low: int | None, high: int | None, example_size: int | None) -> Range:
    """Return the range of a size; if ``high`` is None, up to 4 times the size in the example, and at least 16."""
    if high is None:
        low = max(low or 1, 1)
        high = max(UNBOUNDED_FACTOR * (example_size or 4), 16, low)
        why = "%s has no upper bound; engines take %d to %d: give a max (Dim or pipeline.Input)"
        log.warning(why, size_name, low, high)
    low = max(low or 0, 0)
    opt = example_size if example_size is not None else (low + high) // 2
    return Range(low, min(max(opt, low), high), high)


def _apply_conditions(
    shapes: ShapeEnvironment,
    conditions: Iterable[object],
    requested: Mapping[str, Bounds],
    sources: Mapping[str, tuple[str, object]],
) -> ShapeEnvironment:
    """Return the environment with these conditions added. Warn of each symbol whose range became smaller than
    requested. ``sources``: by symbol, an input size that depends on it: ``{"s0": ("x.shape[0]", 2*s0)}``."""
    relations: list[Relation] = []
    for condition in conditions:
        if not always_holds(condition, shapes, relations):
            relations.append(Relation(condition, shapes.words(condition)))
    left = shapes.add_conditions(*(r.condition for r in relations))
    for name, before in shapes.items():
        place, expr = sources.get(name, (name, sympy.Symbol(name)))
        opt = {s.name: left[s.name].opt for s in expr.free_symbols}
        (low, high), wanted = (
            tuple(evaluate_size(expr, {**opt, name: end}) for end in (each.min, each.max))
            for each in (left[name], before)
        )
        if (low, high) == wanted:
            continue
        own_words = [r.words for r in relations if r.symbols == {name}]
        why = " and ".join(own_words or [r.words for r in relations if name in r.symbols])
        if low == high and name in requested:
            raise CaptureError(f"the size {place} can only be {low}: the captured model requires {why}", ONE_SIZE_HINT)
        ends = f"from {low} to {high}, not {wanted[0]} to {wanted[1]}"
        log.warning("%s can only range %s: the captured model requires %s", place, ends, why)
    return left


def _input_size_conditions(graph: torch.fx.Graph, shapes: ShapeEnvironment) -> Iterator[object]:
    """Yield the conditions on input sizes under which the program, including all branches and loop bodies, is valid."""
    inner = ((*operator_conditions(each), *_non_negative_conditions(each, shapes)) for each in _all_graphs(graph))
    for condition in (*size_guards(graph), *itertools.chain.from_iterable(inner)):
        if isinstance(condition, sympy.Basic) and {s.name for s in condition.free_symbols} <= set(shapes):
            yield condition


def _all_graphs(graph: torch.fx.Graph) -> Iterator[torch.fx.Graph]:
    yield graph
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            for module in branch_graphs(node):
                yield from _all_graphs(module.graph)


def _non_negative_conditions(graph: torch.fx.Graph, shapes: ShapeEnvironment) -> Iterator[object]:
    """Yield the conditions that computed sizes are not negative. torch.export does not record them: ``x[1:]`` has size
    ``s - 1``, and torch.export assumes that ``s`` is at least 1."""
    compound = {e for v in node_values(graph) if isinstance(v, torch.Tensor) for e in _exprs(v) if not e.is_Symbol}
    for expr in sorted(compound, key=str):
        if {s.name for s in expr.free_symbols} <= set(shapes) and bounds(expr, shapes).min < 0:
            yield sympy.Ge(expr, 0, evaluate=False)


def _new_data_dependent_symbols(node: torch.fx.Node, shapes: ShapeEnvironment) -> set[sympy.Symbol]:
    """Return the data-dependent symbols that a node introduces, except those only in storage offsets."""
    sized = node.op == "call_function" and node.target is not aten.sym_storage_offset.default
    exprs = [e for v in tree_leaves(node.meta.get("val")) for e in _exprs(v)] if sized else []
    return {s for e in exprs for s in free_unbacked_symbols(e) if s.name not in shapes}


def _warn_of_unbounded(unbounded: Mapping[str, int]) -> None:
    """Warn of data-dependent sizes without an upper bound: one warning for each bound that engines use instead."""
    for high in dict.fromkeys(unbounded.values()):
        names = [name for name, most in unbounded.items() if most == high]
        *few, last = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} others"]
        which = f"the sizes of {', '.join(few)} and {last} depend" if few else f"the size of {last} depends"
        have = "have" if few else "has"
        log.warning("%s on data and %s no upper bound; engines accept sizes up to %d", which, have, high)


def _data_dependent_symbol(
    node: torch.fx.Node,
    value_range: object,
    shapes: ShapeEnvironment,
    examples: Mapping[str, torch.Tensor],
    unbounded: dict[str, int],
) -> Symbol:
    """Return the `Symbol` for a data-dependent size or number that ``node`` introduces. The maximum of a size is that
    in torch.export's ``value_range``, the number of elements from which the node selects, or the size of the dim that
    is split. If there is none, it is 4 times the largest size in the node's inputs and, for the example, in its result;
    it is then added to ``unbounded``, by node name."""
    low, high = _stated_bounds(value_range) if value_range is not None else (0, None)
    if low is None or low < 0:  # a number, not a size
        return Symbol(Range(-(2**31), 1, 2**31 - 1 if high is None else high), None, (node.name,))
    limits = (high, _max_selected_elements(node, shapes), _max_split_length(node, shapes))
    high = min((limit for limit in limits if limit is not None), default=None)
    if high is None:
        tensors = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        largest = (bounds(size, shapes).max for tensor in tensors for size in shape_of(tensor))
        known = max(*largest, _largest_size_in_example(node, examples), 1)
        high = max(UNBOUNDED_FACTOR * known, UNBOUNDED_DATA_SIZE, low)
        unbounded[node.name] = high
    return Symbol(Range(low, (low + high) // 2, max(low, high)), None, (node.name,))


def _max_split_length(node: torch.fx.Node, shapes: ShapeEnvironment) -> int | None:
    """Return the maximum of a number that is a length in ``split_with_sizes`` (that of the dim); None for others."""
    split = [user for user in node.users if user.target is aten.split_with_sizes.default]
    given = [(argument(user, "self"), argument(user, "dim")) for user in split]
    whole = [shape_of(tensor.meta["val"])[dim] for tensor, dim in given]
    known = [size for size in whole if {s.name for s in getattr(size, "free_symbols", ())} <= set(shapes)]
    return min((bounds(size, shapes).max for size in known), default=None)


def balanced_split_ranges(graph: torch.fx.Graph, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return new ranges for the symbols that are lengths in splits. The ``opt`` of all pieces of a split are equal, and
    add up to that of the split dim: otherwise TensorRT could not tune for the pieces and for their concatenation."""
    found = dict[str, Range]()
    for node in graph.nodes:
        if node.target is aten.split_with_sizes.default:
            whole = shape_of(argument(node, "self").meta["val"])[argument(node, "dim")]
            given = (n.meta["val"] if isinstance(n, torch.fx.Node) else n for n in argument(node, "split_sizes"))
            expressions = [expression(size) for size in given]
            names = [str(size) for size in expressions if str(size) in ranges]
            fixed = [size for size in expressions if isinstance(size, int)]
            if names and len(names) + len(fixed) == len(expressions):
                opt = evaluate_size(whole, {name: each.opt for name, each in {**ranges, **found}.items()}) - sum(fixed)
                for number, name in enumerate(names):
                    low, high = ranges[name].min, ranges[name].max
                    found[name] = Range(low, min(max((opt + number) // len(names), low), high), high)
    return found


def _largest_size_in_example(node: torch.fx.Node, examples: Mapping[str, torch.Tensor]) -> int:
    """Return the largest size of a node's results, computed from the example's tensors (by placeholder); 0 if that is
    impossible: a tensor is missing, or an earlier operator mutates its input."""
    try:
        with torch.no_grad():
            made = _run_on_example(node, examples)
    except Exception:  # whatever eager raises: the example has no answer then
        return 0
    return max((size for t in tree_leaves(made) if isinstance(t, torch.Tensor) for size in t.shape), default=0)


def _run_on_example(node: torch.fx.Node, examples: Mapping[str, torch.Tensor]) -> Argument:
    """Run the nodes that compute this node on the example's tensors, in eager, and return its result."""
    needed, waiting = set[torch.fx.Node](), [node]
    while waiting:
        each = waiting.pop()
        if each not in needed:
            needed.add(each)
            waiting += each.all_input_nodes
    known: dict[torch.fx.Node, Argument] = {}
    for each in (each for each in node.graph.nodes if each in needed):
        if each.op == "placeholder":
            known[each] = examples[each.name]
        elif each.op != "call_function" or getattr(getattr(each.target, "_schema", None), "is_mutable", False):
            raise LookupError(each.name)
        else:
            args, kwargs = map_arg((each.args, dict(each.kwargs)), known.__getitem__)
            known[each] = each.target(*args, **kwargs)
    return known[node]


def _max_selected_elements(node: torch.fx.Node, shapes: ShapeEnvironment) -> int | None:
    """Return the maximum number of elements that an operator selects from its inputs; None if it depends on values."""
    if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()) or node.target in VALUE_SIZED:
        return None
    tensors = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    most = [[bounds(size, shapes).max for size in shape_of(t)] for t in tensors]
    if node.target is aten.masked_select.default:  # the two are broadcast
        most = [[max(pair) for pair in itertools.zip_longest(*(sizes[::-1] for sizes in most), fillvalue=1)]]
    return max(map(math.prod, most), default=None)
