"""Detect inputs that share memory with a mutated input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from pipeline.aten.types import Leaf
from pipeline.program import Program


def mutated_input_indices(program: Program) -> tuple[int, ...]:
    """Return the indices of the inputs that a program mutates."""
    targets = {output.target for output in program.outputs if output.kind == "input"}
    return tuple(i for i, port in enumerate(program.inputs) if port.name in targets)


def find_overlap(mutated: Iterable[int], inputs: Sequence[Leaf]) -> tuple[int, int] | None:
    """Return the indices of a mutated input and of an input that shares its memory; None if there are none. The
    indices are equal if elements of one mutated input share memory, as in an expanded tensor."""
    for i in mutated:
        for j, other in enumerate(inputs):
            if isinstance(other, torch.Tensor) and (overlaps(inputs[i], other) if i != j else _shares_elements(other)):
                return i, j
    return None


def check_no_overlap(program: Program, mutated: Iterable[int], inputs: Sequence[object]) -> None:
    """Raise a `ValueError` if a mutated input shares memory with another input, or if elements of it share memory."""
    found = find_overlap(mutated, inputs)
    if found is None:
        return
    one, other = (program.inputs[i].name for i in found)
    lies = f"{one} has elements" if one == other else f"{one} and {other} lie"
    plural = "" if one == other else "s"
    raise ValueError(
        f"input{plural} {lies} in the same memory, and the program writes to {one}: pass a clone of {other}"
    )


def _shares_elements(tensor: torch.Tensor) -> bool:
    """Return whether two elements of a tensor share memory, as in an expanded tensor."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def overlaps(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share a byte. The result is exact: interleaved slices of a tensor do not overlap. It
    takes about 1 µs for tensors of different storages."""
    if torch.strided != one.layout or one.layout != other.layout:
        return one is other
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr() or not (one.numel() and other.numel()):
        return False
    least, most = Counter[int](), Counter[int]()
    for step, count in _byte_strides(one):
        most[step] += count
    for step, count in _byte_strides(other):
        least[step] -= count
    terms = [(step, least[step], most[step]) for step in sorted({*least, *most}, reverse=True)]
    return _is_sum_of_strides(other.data_ptr() - one.data_ptr(), terms)


def _byte_strides(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Return (stride in bytes, size - 1) for each dim of a tensor, and (1, itemsize - 1) for the bytes of an element.

    Dims of stride 0 are omitted.
    """
    dims = [(stride * tensor.itemsize, size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
    return [*(row for row in dims if row[0]), (1, tensor.itemsize - 1)]


def _is_sum_of_strides(distance: int, terms: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether two tensors, whose addresses differ by ``distance`` bytes, share a byte: whether ``distance`` is a
    sum of stride * factor over ``terms``, each (stride, least factor, greatest factor), the longest stride first."""
    if not terms:
        return distance == 0
    (step, low, high), *rest = terms
    least, most = sum(s * a for s, a, _ in rest), sum(s * b for s, _, b in rest)
    first, last = max(low, -((most - distance) // step)), min(high, (distance - least) // step)
    return any(_is_sum_of_strides(distance - i * step, rest) for i in range(first, last + 1))
