"""split_doubles: compute float64 values that are later cast to float32, such as rotary positions, as float32 parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument
from pipeline.improvements import doubles
from pipeline.improvements.doubles import Format
from pipeline.improvements.rewriting import FLOATS, Node, Rewriting, aten, dtype_of, improvement, is_output, rank_of

MOVES: Final = (Kind.COPIES, Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES, Kind.REORDERS, Kind.REPEATS, Kind.CASTS)
JOINS: Final = (aten.cat.default, aten.stack.default)
WRITES: Final = (aten.slice_scatter.default, aten.select_scatter.default)
READS: Final = (
    *(aten.slice.Tensor, aten.select.int, aten.index_select.default, aten.gather.default, aten.index.Tensor),
    aten.neg.default,
)
"""Operators, in addition to the kinds in `MOVES`, that can be applied to each float32 part of their first argument."""

ARANGES: Final = (aten.arange.default, aten.arange.start, aten.arange.start_step)
SUMS: Final = {aten.add.Tensor: doubles.add, aten.sub.Tensor: doubles.subtract}
WAVES: Final = {aten.sin.default: doubles.sine_from_reduced, aten.cos.default: doubles.cosine_from_reduced}

EXACT: Final = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MOVED: Final = (Format.SPLIT, Format.SINGLE, Format.TURNS, Format.TERMS, Format.PARTS, Format.SUM)

MAX_RANK: Final = 7
"""The maximum rank of an angle: its computation adds a dim, and TensorRT's maximum rank is 8."""

Build: TypeAlias = Callable[..., Argument]
Recipe: TypeAlias = tuple[Sequence[tuple[Argument, Format]], Build]
"""How to compute a node in a format: the arguments with the format that each needs, and the function to apply."""


@improvement
def split_doubles(rewriting: Rewriting) -> None:
    """Compute float64 values that are later cast to float32 or half precision as sums of float32 parts.

    Before: ``(positions * rates).cos().float()`` with rates in float64, which TensorRT lacks. After: the same
    computation in float32, as exact as float64 rounded to float32. Supported are products and quotients by constants
    and by values of other dtypes, a sum of two of these, the sine and the cosine of a value times a constant, and
    operators that move elements.
    """
    if rewriting.program.settings.truncate_double:
        return
    values = _Float64Values(rewriting)
    supported_casts = list(values.supported_casts())
    made = values.create_parts(supported_casts)
    if made and all(rewriting.accepted(node) for node in rewriting.created if dtype_of(node) != torch.float64):
        values.replace_casts(supported_casts)


class _Float64Values:
    """The float64 values of a graph; ``recipes``: how to compute each as float32 tensors, by their `Format`."""

    def __init__(self, rewriting: Rewriting) -> None:
        self.rewriting = rewriting
        self.recipes: dict[Node, dict[Format, Recipe]] = {}
        self.created: dict[tuple[Argument, object], Argument] = {}
        for node in rewriting.graph.nodes:
            if node.op == "call_function" and dtype_of(node) == torch.float64:
                self._record_recipes(node)

    def supported_casts(self) -> Iterator[Node]:
        """Yield the supported casts of float64 values to float32 or half precision."""
        for node in self.rewriting.graph.nodes:
            rounds = op_kind(node.target) is Kind.CASTS and dtype_of(node) in FLOATS
            if rounds and Format.SUM in self.recipes.get(node.args[0], ()):
                yield node

    def create_parts(self, supported_casts: list[Node]) -> bool:
        """Create the float32 nodes that represent the float64 inputs of these casts, and all values from which the
        inputs are computed. Return False if a trace fails."""
        needed: dict[Argument, set[Format]] = {}
        for cast in supported_casts:
            needed.setdefault(cast.args[0], set()).add(Format.SUM)
        for node in reversed(self.recipes):
            for form, (needs, _) in reversed(self.recipes[node].items()):
                if form in needed.get(node, ()):
                    for value, its in needs:
                        needed.setdefault(value, set()).add(its)
        for node, ways in self.recipes.items():
            for form, (needs, build) in ways.items():
                if form in needed.get(node, ()):
                    parts = [self._parts_in_format(value, its, node) for value, its in needs]
                    if None in parts:
                        return False
                    self.created[node, form] = build(node, *parts)
        return None not in self.created.values()

    def replace_casts(self, supported_casts: list[Node]) -> None:
        """Replace the casts by the nodes of `create_parts`; read sizes of float64 values from these nodes."""
        for (node, form), parts in self.created.items():
            for user in list(node.users) if isinstance(form, Format) else ():
                if user.target is aten.sym_size.int:
                    user.replace_input_with(node, parts[0])
        for cast in supported_casts:
            (value,) = self.created[cast.args[0], Format.SUM]
            if dtype_of(cast) != torch.float32:
                value = self.rewriting.create(aten._to_copy.default, (value,), {"dtype": dtype_of(cast)}, cast)
            elif is_output(cast):
                value = self.rewriting.create(aten.clone.default, (value,), {}, cast)
            self.rewriting.replace(cast, value)

    def _record_recipes(self, node: Node) -> None:
        """Record how to compute a node as float32 tensors, from its arguments or from another `Format` of itself."""
        found = {form: way for form, way in self._recipes(node) if all(its in self._formats_of(x) for x, its in way[0])}
        if rank_of(node) > MAX_RANK:
            found.pop(Format.TURNS, None)
        for source, form, function in doubles.DERIVED:
            if source in found and form not in found:
                found[form] = [(node, source)], self._traced(function)
        self.recipes[node] = found

    def _formats_of(self, value: Argument) -> Sequence[Format]:
        """Return the formats of float64 (a constant, pairs of float32, …) that an argument can be computed in."""
        if not isinstance(value, Node):
            return (Format.CONSTANT, *doubles.GIVEN) if isinstance(value, int | float) else ()
        if dtype_of(value) in EXACT:
            return tuple(doubles.GIVEN)
        constant = dtype_of(value) == torch.float64 and value.name in self.rewriting.program.constants
        return (Format.CONSTANT, *doubles.GIVEN) if constant else tuple(self.recipes.get(value, ()))

    def _recipes(self, node: Node) -> Iterator[tuple[Format, Recipe]]:
        """Yield (format, recipe) for each way to compute a float64 node as float32 tensors (see `Format`, `Recipe`). A
        recipe needs each argument in a certain format; the caller checks whether the argument has that format."""
        x, y = (*node.args, None, None)[:2]
        if node.target is aten.mul.Tensor:
            yield Format.TERMS, ([(x, Format.PARTS), (y, Format.PARTS)], self._traced(doubles.multiply))
            x, y = (y, x) if Format.CONSTANT in self._formats_of(x) else (x, y)
            yield Format.TURNS, ([(x, Format.SPLIT), (y, Format.CONSTANT)], self._traced(doubles.product_in_turns))
        elif node.target is aten.div.Tensor:
            yield Format.TERMS, ([(x, Format.PARTS), (y, Format.CONSTANT)], self._traced(doubles.divide))
            yield Format.TURNS, ([(x, Format.SPLIT), (y, Format.CONSTANT)], self._traced(doubles.quotient_in_turns))
        elif node.target in SUMS and argument(node, "alpha") == 1:
            yield Format.SUM, ([(x, Format.TERMS), (y, Format.TERMS)], self._traced(SUMS[node.target]))
        elif node.target in WAVES:
            yield Format.SINGLE, ([(x, Format.CIRCLE)], self._traced(WAVES[node.target]))
        elif op_kind(node.target) in MOVES or node.target in (*JOINS, *WRITES, *READS):
            moved = _moved_arguments(node)
            yield from ((form, ([(value, form) for value in moved], self._move_each_part)) for form in MOVED)
        elif (dtype := _exact_dtype(node)) is not None:
            for form, function in doubles.GIVEN.items():
                yield form, ((), self._build_from_exact_tensor(function, dtype))

    def _parts_in_format(self, value: Argument, form: Format, before: Node) -> Argument:
        """Return the float32 tensors that represent an argument in the `Format` ``form``; for CONSTANT, a float64
        tensor. New calls are added before the node ``before``."""
        if (value, form) in self.created:
            return self.created[value, form]
        if not isinstance(value, Node):
            device = before.meta["val"].device
            kwargs = {"dtype": torch.float64, "device": device}
            value = self.rewriting.create(aten.full.default, ([], float(value)), kwargs, before)
        if form is Format.CONSTANT:
            return value
        key = value, doubles.GIVEN[form]
        if key not in self.created:
            self.created[key] = self.rewriting.before(before).add_traced(doubles.GIVEN[form], value)
        return self.created[key]

    def _traced(self, function: Build) -> Build:
        """Return a function of (node, *tensors) that adds the calls of ``function(*tensors)`` before ``node``."""
        return lambda node, *parts: self.rewriting.before(node).add_traced(function, *parts)

    def _build_from_exact_tensor(self, convert: Build, dtype: torch.dtype) -> Build:
        """Return a function that creates a float64 ``full`` or ``arange`` node again in ``dtype``, in which its values
        are exact, and applies ``convert`` (see `doubles.GIVEN`) to the new tensor."""

        def build(node: Node) -> Argument:
            create = self.rewriting.before(node)
            return create.add_traced(convert, create(node.target, *node.args, **{**node.kwargs, "dtype": dtype}))

        return build

    def _move_each_part(self, node: Node, *values: Sequence[Node]) -> tuple[Node, ...]:
        """Apply an operator that only moves elements, such as ``cat``, to float32 tensors in place of its float64
        arguments; return the results. ``values``: for each argument that it moves, the tensors that represent it."""
        parts = [dict(zip(_moved_arguments(node), each, strict=True)) for each in zip(*values, strict=True)]
        if op_kind(node.target) is Kind.CASTS:
            return tuple(values[0])
        args, kwargs = node.args, dict(node.kwargs)
        moved = (map_arg(args, lambda x: each.get(x, x)) for each in parts)  # noqa: B023
        return tuple(self.rewriting.create(node.target, given, kwargs, node) for given in moved)


def _moved_arguments(node: Node) -> Sequence[Argument]:
    """Return the tensors whose elements an operator moves: all of ``cat``, two of ``slice_scatter``, else one."""
    if node.target in JOINS:
        return node.args[0]  # type: ignore[return-value]
    return node.args[: 2 if node.target in WRITES else 1]


def _exact_dtype(node: Node) -> torch.dtype | None:
    """Return float32 or int64 if it holds the values of a float64 ``full`` or ``arange`` node exactly; else None."""
    if node.target in ARANGES:
        return torch.int64 if all(isinstance(x, int | Node) for x in node.args) else None
    if node.target is not aten.full.default or not isinstance(value := node.args[1], int | float):
        return None
    return torch.float32 if torch.tensor(value, dtype=torch.float32).item() == value else None
