"""Define ``Request`` (the checked inputs and size ranges of a capture) and ``ExportNotes`` (facts found in an export).
A request has the sizes of each profile. The facts are those that the ``ExportedProgram`` does not contain."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.types import Argument, Leaf, Spec
from pipeline.export_fixes.error_attribution import Inputs
from pipeline.export_fixes.input_checks import check_arguments, check_dynamic_shapes
from pipeline.frozen import FrozenDict
from pipeline.inputs import Constant, Input, is_input
from pipeline.shapes.environment import Range


@frozen
class ProfileRanges:
    """One profile's ranges for one input, by dim: the minimum, optimal and maximum size."""

    input: int
    ranges: Mapping[int, Range]


@frozen
class Tuned:
    """A dim's range in a profile, with ``opt``, the size for which engines are tuned. torch.export's ``Dim`` has no
    ``opt``: engines are then tuned for the example's size or, if that is not in the range, for the maximum."""

    name: str
    min: int
    opt: int
    max: int

    @property
    def __name__(self) -> str:
        return self.name


def merge_profiles(
    model: object, example_inputs: Inputs, dynamic_shapes: Spec, profiles: Sequence[Spec] | None
) -> tuple[Spec, list[list[ProfileRanges]]]:
    """Return the ``dynamic_shapes`` that cover all ``profiles`` (None: unchanged), and each profile's ranges of inputs.

    Raises:
        TypeError: ``profiles`` are given for an ``ExportedProgram``, together with ``dynamic_shapes``, or with an
            `Input` that has profiles.
        ValueError: `Input` s have different numbers of profiles, or ``profiles`` is empty.
    """
    leaves = tree_leaves(example_inputs, is_leaf=is_input)
    inputs = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Input) and leaf.profiles}
    if profiles is None:
        return dynamic_shapes, _profiles_of_inputs(inputs)
    if dynamic_shapes is not None:
        raise TypeError("profiles and dynamic_shapes are both given: pass only one of these arguments")
    if inputs:
        raise TypeError("the argument profiles and a pipeline.Input both give profiles: use only one of them")
    if not isinstance(model, torch.nn.Module):
        raise TypeError("profiles cannot change an ExportedProgram: pass an Input with profiles for each of its inputs")
    if not isinstance(profiles, Sequence) or not profiles:
        raise ValueError("profiles must be a non-empty sequence, with one dynamic_shapes for each profile")
    return _merge_profile_entries(model, *example_inputs, len(leaves), profiles)


def _profiles_of_inputs(inputs: Mapping[int, Input]) -> list[list[ProfileRanges]]:
    """Return for each profile the ranges of all inputs; raise `ValueError` if inputs have different profile counts."""
    counts = {len(each.profiles) for each in inputs.values()}
    if len(counts) > 1:
        raise ValueError(f"each Input needs the same number of profiles, got {' and '.join(map(str, sorted(counts)))}")
    return [
        [
            ProfileRanges(i, {d: Range(*ends) for d, ends in enumerate(zip(*each.profiles[at], strict=True))})
            for i, each in inputs.items()
        ]
        for at in range(counts.pop() if counts else 0)
    ]


def _merge_profile_entries(
    model: torch.nn.Module, args: Sequence[Leaf], kwargs: Mapping[str, Leaf], leaf_count: int, profiles: Sequence[Spec]
) -> tuple[Spec, list[list[ProfileRanges]]]:
    """Return ``dynamic_shapes`` that cover all profiles, and each profile's ranges; ``leaf_count``: of all inputs."""
    given = {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}
    for spec in profiles:
        check_dynamic_shapes(model, given, spec, entries=False)
    wishes: list[list[ProfileRanges]] = [[] for _ in profiles]
    counter = iter(range(leaf_count))

    def walk(path: str, value: Leaf, specs: list[Spec]) -> Spec:
        if isinstance(value, Mapping):
            return {
                key: walk(f"{path}_{key}", part, [_item_entry(s, key) for s in specs]) for key, part in value.items()
            }
        if isinstance(value, list | tuple):
            parts = [walk(f"{path}_{i}", part, [_item_entry(s, i) for s in specs]) for i, part in enumerate(value)]
            return parts if isinstance(value, list) else tuple(parts)
        leaf = next(counter, -1)
        if not isinstance(value, torch.Tensor | Input):
            return next((spec for spec in specs if spec is not None), None)
        return _ranges_over_profiles(path, leaf, value, specs, wishes)

    shapes = {
        name: walk(name, value, [_item_entry(spec, name, place) for spec in profiles])
        for place, (name, value) in enumerate(given.items())
    }
    return shapes, wishes


def _item_entry(spec: Spec, key: object, index: int | None = None) -> Spec:
    """Return the ``dynamic_shapes`` entry for an item of a container, by the item's key or index; None if missing."""
    if isinstance(spec, Mapping):
        return spec.get(key)
    at = key if index is None else index
    return spec[at] if isinstance(spec, list | tuple) and isinstance(at, int) and at < len(spec) else None


def _ranges_over_profiles(
    path: str, input_index: int, value: torch.Tensor | Input, specs: list[Spec], profiles: list[list[ProfileRanges]]
) -> dict[int, Any]:
    """Return {dim: ``Dim`` over all profiles} of an input. ``specs``: the input's ``dynamic_shapes`` entry in each
    profile, whose ranges are appended to the profile's list in ``profiles``; ``path``: the input's name."""
    ends_of_input = value.ranges if isinstance(value, Input) else [(size, size, size) for size in value.shape]
    sizes = [opt for _, opt, _ in ends_of_input]
    found: dict[int, Any] = {}
    for dim, size in enumerate(sizes):
        entries = [_entry_of_dim(spec, dim, len(sizes)) for spec in specs]
        if all(entry is None for entry in entries):
            continue
        ends = [_size_bounds_of_entry(entry, size) for entry in entries]
        for at, (low, high) in enumerate(ends):
            best = getattr(entries[at], "opt", size if low <= size <= high else high)
            profiles[at].append(ProfileRanges(input_index, {dim: Range(low, best, high)}))
        least, most = min(low for low, _ in ends), max(high for _, high in ends)
        name = next((entry.__name__ for entry in entries if hasattr(entry, "__name__")), f"{path}_{dim}")
        if least < most:
            found[dim] = Dim(name, min=least, max=most)
        elif most != size and len({*ends_of_input[dim]}) == 1:
            why = f"profiles give {path} the size {most} in dimension {dim}, but its example has {size}"
            raise ValueError(f"{why}: pass an example with a size of the profiles")
    return found


def _entry_of_dim(spec: Spec, dim: int, rank: int) -> Any:
    """Return a dim's entry in a dict by dim (also ``-1`` for the last one) or in a sequence; None if missing."""
    if isinstance(spec, Mapping):
        return spec.get(dim, spec.get(dim - rank))
    return spec[dim] if isinstance(spec, list | tuple) else None


def _size_bounds_of_entry(entry: Any, example_size: int) -> tuple[int, int]:
    """Return the smallest and largest size that an entry of a profile allows; without an entry, the example's size."""
    if isinstance(entry, int):
        return entry, entry
    if None not in (getattr(entry, "min", None), getattr(entry, "max", None)):
        return int(entry.min), int(entry.max)
    if entry is None:
        return example_size, example_size
    raise TypeError(f"a size in profiles is {entry!r}: expected a number, torch.export.Dim with min and max, or None")


@frozen(eq=False)
class Request:
    """The checked inputs and ranges of a capture.

    Attributes:
        args: the positional example inputs: tensors, `Input` s and other values; a tensor for each `Constant`.
        kwargs: the example inputs by keyword.
        constants: the `Constant` inputs, by the index of the input's leaf.
        dynamic_shapes: as in torch.export; it covers all profiles.
        profiles: for each profile the ranges of inputs.
    """

    args: tuple[object, ...]
    kwargs: dict[str, Argument]
    constants: Mapping[int, Constant]
    dynamic_shapes: Spec
    profiles: tuple[tuple[ProfileRanges, ...], ...]

    @property
    def leaves(self) -> tuple[Argument, ...]:
        """The leaves of the example inputs (positional, then keyword), in order."""
        return tuple(tree_leaves((self.args, self.kwargs), is_leaf=is_input))


def check_request(
    model: object, args: object, kwargs: object, dynamic_shapes: Spec, profiles: Sequence[Spec] | None
) -> Request:
    """Check the inputs and ranges to capture a module or an ``ExportedProgram`` with; return them as a `Request`. Raise
    the errors of `merge_profiles`, and `TypeError` for inputs of a wrong type."""
    positional, named = check_arguments(args, kwargs)
    leaves, structure = tree_flatten((positional, named), is_leaf=lambda value: isinstance(value, Constant))
    constants = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Constant)}
    if constants:  # tensors in their place
        leaves = [leaf.value.clone() if isinstance(leaf, Constant) else leaf for leaf in leaves]
        positional, named = tree_unflatten(leaves, structure)
    shapes, wishes = merge_profiles(model, (positional, named), dynamic_shapes, profiles)
    return Request(positional, named, constants, shapes, tuple(map(tuple, wishes)))


@frozen(eq=False)
class ExportNotes:
    """Facts about the module and its trace that an export does not contain. For a user's ``ExportedProgram`` only
    inputs and profiles are known.

    Attributes:
        inputs: the example inputs, in order: tensors, `Input` s and other values. Empty: the inputs of the export.
        profiles: for each profile the ranges of inputs.
        ranges: the requested minimum and maximum (None: no bound) of each symbol of the export.
        constants: the `Constant` inputs, by index.
        tensors: the module's tensors by name, which are fake in an export for another device.
        checks: the locations of the module's checks of values, as ``file:line``; the checks are assumed to pass.
        reads: the buffers whose numbers Python read; the graph is valid for these numbers only.
        decisions: the lines where the example input decided a branch, in the order of the export's last outputs. Each
            of these outputs is True if a call takes another branch at its line.
    """

    inputs: tuple[object, ...] = ()
    profiles: tuple[tuple[ProfileRanges, ...], ...] = ()
    ranges: Mapping[str, tuple[int, int | None]] = FrozenDict()
    constants: Mapping[int, Constant] = FrozenDict()
    tensors: Mapping[str, torch.Tensor] = FrozenDict()
    checks: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()
