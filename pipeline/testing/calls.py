"""Describe operator calls as frozen records with named sizes, so that the same call can be tested at many sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from attrs import evolve, field, frozen
from toolz import unique
from torch.utils._pytree import tree_leaves

from pipeline.aten.support import must_be
from pipeline.aten.types import Argument, Function, Leaf, Target
from pipeline.frozen import FrozenDict
from pipeline.recipes import qualified_name
from pipeline.shapes.environment import Range
from pipeline.testing.values import generate_values

Sizes: TypeAlias = Mapping[str, int]
T = TypeVar("T")


@frozen(repr=False)
class Size:
    """An int argument that is computed from named sizes: ``product of names // divisor * scale + offset``.

    ``Size("n")``, ``Size("n", 2, 1)`` for 2n + 1, ``Size("n*m")``, ``Size("n", divisor=2)``, ``Size("n", -1)``.
    """

    name: str
    scale: int = 1
    offset: int = 0
    divisor: int = 1

    @property
    def size_names(self) -> tuple[str, ...]:
        """Return the names of the sizes in the expression: two for ``Size("n*m")``."""
        return tuple(part.strip() for part in self.name.split("*"))

    def value_at(self, sizes: Mapping[str, Any]) -> Leaf:
        """Return the value of the expression for these sizes, which may be symbolic."""
        return self.evaluate(sizes, lambda function, a, b: function(a, b))

    def evaluate(self, sizes: Mapping[str, T], compute: Callable[[Function, T, T | int], T]) -> T:
        """Evaluate the expression for these sizes by calls of ``compute(operator.mul, a, b)`` or another operation."""
        value = sizes[self.size_names[0]]
        for name in self.size_names[1:]:
            value = compute(operator.mul, value, sizes[name])
        value = value if self.divisor == 1 else compute(operator.floordiv, value, self.divisor)
        value = value if self.scale == 1 else compute(operator.mul, value, self.scale)
        return value if self.offset == 0 else compute(operator.add, value, self.offset)

    def __repr__(self) -> str:
        return _constructor_source("Size", [repr(self.name)], _changed_fields(self, "scale", "offset", "divisor"))


Dim: TypeAlias = int | str | Size


def _lists_to_tuples(value: object) -> object:
    """Convert lists to tuples (nested ones too), so that a call is immutable; operators accept both."""
    if isinstance(value, list | tuple):
        return tuple(map(_lists_to_tuples, value))
    return value


def _as_shape_tuple(shape: Iterable[Dim]) -> tuple[Dim, ...]:
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise TypeError(f"TensorSpec: shape must be a sequence of sizes, such as ('n', 3), not {shape!r}")
    return tuple(shape)


@frozen(repr=False)
class TensorSpec:
    """A description of a tensor argument: its shape, dtype and kind of values.

    shape: each size is an int, the name of a size (``"n"``), or a ``Size``.
    values: the kind of values, as named in ``pipeline.testing.values``: ``"normal"``, ``"special"``, ``("below", 5)``.
    constant: True for a parameter of the model, which converters receive as a ``torch.Tensor``; False for an input.
    """

    shape: tuple[Dim, ...] = field(converter=_as_shape_tuple)
    dtype: torch.dtype = field(default=torch.float32, validator=must_be(torch.dtype))
    values: Argument = field(default="normal", converter=_lists_to_tuples)
    constant: bool = False
    seed: int = 0

    def create_tensor(self, sizes: Sizes) -> torch.Tensor:
        """Return a tensor with the described values, for these sizes."""
        return generate_values(self.value_kind(sizes), [dim_size(d, sizes) for d in self.shape], self.dtype, self.seed)

    def value_kind(self, sizes: Sizes) -> Leaf:
        """Return ``values`` with numbers for size names: ``("below", "n")`` becomes ``("below", 5)`` if n is 5."""
        if isinstance(self.values, str):
            return self.values
        return self.values[0], *(dim_size(v, sizes) for v in self.values[1:])

    @property
    def size_names(self) -> tuple[str, ...]:
        """Return the names of the sizes that occur in the tensor's shape."""
        return tuple(name for dim in self.shape for name in _size_names(dim))

    def __repr__(self) -> str:
        shape = f"({', '.join(map(repr, self.shape))}{',' if len(self.shape) == 1 else ''})"
        dtype = [] if self.dtype == torch.float32 else [repr(self.dtype)]
        return _constructor_source("TensorSpec", [shape, *dtype], _changed_fields(self, "values", "constant", "seed"))


def argument_value(argument: object, sizes: Mapping[str, object]) -> Leaf:
    """Return the value of an argument for these sizes: a `Size` is evaluated, any other argument is unchanged."""
    return argument.value_at(sizes) if isinstance(argument, Size) else argument


def dim_size(dim: object, sizes: Mapping[str, object]) -> Leaf:
    """Return the size of a dim as a number, for these named sizes; a dim that is already a number is unchanged."""
    return sizes[dim] if isinstance(dim, str) else argument_value(dim, sizes)


def _size_names(dim: object) -> tuple[str, ...]:
    return dim.size_names if isinstance(dim, Size) else (dim,) if isinstance(dim, str) else ()


def _freeze_kwargs(kwargs: Mapping[str, object]) -> FrozenDict[str, object]:
    return FrozenDict({name: _lists_to_tuples(value) for name, value in kwargs.items()})


def _parse_ranges(sizes: Mapping[str, object]) -> FrozenDict[str, Range]:
    return FrozenDict({name: _parse_range(name, size) for name, size in sizes.items()})


def _parse_range(name: str, size: Argument) -> Range:
    """Convert a size to its range: ``3`` becomes min 1, opt 3, max 8 (or twice the size if larger)."""
    if isinstance(size, Range):
        return size
    low, opt, high = size if isinstance(size, tuple) else (min(1, size), size, max(8, 2 * size))
    if not 0 <= low <= opt <= high:
        raise ValueError(f"size {name} is {size}: expected an int, or (min, opt, max) in this order")
    return Range(low, opt, high)


@frozen(repr=False, eq=False)
class Call:
    """A description of an operator call, with named sizes that may be dynamic.

    target: the ``OpOverload``.
    args, kwargs: ``TensorSpec``, ``Size``, plain values, and sequences of these.
    sizes: the value or the range of each name in shapes and ``Size``: ``{"n": 3}``, or ``{"n": (min, opt, max)}``.
    outputs: the indices of the requested results; None for all. Converters may omit results that are not requested.

    ``Call(aten.add.Tensor, (TensorSpec(("n", 3)), TensorSpec((3,))), sizes={"n": 2})``
    """

    target: Target
    args: tuple[Argument, ...] = field(default=(), converter=_lists_to_tuples)
    kwargs: FrozenDict[str, Argument] = field(factory=FrozenDict, converter=_freeze_kwargs)
    sizes: FrozenDict[str, Range] = field(factory=FrozenDict, converter=_parse_ranges)
    outputs: tuple[int, ...] | None = None

    def __attrs_post_init__(self) -> None:
        """Check that every name in the call has a size, and that every size is used."""
        used = {name for each in self.leaves() if isinstance(each, TensorSpec | Size) for name in each.size_names}
        for spec in self.specs:
            used |= {name for v in (() if isinstance(spec.values, str) else spec.values[1:]) for name in _size_names(v)}
        if used != set(self.sizes):
            raise ValueError(f"sizes={sorted(self.sizes)}, but the arguments use the names {sorted(used)}")
        if named := next((spec for spec in self.specs if spec.constant and spec.size_names), None):
            raise ValueError(
                f"{named} is a constant, that is, a parameter of the model: write numbers for its sizes, not names"
            )

    def leaves(self) -> list[Leaf]:
        """Return the arguments as a flat list, without nested sequences."""
        return tree_leaves((self.args, tuple(self.kwargs.values())))

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Return the tensor arguments, in order."""
        return tuple(leaf for leaf in self.leaves() if isinstance(leaf, TensorSpec))

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensor arguments that are inputs of the model, in order; parameters are left out."""
        return tuple(spec for spec in self.specs if not spec.constant)

    @property
    def is_dynamic(self) -> bool:
        """Return whether the call has named sizes, and thus may have dynamic ones."""
        return bool(self.sizes)

    @property
    def opt_sizes(self) -> dict[str, int]:
        """Return the optimal value of each named size."""
        return {name: size.opt for name, size in self.sizes.items()}

    def with_sizes(self, sizes: Sizes) -> Call:
        """Return the same call with other values of the named sizes; their ranges are extended if necessary."""
        new = {n: Range(min(r.min, s := sizes.get(n, r.opt)), s, max(r.max, s)) for n, r in self.sizes.items()}
        return evolve(self, sizes=new)

    def with_static_sizes(self) -> Call:
        """Return the same call with numbers in place of the names of sizes."""
        sizes = self.opt_sizes

        def fix_sizes(leaf: Leaf) -> Leaf:
            if isinstance(leaf, TensorSpec):
                return evolve(leaf, shape=[dim_size(d, sizes) for d in leaf.shape], values=leaf.value_kind(sizes))
            return argument_value(leaf, sizes)

        args, kwargs = self.map_leaves(fix_sizes)
        return evolve(self, args=args, kwargs=kwargs, sizes={})

    def create_arguments(self, sizes: Sizes | None = None) -> tuple[list[Leaf], dict[str, Leaf]]:
        """Return arguments with deterministic tensors for these sizes (default: the call's own sizes)."""
        sizes = self.opt_sizes if sizes is None else sizes
        return self.args_with(self.create_tensors(sizes), sizes)

    def create_tensors(self, sizes: Sizes | None = None) -> tuple[torch.Tensor, ...]:
        """Create a tensor for each of ``specs``, in order; equal specs at two positions get different values."""
        sizes = self.opt_sizes if sizes is None else sizes
        return tuple(evolve(spec, seed=spec.seed + 101 * i).create_tensor(sizes) for i, spec in enumerate(self.specs))

    def args_with(self, tensors: Sequence[object], sizes: Mapping[str, object]) -> tuple[list[Leaf], dict[str, Leaf]]:
        """Return (args, kwargs) with ``tensors`` in place of `TensorSpec` s, and `Size` s evaluated for ``sizes``."""
        rest = iter(tensors)
        return self.map_leaves(lambda leaf: next(rest) if isinstance(leaf, TensorSpec) else argument_value(leaf, sizes))

    def run_eager(self, sizes: Sizes | None = None) -> Leaf:
        """Run the call in eager PyTorch, and return its result."""
        args, kwargs = self.create_arguments(sizes)
        return self.target(*args, **kwargs)

    @property
    def sizes_to_try(self) -> tuple[dict[str, int], ...]:
        """Return a few combinations of sizes in their ranges: optimal, smallest, largest, and a mixture."""
        ranges = self.sizes.items()
        least = {n: r.min for n, r in ranges}
        most = {n: min(r.max, 9) if r.min <= 9 else r.max for n, r in ranges}
        mixed = {n: (least if i % 2 else most)[n] for i, n in enumerate(most)}
        above = {n: min(r.opt + 1, r.max) for n, r in ranges}
        return tuple(unique((self.opt_sizes, most, least, mixed, above), key=repr))

    def map_leaves(self, f: Callable[[Leaf], object]) -> tuple[list[Leaf], dict[str, Leaf]]:
        """Return the call's arguments with ``f`` applied to each leaf; sequences become lists."""
        return [_map_leaves(a, f) for a in self.args], {k: _map_leaves(a, f) for k, a in self.kwargs.items()}

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the call in Hypothesis's reports as Python code."""
        printer.text(repr(self))

    def __repr__(self) -> str:
        """Return Python code that creates the call (with ``import torch`` and ``from pipeline.testing import *``)."""
        given = [f"torch.ops.{qualified_name(self.target)}", _python_source(self.args)]
        keywords: dict[str, str] = {}
        if self.kwargs:
            keywords["kwargs"] = f"{{{', '.join(f'{k!r}: {_python_source(v)}' for k, v in self.kwargs.items())}}}"
        if self.sizes:
            keywords["sizes"] = repr({n: (r.min, r.opt, r.max) for n, r in self.sizes.items()})
        if self.outputs is not None:
            keywords["outputs"] = repr(self.outputs)
        return _constructor_source("Call", given, keywords)

    def __eq__(self, other: object) -> bool:
        """Compare two calls by their Python code: 1 and True are different arguments, although 1 == True in Python."""
        return repr(self) == repr(other) if isinstance(other, Call) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))


def _map_leaves(value: object, f: Callable[[Leaf], object]) -> Leaf:
    return [_map_leaves(v, f) for v in value] if isinstance(value, list | tuple) else f(value)


def _constructor_source(class_name: str, arguments: Sequence[str], keywords: Mapping[str, str]) -> str:
    return f"{class_name}({', '.join([*arguments, *(f'{k}={v}' for k, v in keywords.items())])})"


def _changed_fields(record: Any, *field_names: str) -> dict[str, str]:
    """Return the fields of a record that differ from their defaults: the Python code of their values, by name."""
    defaults = {a.name: a.default for a in record.__attrs_attrs__}
    return {n: _python_source(getattr(record, n)) for n in field_names if getattr(record, n) != defaults[n]}


def _python_source(value: object) -> str:
    """Return Python code for a value, also for NaN and infinities, whose ``repr`` is not valid Python."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_python_source, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)
