"""Record the calls of a submodule, so that it can be compiled for them; sizes that differ become dynamic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from attrs import Factory, define, frozen
from torch.export import Dim
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map_only

from pipeline.aten.types import Argument, Leaf, Spec
from pipeline.errors import CaptureError
from pipeline.export_fixes.dynamic_shapes import nest_entries
from pipeline.export_fixes.error_attribution import unnamed_fields_error
from pipeline.export_fixes.input_checks import bind_args
from pipeline.records.wording import kind_of

KIND_HINT = "record only calls that pass the same inputs in the same way, and compile once for each way"


@frozen
class TensorKind:
    """The dtype and sizes of a tensor in a recorded call."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@frozen
class Call:
    """One recorded call: the structure of its inputs, and each value by path (for a tensor, its dtype and sizes)."""

    spec: Spec
    values: Mapping[str, Leaf]

    @classmethod
    def from_inputs(cls, inputs: Mapping[str, Argument], call_form: Spec) -> Call:
        """Return the record of a call's inputs. ``call_form`` tells how they were passed: the number of positional
        inputs, and the names of the keywords."""
        rows, spec = tree_flatten_with_path(inputs)
        kinds = (TensorKind(v.dtype, tuple(v.shape)) if isinstance(v, torch.Tensor) else v for _, v in rows)
        return cls((spec, call_form), dict(zip((_path_text(path) for path, _ in rows), kinds, strict=True)))


@define
class Calls:
    """The calls of a module that a `recorded` context has seen, in order.

    ``compile(module, **calls.inputs)`` compiles the module for all recorded calls. The first call is the example, and
    its tensors are stored; of later calls only types and shapes are stored.
    """

    module: torch.nn.Module
    seen: list[Call] = Factory(list)
    example: tuple[tuple[Argument, ...], dict[str, Argument]] | None = None
    refused: CaptureError | None = None

    def __len__(self) -> int:
        return len(self.seen)

    def __str__(self) -> str:
        rows = [f"{self._module_name}: {len(self)} calls"]
        for path in self.seen[0].values if self.seen else ():
            found = list(dict.fromkeys(str(call.values.get(path)) for call in self.seen))
            rows.append(f"  {path}: {', '.join(found)}")
        return "\n".join(rows)

    @property
    def _module_name(self) -> str:
        return type(self.module).__name__

    @property
    def inputs(self) -> dict[str, Argument]:
        """Return ``args``, ``kwargs`` and ``dynamic_shapes`` for a pipeline or `pipeline.capture`. Sizes and integers
        that differed between calls are dynamic from their minimum to their maximum, and tuned for the first call.

        Raises:
            CaptureError: no call was recorded, or calls differ in more than sizes and integers; the message names the
                input.
        """
        if self.refused is not None:
            raise self.refused
        if self.example is None:
            why = f"{self._module_name} was not called while its calls were recorded"
            raise CaptureError(why, "call the module in the with block; only calls of forward are recorded")
        first = self.seen[0]
        for other in self.seen[1:]:
            self._check_calls_alike(first, other)
        args, kwargs = self.example
        given = bind_args(self.module, args, kwargs)
        entries = (self._dynamic_shapes_entry(_path_text(path)) for path, _ in tree_flatten_with_path(given)[0])
        return {"args": args, "kwargs": kwargs, "dynamic_shapes": _nest_leaf_entries(given, entries)}

    def _check_calls_alike(self, first: Call, second: Call) -> None:
        """Raise `CaptureError` if no single program can accept both calls: their inputs, keywords or types differ."""
        if missing := sorted(first.values.keys() ^ second.values.keys()):
            raise CaptureError(f"only some calls of {self._module_name} pass {', '.join(missing)}", KIND_HINT)
        if first.spec != second.spec:
            raise CaptureError(
                f"calls of {self._module_name} differ in keyword arguments, or in the structure of inputs", KIND_HINT
            )
        for path, own in first.values.items():
            value = second.values[path]
            if not _can_share_program(own, value):
                why = f"{path} of {self._module_name} is {own} in one call and {value} in another"
                hint = f"pass a number that changes as a tensor, or {KIND_HINT}"
                raise CaptureError(why, hint)

    def _dynamic_shapes_entry(self, path: str) -> Argument:
        """Return the ``dynamic_shapes`` entry of one input: a ``Dim`` for each size that differs between the calls."""
        values = [call.values[path] for call in self.seen]
        if not isinstance(values[0], TensorKind):
            return _dim_spanning(values) if type(values[0]) is int else None
        dims = {dim: _dim_spanning(sizes) for dim, sizes in enumerate(zip(*(v.shape for v in values), strict=True))}
        return {dim: entry for dim, entry in dims.items() if entry is not None} or None


@contextmanager
def recorded(module: torch.nn.Module) -> Iterator[Calls]:
    """Return a context that records the calls of a module, so that it can be compiled for them.

        with pipeline.recorded(pipe.unet) as calls:
            pipe(prompt, num_inference_steps=1)
            pipe(prompt, num_inference_steps=1, height=768)
        compiled = compile(pipe.unet, **calls.inputs)

    Calls return their usual results. Only calls of the module itself are recorded, not those of its other methods.

    Raises:
        TypeError: ``module`` is not an ``nn.Module``.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"pipeline.recorded takes an nn.Module, got {kind_of(module)}")
    calls = Calls(module)

    def record_call(_: torch.nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        try:
            calls.seen.append(Call.from_inputs(bind_args(module, args, kwargs), (len(args), frozenset(kwargs))))
        except ValueError as error:  # the larger program goes on
            calls.refused = unnamed_fields_error(error)
        if calls.example is None:
            calls.example = tree_map_only(torch.Tensor, _copy_outside_inference_mode, (args, kwargs))

    handle = module.register_forward_pre_hook(record_call, prepend=True, with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def _copy_outside_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor that is not an inference tensor, even if inference mode is active."""
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _path_text(path: tuple[Leaf, ...]) -> str:
    """Return the path of a value in the inputs as text: ``sample``, ``added['time_ids']``."""
    first, *rest = path
    return f"{first.key}{keystr(tuple(rest))}"


def _nest_leaf_entries(value: Argument, entries: Iterator[Argument]) -> Argument:
    """Return the ``dynamic_shapes`` of ``value``: ``entries``, one for each of its leaves, nested as the leaves are."""
    parts, structure = tree_flatten(value, is_leaf=lambda part: part is not value)
    if len(parts) == 1 and parts[0] is value:
        return next(entries)
    return nest_entries(value, [_nest_leaf_entries(part, entries) for part in parts], structure)


def _can_share_program(first: Leaf, second: Leaf) -> bool:
    """Return whether one program can accept both values of an input: only sizes and ints from 0 on may differ."""
    if isinstance(first, TensorKind) and isinstance(second, TensorKind):
        return first.dtype == second.dtype and len(first.shape) == len(second.shape)
    if type(first) is type(second) is int:
        return bool(first == second or min(first, second) >= 0)
    with suppress(Exception):  # values of the user's own compare as they like
        return first is second or (type(first) is type(second) and bool(first == second))
    return False


def _dim_spanning(sizes: Sequence[int]) -> Argument:
    """Return a ``Dim`` from the smallest to the largest of these sizes; None if all sizes are equal."""
    low, high = min(sizes), max(sizes)
    return None if low == high else Dim.DYNAMIC(min=low, max=high)
