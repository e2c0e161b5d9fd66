"""Check the user's model and inputs before the export, so that errors can name the user's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.export import Dim
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument, Function, Spec
from pipeline.compiled import CompiledModule
from pipeline.errors import CaptureError
from pipeline.inputs import Input
from pipeline.records.wording import did_you_mean, kind_of

ENTRY_KINDS = "torch.export.Dim, Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, a number or None"


def check_arguments(args: object, kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return ``args`` and ``kwargs`` as a tuple and a dict; raise `TypeError` for other types."""
    if isinstance(args, torch.Tensor | Input | str | bytes) or not isinstance(args, Sequence):
        raise TypeError(f"args is {kind_of(args)}: pass a tuple of inputs, such as args=(x,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f'kwargs is {kind_of(kwargs)}: pass a dict of inputs by name, such as {{"x": x}}')
    if odd := [name for name in kwargs or () if not isinstance(name, str)]:
        raise TypeError(f"the keys of kwargs must be names of inputs (strings), got {odd[0]!r}")
    if modules := [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.nn.Module)]:
        raise TypeError(f"{kind_of(modules[0])} is among the inputs: make the module an attribute of the model instead")
    return tuple(args), dict(kwargs or {})


def check_module(model: torch.nn.Module) -> None:
    """Raise `TypeError` for an already compiled module, and `CaptureError` if its parameters have no values."""
    if isinstance(model, CompiledModule):
        raise TypeError("the model is already compiled: call it, or pass the original nn.Module to compile it again")
    check_values(chain(model.named_parameters(), model.named_buffers()))


def check_values(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise `CaptureError` for a parameter or buffer without a value: on the meta device, or of a lazy module."""
    for name, tensor in tensors:
        if is_lazy(tensor):
            raise CaptureError(
                f"{name} has no shape yet: it is in a lazy module, which was not called",
                "call the model once with example inputs, model(*args), or load its weights with load_state_dict",
            )
        if tensor.is_meta:
            raise CaptureError(
                f"{name} is on the meta device, so it has a shape but no values",
                'load the model\'s weights first: model.to_empty(device="cpu"), then model.load_state_dict(…)',
            )


def device_chooser(model: torch.nn.Module, inputs: object, fake_device: str | None) -> Callable[[Input], torch.device]:
    """Return a function from an `Input` to its example tensor's device: the Input's own, else that of the model's
    tensors, else that of other inputs. It is the CPU if the capture traces for another device (``fake_device``)."""
    cpu = torch.device("cpu")
    if fake_device is not None:
        return lambda _: cpu
    weights = (tensor.device for tensor in chain(model.parameters(), model.buffers()))
    others = (v.device for v in tree_leaves(inputs) if isinstance(v, torch.Tensor) and v.device.type != "cpu")
    home = next(weights, None) or next(others, cpu)
    return lambda given: given.device or home


def bind_args(model: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the inputs by the names of ``forward``'s parameters, as in torch.export's dynamic_shapes. If
    ``forward`` does not accept the inputs, raise a `TypeError` that lists the parameters."""
    signature = inspect.signature(model.forward)
    try:
        return dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        takes = f"{type(model).__name__}.forward({', '.join(signature.parameters)})"
        raise TypeError(f"{takes} rejects the inputs: {error}; {_inputs_hint(signature, args, kwargs)}") from None


def _inputs_hint(signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """Return a hint for inputs that ``forward`` does not accept: what to pass instead, or what was passed."""
    if args and all(type(size) is int for size in args):
        return f"{args} are numbers; for a tensor of this shape, pass args=(pipeline.Input(shape={args}),)"
    known = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_POSITIONAL}
    if unknown := [name for name in kwargs if name not in known]:
        return f"there is no input {unknown[0]!r}{did_you_mean(unknown[0], known, ': ')}"
    given = ", ".join([*map(kind_of, args), *(f"{name}={kind_of(value)}" for name, value in kwargs.items())])
    return f"given: {given}" if given else "pass its inputs: args=(x,), or kwargs={…} by name"


def check_dynamic_shapes(
    model: torch.nn.Module, inputs: Mapping[str, object], shapes: object, *, entries: bool = True
) -> None:
    """Raise an error if ``shapes`` names missing inputs or dims, so that every entry has an effect. ``entries``: also
    check the type of each dim's entry.

    Raises:
        TypeError: ``shapes`` or an entry has a type that torch.export does not accept.
        ValueError: an entry is for an input or dim that the module does not have, or a container has another length.
    """
    if shapes is None or callable(getattr(shapes, "dynamic_shapes", None)):  # a ShapesCollection has tensors, not names
        return
    for path, value, spec in chain(*(leaves_with_entries(*row) for row in input_entries(model, inputs, shapes))):
        _check_dims(path, len(value.ranges) if isinstance(value, Input) else value.dim(), spec)
        if entries:
            _check_entries(path, spec)


def input_entries(model: torch.nn.Module, inputs: Mapping[str, Any], shapes: object) -> list[tuple[str, Any, object]]:
    """Return (name, value, ``shapes`` entry) for each input; raise the errors of `check_dynamic_shapes`."""
    names = ", ".join(inputs) or "none"
    if isinstance(shapes, Mapping):
        parameters = inspect.signature(model.forward).parameters.values()
        known = {*inputs, *chain(*(inputs.get(p.name, ()) for p in parameters if p.kind is p.VAR_KEYWORD))}
        if unknown := [name for name in shapes if name not in known]:
            raise ValueError(f"dynamic_shapes has {unknown[0]!r}, but {type(model).__name__} has the inputs {names}")
        return [(name, inputs.get(name), spec) for name, spec in shapes.items()]
    if isinstance(shapes, list | tuple):
        if shapes and len(shapes) != len(inputs):
            raise ValueError(f"dynamic_shapes has {len(shapes)} entries, expected {len(inputs)}, for {names}")
        return [(name, inputs[name], spec) for name, spec in zip(inputs, shapes, strict=False)]
    raise TypeError(f"dynamic_shapes is {kind_of(shapes)}: pass a dict by the names of inputs ({names}), or a tuple")


def leaves_with_entries(path: str, value: object, spec: object) -> Iterator[tuple[str, torch.Tensor | Input, object]]:
    """Yield (path, leaf, entry) for each tensor and `Input` in a value that has an entry in ``spec``."""
    if isinstance(value, torch.Tensor | Input):
        if spec is not None:
            yield path, value, spec
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple) and len(value) == len(spec):
        for i, pair in enumerate(zip(value, spec, strict=True)):
            yield from leaves_with_entries(f"{path}[{i}]", *pair)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key in [key for key in value if key in spec]:
            yield from leaves_with_entries(f"{path}[{key!r}]", value[key], spec[key])


def entries_by_dim(spec: Spec) -> dict[int, Argument]:
    """Return a tensor's ``dynamic_shapes`` entries as a dict by dim, without dims that have no entry."""
    pairs = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
    return {dim: entry for dim, entry in pairs if entry is not None}


def _check_dims(path: str, rank: int, spec: object) -> None:
    """Raise an error if a tensor's ``dynamic_shapes`` entry is no container, or has dims that its rank excludes."""
    if not isinstance(spec, Mapping | list | tuple):
        raise TypeError(
            f"dynamic_shapes for {path} is {kind_of(spec)}: pass a dict from dimensions to {ENTRY_KINDS}, or a tuple"
        )
    entries = spec if isinstance(spec, Mapping) else dict(enumerate(spec))
    if not isinstance(spec, Mapping) and len(spec) != rank:
        raise ValueError(f"dynamic_shapes for {path} has {len(spec)} entries, but this input has rank {rank}")
    for dim in entries:
        if not isinstance(dim, int) or not -rank <= dim < rank:
            raise ValueError(f"dynamic_shapes for {path} has dimension {dim!r}, but this input has rank {rank}")


def _check_entries(path: str, spec: Spec) -> None:
    """Raise an error if a dim of a tensor has a ``dynamic_shapes`` entry that torch.export does not accept."""
    for dim, entry in entries_by_dim(spec).items():
        if not isinstance(entry, int | Dim | type(Dim.AUTO)):
            raise TypeError(f"dynamic_shapes for dimension {dim} of {path} is {entry!r}: expected {ENTRY_KINDS}")


def group_varargs_entries(model: torch.nn.Module, inputs: Mapping[str, Argument], shapes: Spec) -> Spec:
    """Return ``shapes`` by position, with a single tuple for all inputs that ``forward`` accepts as ``*args``. Raise
    `ValueError` if the number of entries is not the number of inputs."""
    parameters = inspect.signature(model.forward).parameters.values()
    name = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL and p.name in inputs), None)
    if name is None or not isinstance(shapes, list | tuple):
        return shapes
    first, count = list(inputs).index(name), len(inputs[name])
    whole = first < len(shapes) and isinstance(shapes[first], list | tuple | None)
    if not shapes or (
        len(shapes) == len(inputs) and (whole if count != 1 else _is_varargs_entry(shapes[first], *inputs[name]))
    ):
        return shapes
    if len(shapes) != len(inputs) - 1 + count:
        each = [f"{name}[{i}]" for i in range(count)]
        names = ", ".join(part for other in inputs for part in (each if other == name else [other]))
        raise ValueError(f"dynamic_shapes has {len(shapes)} entries, expected {len(inputs) - 1 + count}, for {names}")
    return (*shapes[:first], tuple(shapes[first : first + count]), *shapes[first + count :])


def _is_varargs_entry(spec: object, value: object) -> bool:
    """Return whether a ``dynamic_shapes`` entry is for a tuple of ``*args``, not for the dims of this one input."""
    if not isinstance(spec, list | tuple) or len(spec) != 1:
        return False
    return not isinstance(value, torch.Tensor | Input) or isinstance(spec[0], Mapping | list | tuple | None)


def group_kwargs_entries(model: torch.nn.Module, shapes: Spec) -> Spec:
    """Return ``shapes`` by the names of ``forward``'s parameters: ``{"other": …}`` becomes ``{"kwargs":
    {"other": …}}`` if ``forward`` accepts it as ``**kwargs``."""
    parameters = inspect.signature(model.forward).parameters
    name = next((n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    others = {n: spec for n, spec in shapes.items() if n not in parameters} if isinstance(shapes, dict) else {}
    if name is None or not others:
        return shapes
    own = {n: spec for n, spec in shapes.items() if n in parameters}
    return {**own, name: {**(own.get(name) or {}), **others}}


def skip_duplicate_kwargs(
    orig: Function, mode: object, module: object, inputs: Argument, shapes: Spec, *rest: Argument, **kwargs: Argument
) -> Argument:
    """Replace torch.export's `make_constraints`: it gets each input of ``**kwargs`` only once, not under two names."""
    twice = [
        name
        for name, value in inputs.items()
        if type(value) is dict and value and all(n in inputs and inputs[n] is v for n, v in value.items())
    ]
    if isinstance(shapes, dict):
        inner = [(shapes[name] or {}).items() for name in twice if name in shapes]
        shapes = {n: s for n, s in shapes.items() if n not in twice} | {n: s for rows in inner for n, s in rows}
    inputs = {name: value for name, value in inputs.items() if name not in twice}
    return orig(mode, module, inputs, shapes, *rest, **kwargs)
