"""Collect the conditions on sizes under which a traced graph is valid.

These are torch.export's guards, except guards that only decide memory layouts, and conditions that the graph's
operators assume, but that torch.export does not record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final, TypeAlias

import sympy
import torch
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.functions import Mod, PythonMod

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, operators_of_kind
from pipeline.aten.types import Argument
from pipeline.shapes.environment import expression, is_host_int, shape_of
from pipeline.shapes.guard_provenance import ATTENTION, MASKS, MODULE_FILE, TORCH, model_conditions

aten = torch.ops.aten


def operator_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield conditions on sizes (sympy expressions such as ``s0 != 1``). For sizes that violate one, eager PyTorch
    raises an error, or returns a result of another rank or size than the graph's operator."""
    for operators, find in _CONDITIONS:
        for node in graph.nodes:
            if node.target in operators:
                yield from find(node)


def _condition_of_assert(node: torch.fx.Node) -> Iterator[object]:
    """Yield the condition on sizes that an assertion in the graph checks (``aten._assert_scalar``)."""
    value = node.args[0].meta.get("val") if isinstance(node.args[0], torch.fx.Node) else None
    if isinstance(value, torch.SymBool):
        yield value.node.expr


def _reshape_condition(node: torch.fx.Node) -> Iterator[sympy.Basic]:
    """Yield the condition that a reshape keeps the number of elements; a saved ExportedProgram does not have it."""
    before, after = (sympy.Mul(*shape_of(n.meta["val"])) for n in (node.args[0], node))  # type: ignore[union-attr]
    if before != after:
        yield sympy.Eq(before, after, evaluate=False)


def _squeeze_conditions(node: torch.fx.Node) -> Iterator[object]:
    """Yield the condition that each dynamic size which a ``squeeze`` reads is not 1, as torch.export assumes."""
    sizes = shape_of(node.args[0].meta["val"])  # type: ignore[union-attr]
    dims: Argument = node.args[1] if len(node.args) > 1 else range(len(sizes))
    for dim in [dims] if isinstance(dims, int) else dims:
        if sizes and not isinstance(sizes[dim], int):  # a tensor without dims takes 0 and -1 as well
            yield sympy.Ne(sizes[dim], 1, evaluate=False)


def _cross_conditions(node: torch.fx.Node) -> Iterator[object]:
    """Yield ``size != 3`` for the dims before the dim that ``torch.cross`` chose in the trace: the first of size 3."""
    sizes = shape_of(argument(node, "self").meta["val"])
    for size in sizes[: sizes.index(3)] if argument(node, "dim") is None else ():
        if not isinstance(size, int):
            yield sympy.Ne(size, 3, evaluate=False)


def _attention_condition(node: torch.fx.Node) -> Iterator[object]:
    """Yield the condition that an attention has as many values as keys, which torch.export does not check."""
    keys, values = (shape_of(argument(node, name).meta["val"])[-2] for name in ("key", "value"))
    if keys != values and not (isinstance(keys, int) and isinstance(values, int)):
        yield sympy.Eq(keys, values, evaluate=False)


def _mask_conditions(node: torch.fx.Node) -> Iterator[object]:
    """Yield the condition that a mask in ``x[mask] = …`` has the sizes of ``x``; torch.export checks only reads."""
    sizes, dim = shape_of(argument(node, "self").meta["val"]), 0
    for index in argument(node, "indices"):
        value = None if index is None else index.meta["val"]
        mask = shape_of(value) if value is not None and value.dtype in (torch.bool, torch.uint8) else None
        for size, due in zip(mask or (), sizes[dim:], strict=False):
            if size != due and not (isinstance(size, int) and isinstance(due, int)):
                yield sympy.Eq(size, due, evaluate=False)
        dim += 1 if mask is None else len(mask)


def _slice_condition(node: torch.fx.Node) -> Iterator[object]:
    """Yield a minimum of a size that is sliced to a fixed size: ``s0 >= 2`` if the graph's ``x[-2:]`` has 2 rows."""
    source, dim, start, step = (argument(node, name) for name in ("self", "dim", "start", "step"))
    taken, given = shape_of(node.meta["val"])[dim], shape_of(source.meta["val"])[dim]
    if isinstance(taken, int) and taken > 0 and not isinstance(given, int) and isinstance(start, int | None):
        first = start or 0
        yield sympy.Ge(given, -first if first < 0 else first + (taken - 1) * step + 1, evaluate=False)


_ATTENTION = aten.scaled_dot_product_attention.default
_CONDITIONS: Final = (
    ((aten._assert_scalar.default,), _condition_of_assert),
    ((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _squeeze_conditions),
    ((aten.cross.default,), _cross_conditions),
    (operators_of_kind(Kind.RESHAPES), _reshape_condition),
    ((aten.slice.Tensor,), _slice_condition),
    ((_ATTENTION,), _attention_condition),
    ((aten.index_put.default, aten._unsafe_index_put.default), _mask_conditions),
)
"""Operators, and the function that yields the conditions of a call. The order is that of the conditions."""


def single_query_conditions(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the condition ``queries != 1 or keys == 1`` for each causal attention in the graph. For a single query,
    transformers omits ``is_causal``, which the graph keeps; the results are equal only if there is a single key."""
    for node in graph.nodes:
        if node.target is _ATTENTION and argument(node, "is_causal"):
            queries, keys = (shape_of(argument(node, name).meta["val"])[-2] for name in ("query", "key"))
            if not isinstance(queries, int) and queries != keys:
                yield sympy.Or(sympy.Ne(queries, 1, evaluate=False), sympy.Eq(keys, 1, evaluate=False), evaluate=False)


_OPERATOR_FILES = ("_ops.py", "_refs/", "_prims", "_subclasses/", "_decomp/", "_meta")
_EXPORT_FUNCTIONS = ("_export/non_strict_utils.py", "_dynamo/utils.py:run_node")
_OPERATOR_LOCATIONS = tuple(f"{TORCH}/{part}" for part in (*_OPERATOR_FILES, *_EXPORT_FUNCTIONS))
"""Prefixes of code locations inside torch's operators, as opposed to a model's code."""

_FOURIER = tuple(f":{name}" for name in ("_exec_fft", "_sort_dims", "meta_fft_c2c", "meta_fft_r2c"))
"""Suffixes of code locations: torch's functions that choose the memory layout of a Fourier transform's result."""

Terms: TypeAlias = frozenset[tuple[sympy.Expr, int]]
"""The terms of a sum, each with its integer coefficient, divided by their common factor."""


def size_guards(graph: torch.fx.Graph) -> Iterator[object]:
    """Yield the conditions on sizes under which a traced graph is valid. The graph's nodes must have fake tensors."""
    mode = next((v.fake_mode for v in node_values(graph) if hasattr(v, "fake_mode")), None)
    if mode is None or mode.shape_env is None:
        return
    layouts, replace, noted = Layouts(graph), mode.shape_env.replace, model_conditions(mode.shape_env)
    places = [*((g.expr, _guard_origin(g)) for g in mode.shape_env.guards), *noted.items()]
    attention = [expr for expr, place in places if ATTENTION in place]
    alone = bool(attention) and all(map(_compares_with_one, attention))  # it asks whether there is a single query
    dropped, kept = set[sympy.Basic](), []
    for guard in mode.shape_env.guards:
        expr = replace(guard.expr)
        is_moot = guard.size_oblivious or _does_not_affect_results(guard.expr, _guard_origin(guard), alone)
        if is_moot or layouts.is_about_layout(guard, expr):
            dropped.add(expr)
        else:
            kept.append((guard, expr))
    yield from (expr for guard, expr in kept if expr not in dropped or not _guard_origin(guard).startswith(MODULE_FILE))
    hidden = {symbol for expr in dropped for symbol in expr.free_symbols}
    others = (replace(expr) for expr, place in noted.items() if not _does_not_affect_results(expr, place, alone))
    yield from (expr for expr in others if expr.free_symbols & hidden)
    if alone:
        yield from single_query_conditions(graph)


def count_specialized_numbers(graph: torch.fx.Graph) -> int:
    """Return how many ints that the model computes from quotients of sizes (``int(h // 14)``) became constants in the
    trace. Quotients of proportional sizes do not count, since they are constant."""
    mode = next((v.fake_mode for v in node_values(graph) if hasattr(v, "fake_mode")), None)
    found = [] if mode is None or (env := mode.shape_env) is None else [env.replace(each.expr) for each in env.guards]
    sides = [pair for e in found if isinstance(e, sympy.Eq) for pair in (e.args, e.args[::-1])]
    # torch itself compares every size with 0 and 1
    return sum(bool(b.is_number) and b not in (0, 1) and _has_quotient(a) for a, b in sides)


def _has_quotient(expr: sympy.Basic) -> bool:
    """Return whether an expression rounds a quotient of sizes to an int. Remainders do not count, nor do the strides of
    a contiguous tensor, which are products of ``Max(1, size)``."""
    kinds = {type(part).__name__ for part in sympy.preorder_traversal(expr)}
    asks_for_layout = "Mod" in type(expr).__name__ or "Max" in kinds
    return not asks_for_layout and ("FloorDiv" in kinds or any(map(is_host_int, sympy.preorder_traversal(expr))))


def _does_not_affect_results(condition: object, location: str, checks_one_query: bool) -> bool:
    """Return whether ``location`` is code in transformers (`ATTENTION`, `MASKS`) that computes the same result if the
    condition is false. ``checks_one_query``: whether attention compares sizes only with 1."""
    return (checks_one_query and ATTENTION in location) or (location.endswith(MASKS) and _compares_with_one(condition))


def node_values(graph: torch.fx.Graph) -> Iterator[Argument]:
    """Yield the fake tensors and numbers that a graph's nodes compute."""
    for node in graph.nodes:
        yield from tree_leaves(node.meta.get("val"))


def _guard_origin(guard: Argument) -> str:
    """Return the file and function that evaluated a guard, as text: ``torch/_refs/__init__.py:reshape``."""
    found = guard.sloc.framework_loc
    return f"{found.filename}:{found.name}" if hasattr(found, "filename") else ""


class Layouts:
    """The memory layouts of a graph's tensors. They tell which of torch's guards on sizes only decide a layout, such as
    whether a reshape copies, so that a program need not meet them."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph

    @cached_property
    def mergeable_gaps(self) -> frozenset[Terms | None]:
        """Return ``stride[i] - size[j] * stride[j]`` as `Terms`, for each two dims ``i`` and ``j`` of each tensor.

        If that is 0, a reshape can merge the two dims without a copy. All pairs of dims are returned, not only adjacent
        ones, since einsum merges any two.
        """
        tensors = (v for v in node_values(self.graph) if isinstance(v, torch.Tensor) and v.layout is torch.strided)
        layouts = dict.fromkeys((shape_of(v), tuple(map(expression, v.stride()))) for v in tensors)
        pairs = (itertools.permutations(zip(*layout, strict=True), 2) for layout in layouts)
        merged = {(outer, *inner) for rows in pairs for (_, outer), inner in rows}
        return frozenset(normalized_terms(outer - size * stride) for outer, size, stride in merged) - {None}

    def is_about_layout(self, guard: Argument, expr: Argument) -> bool:
        """Return whether a guard only decides strides. If so, an operator, not the model, evaluated it to ask whether a
        size is 1, whether two dims can be merged without a copy, or how to lay out the result of a Fourier transform.
        (If a size of 1 changes results, `operator_conditions` excludes it.) ``expr``: the condition of ``guard``, in
        the symbols that the program has."""
        place = _guard_origin(guard)
        if not place.startswith(_OPERATOR_LOCATIONS):
            return False
        if place.endswith(_FOURIER):
            return True
        if _compares_with_one(guard.expr):
            # A remainder that is no tensor's size (``n % 3 > 1``) decides what an operator computes, such as how many
            # parts of `tensor_split` are longer by one.
            remainders = {side for side in guard.expr.args if isinstance(side, Mod | PythonMod)}
            sizes = (shape_of(v) for v in node_values(self.graph) if isinstance(v, torch.Tensor))
            return not remainders or any(not remainders.isdisjoint(shape) for shape in sizes)
        return isinstance(expr, sympy.Ne) and normalized_terms(expr.lhs - expr.rhs) in self.mergeable_gaps


def _compares_with_one(expr: object) -> bool:
    """Return whether a condition compares a size or stride with 1 (``s0 != 1``, ``s0 > 1``, ``s0 >= 2``)."""
    if isinstance(expr, sympy.Ne):
        one, other = expr.args  # a stride that is 8 * s is compared with 8
        ratios = [sympy.cancel(a / b) for a, b in ((one, other), (other, one)) if b != 0]
        are_sizes = (r.is_Symbol or (isinstance(r, sympy.Max) and 1 in r.args) for r in ratios)  # a stride's 0 is 1
        return 1 in expr.args or any(are_sizes)
    if isinstance(expr, sympy.Gt | sympy.Lt | sympy.Ge | sympy.Le):
        return bool(expr.lts == (1 if isinstance(expr, sympy.Gt | sympy.Lt) else 2))
    return False


def normalized_terms(expr: object) -> Terms | None:
    """Return the terms of a sum with their integer coefficients, which are equal for multiples of the sum:
    ``2*a - 4*b`` and ``2*b - a`` both give ``{(a, 1), (b, -2)}``. None for a number or for fractional coefficients."""
    found = {} if isinstance(expr, int) else sympy.expand(expr).as_coefficients_dict()
    if not found or set(found) == {sympy.S.One} or not all(c.is_Integer for c in found.values()):
        return None
    factor = math.gcd(*map(int, found.values()))
    sign = 1 if found[min(found, key=str)] > 0 else -1
    return frozenset((term, sign * int(c) // factor) for term, c in found.items())
