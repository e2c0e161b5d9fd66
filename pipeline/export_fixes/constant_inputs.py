"""Capture a model with inputs that have one value: `pipeline.Constant`.

torch follows the values of tensors of one element that are made while it traces, and gives Python their numbers. Here
it does so for these inputs, for what is computed from them, and for tensors that are filled with numbers, of any
number of elements. The graph still computes it all from a placeholder, which then becomes a constant of the program,
so that it is folded like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from pipeline.aten.op_predicates import LIFTS
from pipeline.aten.types import Argument, Function, Target
from pipeline.errors import CaptureError
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.patching import Kernel
from pipeline.inputs import Constant

aten = torch.ops.aten

LARGEST: Final = 1 << 20
"""The most elements of a tensor whose value is followed."""
MAKING: Final = frozenset(
    getattr(aten, name)
    for name in ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "tril_indices", "triu_indices", "zeros")
)
"""Operators that make a tensor of numbers alone."""

_values: ContextVar[Mapping[int, torch.Tensor] | None] = ContextVar("values of inputs", default=None)


def is_constant(value: object) -> bool:
    """Whether an input is a `Constant`."""
    return isinstance(value, Constant)


def taken_out(
    args: tuple[object, ...], kwargs: dict[str, Argument]
) -> tuple[tuple[object, ...], dict[str, Argument], dict[int, Constant]]:
    """The inputs with tensors in place of constants, and the constants by the places of their leaves."""
    leaves, structure = tree_flatten((args, kwargs), is_leaf=is_constant)
    found = {i: leaf for i, leaf in enumerate(leaves) if is_constant(leaf)}
    if not found:
        return args, kwargs, {}
    positional, named = tree_unflatten([x.value.clone() if is_constant(x) else x for x in leaves], structure)
    return positional, named, found


def known(constants: Mapping[int, Constant]) -> AbstractContextManager[object]:
    """A context in which the inputs at these places, of a model that is exported, have values."""
    return set_to(_values, {place: constant.value for place, constant in constants.items()} or None)


def valued(own: Kernel) -> Kernel:
    """Wrap torch.export's making of fake inputs: those of constants carry their values."""

    def fakes(module: object, args: object, kwargs: object, *rest: Argument, **options: Argument) -> Argument:
        made, values = own(module, args, kwargs, *rest, **options), _values.get() or {}
        for place, fake in enumerate(tree_leaves(made[1:3]) if values else ()):
            if place in values:
                if not all(isinstance(size, int) for size in fake.shape):
                    why = f"dynamic_shapes lets sizes vary of the input that is {Constant(values[place])!r}"
                    raise CaptureError(why, "a Constant has one value: pass None for it")
                with_value(fake, values[place].cpu().clone())
        return made

    return fakes


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its elements in the CPU's memory, and not too many."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu" and _is_small(tensor)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its elements in memory, and not too many."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and tensor.numel() <= LARGEST


def with_value(fake: FakeTensor, value: torch.Tensor) -> FakeTensor:
    """A fake tensor with its value, which it loses when it is written to."""
    fake.constant = value
    fake.fake_mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake


def following(dispatch: Function) -> Function:
    """Wrap `FakeTensorMode.dispatch`: what is computed from values alone, or filled with numbers, has a value.

    Values are on the CPU, whatever device their tensors are on, or seem to be on: where there is a GPU, torch makes
    literals for it on the GPU itself.
    """

    def dispatch_and_follow(
        mode: FakeTensorMode, func: Target, types: object, args: Argument = (), kwargs: Argument = None
    ) -> object:
        if not _values.get() or not isinstance(func, OpOverload):
            return dispatch(mode, func, types, args, kwargs)
        leaves, structure = tree_flatten((args, kwargs or {}))
        if not _may_be_followed(func, leaves):
            return dispatch(mode, func, types, args, kwargs)
        fakes = {id(x.constant): x for x in leaves if isinstance(x, FakeTensor)}
        with no_dispatch():
            positional, named = tree_unflatten([_on_cpu(x) for x in leaves], structure)
            found = func(*positional, **named)
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        if not all(id(x) in fakes or is_followed(x) for x in made):
            return dispatch(mode, func, types, args, kwargs)
        device = device_of(leaves)
        return tree_map_only(torch.Tensor, lambda x: fakes[id(x)] if id(x) in fakes else faked(mode, x, device), found)

    return dispatch_and_follow


def _may_be_followed(func: OpOverload, leaves: Sequence[object]) -> bool:
    """Whether an operator computes from values alone, or makes a tensor of numbers, or of a literal."""
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in leaves):
        return False
    if not tensors:
        return func.overloadpacket in MAKING
    if torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in ("aten", "prims"):
        return False
    if func in LIFTS and not isinstance(tensors[0], FakeTensor):
        return _is_small(tensors[0])
    known = all(isinstance(x, FakeTensor) and x.constant is not None for x in tensors)
    return known and (torch.Tag.inplace_view not in func.tags or func is aten.detach_.default)


def _on_cpu(leaf: Argument) -> Argument:
    if isinstance(leaf, FakeTensor):
        return leaf.constant
    if isinstance(leaf, torch.Tensor):
        return leaf.cpu().clone()  # the graph has the literal itself, which nothing may write to
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def device_of(leaves: Sequence[object]) -> torch.device:
    """The device of a result: the one that is named, or else that of the tensors, a GPU before the CPU."""
    named = [x for x in leaves if isinstance(x, torch.device)]
    tensors = [x.device for x in leaves if isinstance(x, torch.Tensor)]
    return next(iter((*named, *sorted(tensors, key=lambda device: device.type == "cpu"))), torch.device("cpu"))


def faked(mode: FakeTensorMode, value: torch.Tensor, device: torch.device) -> FakeTensor:
    with no_dispatch():
        elements = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return with_value(FakeTensor(mode, elements, device), value)
