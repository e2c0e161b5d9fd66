"""Functions that generate the elements of test tensors, one for each kind of values; deterministic for a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

CreateValues = Callable[[Sequence[int], torch.dtype, torch.Generator], torch.Tensor]


def _ints_between(low: int, high: int) -> CreateValues:
    """Return a function that creates random integers from ``low`` to ``high``, both included."""
    return lambda shape, dtype, generator: torch.randint(low, high + 1, shape, generator=generator)


def _floats_between(low: float, high: float) -> CreateValues:
    def make(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    return make


def _ints_up_to(most: int) -> CreateValues:
    """Return a function that creates random integers of magnitude up to ``most``, also negative in signed dtypes."""
    signed, unsigned = _ints_between(-most, most), _ints_between(0, most)
    return lambda shape, dtype, generator: (unsigned if dtype == torch.uint8 else signed)(shape, dtype, generator)


def _per_dtype(floats: CreateValues, others: CreateValues) -> CreateValues:
    """Return a function that creates values by ``floats`` for float dtypes, and by ``others`` for other dtypes."""
    return lambda shape, dtype, generator: (floats if dtype.is_floating_point else others)(shape, dtype, generator)


_normal = _per_dtype(
    lambda shape, dtype, generator: torch.randn(shape, generator=generator, dtype=torch.float64), _ints_up_to(9)
)
_positive = _per_dtype(_floats_between(0.1, 4.0), _ints_between(1, 9))
_small = _ints_up_to(3)


def _nonzero_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    sign = 1 if dtype == torch.uint8 else torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return _positive(shape, dtype, generator) * sign


def _random_choice(pool: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return pool[torch.randint(0, len(pool), shape, generator=generator)]


_SPECIAL_FLOATS = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 100.0, -100.0)


def _special_values_without(unwanted: Callable[[float], bool]) -> CreateValues:
    """Return a function that creates values of the kind ``special``, without the floats that are ``unwanted``."""
    allowed = torch.tensor([value for value in _SPECIAL_FLOATS if not unwanted(value)], dtype=torch.float64)
    return _per_dtype(lambda shape, dtype, generator: _random_choice(allowed, shape, generator), _special_values)


def _special_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate floats with NaN, infinities and zeros of both signs; or integers up to the ends of their range."""
    if dtype.is_floating_point:
        return _random_choice(torch.tensor(_SPECIAL_FLOATS, dtype=torch.float64), shape, generator)
    if dtype == torch.bool:
        return _normal(shape, dtype, generator)
    most = torch.iinfo(dtype).max  # its negative, but not the least number: dividing that by -1 ends the process
    pool = [0, 1, 2, 7, 100, most, most - 1, *([] if dtype == torch.uint8 else [-most, -1, -7])]
    return _random_choice(torch.tensor(pool, dtype=torch.int64), shape, generator)


def _extreme_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate floats that are mostly NaN, infinities, and the finite numbers next to these."""
    if not dtype.is_floating_point:
        return _special_values(shape, dtype, generator)
    most = torch.finfo(dtype).max
    pool = (math.nan, math.inf, -math.inf, math.nan, math.inf, -math.inf, most, -most, most / 2, -0.0, 0.0, 1.0)
    return _random_choice(torch.tensor(pool, dtype=torch.float64), shape, generator)


def _sorted_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate values that are sorted along the last dim, with NaN last: small integers, or extreme values."""
    kind = _small if torch.randint(0, 2, (), generator=generator) else _extreme_values
    return kind(shape, dtype, generator).sort(-1).values


def _large_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate floats up to 1000, and integers above 2**24 if the dtype has them (above 2**31 in int64)."""
    if dtype.is_floating_point:
        return _floats_between(-1000.0, 1000.0)(shape, dtype, generator)
    high = {torch.int64: 1 << 40, torch.int32: 1 << 30}.get(dtype, 127)
    return _ints_up_to(high)(shape, dtype, generator)


def _distinct_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate distinct multiples of a step (int64: 2**33 + 1, floats: 0.5, others: 1) around zero, in random order."""
    count = math.prod(shape)
    order = torch.randperm(count, generator=generator).reshape(tuple(shape)) - count // 2
    step = 0.5 if dtype.is_floating_point else (1 << 33) + 1 if dtype == torch.int64 else 1
    return order * step + (count // 2 if dtype == torch.uint8 else 0)


def _regular_matrices(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate matrices that are far from singular; the largest element of a row may be in any column."""
    *batch, rows, columns = shape
    order = torch.rand(*batch, rows, 1, generator=generator).argsort(-2).expand(*batch, rows, columns)
    return (0.3 * torch.randn(*shape, generator=generator) + 2 * torch.eye(rows, columns)).gather(-2, order)


def _positive_definite_matrices(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Generate symmetric matrices with eigenvalues of at least 1; if not square, crop a square one to the shape."""
    *batch, rows, columns = shape
    size = max(rows, columns)
    factor = torch.randn(*batch, size, size, generator=generator)
    return (factor @ factor.mT / max(size, 1) + torch.eye(size))[..., :rows, :columns]


VALUES: Final[Mapping[str, CreateValues]] = {
    "normal": _normal,
    "positive": _positive,
    "nonzero": _nonzero_values,
    "unit": _floats_between(-0.999, 0.999),
    "small": _small,
    "large": _large_values,
    "special": _special_values,
    "extreme": _extreme_values,
    "sorted": _sorted_values,
    "no nan": _special_values_without(math.isnan),
    "distinct": _distinct_values,
    "permutation": lambda shape, dtype, generator: torch.rand(shape, generator=generator).argsort(-1),
    "regular": _regular_matrices,
    "definite": _positive_definite_matrices,
    "zeros": lambda shape, dtype, generator: torch.zeros(shape),
    "ones": lambda shape, dtype, generator: torch.ones(shape),
}
"""The kinds of values, by name.

normal: floats of a normal distribution, integers -9 to 9, bools. positive: above zero. nonzero: of both signs.
unit: strictly between -1 and 1. small: integers -3 to 3, in floats as well, so that ties occur.
large: floats to ±1000, integers beyond 2**24 (int64: beyond 2**31). special: with NaN, ±inf, ±0, the ends of integers.
extreme: mostly NaN, ±inf and the greatest finite floats.
sorted: small integers or extreme values, sorted along the last dim. no nan: special values without NaN. distinct: no
two elements are equal. permutation: indices along the last dim, each once. regular: matrices far from singular.
definite: symmetric and positive definite matrices. zeros, ones.
"""

PARAMETRIC: Final[Mapping[str, Callable[..., CreateValues]]] = {
    "below": lambda k: _ints_between(0, k - 1),
    "index": lambda k: _ints_between(-k, k - 1),
    "between": _ints_between,
    "uniform": _floats_between,
}
"""The kinds of values with numbers, as in ``("below", 5)``; a number may be the name of a size.

below k: indices 0 to k - 1. index k: indices of k elements counted from either end, -k to k - 1. between low, high:
    integers, both included.
uniform low, high: floats.
"""


def generate_values(kind: Any, shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return a tensor of this shape and dtype. ``kind`` is a name of ``VALUES``, a tuple ``(name, *numbers)`` of
    ``PARAMETRIC``, or a tuple ``("given", [...])`` with the values themselves. For a complex dtype, real and imaginary
    parts are generated separately."""
    if dtype.is_complex:
        return torch.complex(*(generate_values(kind, shape, dtype.to_real(), seed + i) for i in (0, 10007)))
    generator = torch.Generator().manual_seed(seed)
    if isinstance(kind, str):
        return _cast(_find_kind(VALUES, kind)(tuple(shape), dtype, generator), dtype)
    name, *numbers = kind
    if name == "given":
        return torch.tensor(numbers[0], dtype=dtype).reshape(tuple(shape))
    return _cast(_find_kind(PARAMETRIC, name)(*numbers)(tuple(shape), dtype, generator), dtype)


def _cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert values to a dtype; as bools, positive values are True and all other values False."""
    return values > 0 if dtype == torch.bool else values.to(dtype)


def _find_kind(table: Mapping[str, object], name: str) -> Any:
    """Return the entry of this name in ``VALUES`` or ``PARAMETRIC``; raise a ValueError if there is none."""
    if name not in table:
        raise ValueError(f"wrong kind of values {name!r}: expected one of {', '.join([*VALUES, *PARAMETRIC, 'given'])}")
    return table[name]
