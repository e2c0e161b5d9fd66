"""Let Python read numbers that a model holds: strides, or a flag, in a buffer of few elements, or in a tensor beside.

torch creates a symbol for each number that is read while it traces, and fails where Python decides by one. A buffer
that the model never writes has one value, so that its number is what it is in the model; so is what Python computes
from it before it reads. The program notes the names: with another number there, the graph would be another.

Values lie on the CPU, whatever device their tensors are on: those of a `Constant` do, and both may meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

import torch
from attrs import define, field
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.aten.op_predicates import LIFTS
from pipeline.aten.types import Argument, Function, Target
from pipeline.export_fixes.constant_inputs import device_of, faked
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.symbolic_division import RATIO

FROM: Final = "_pipeline_buffers"
"""The attribute of fakes with the names of the buffers that their values come from."""

FEW: Final = 64
"""The most elements of a tensor whose numbers are read."""

SEVERAL: Final = (list, tuple)

READS: Final = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""The tags of operators that make a number or a size of values."""


@define
class Reads:
    """The buffers whose numbers an export may read, and has read.

    Attributes:
        names: those whose number was read.
        written: those that the model writes: their number is another in each call.
        storages: the buffers of each memory in which stand-ins for them lie.
        own: the model's names of each of its buffers, by the tensor's id. Dynamo has other names.
        beside: stand-ins for tensors that the model holds beside its buffers, which torch forgets otherwise.
    """

    names: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    storages: dict[StorageWeakRef, frozenset[str]] = field(factory=dict)
    own: dict[int, frozenset[str]] = field(factory=dict)
    beside: list[FakeTensor] = field(factory=list)

    def start(self, written: frozenset[str] = frozenset()) -> None:
        """Forget what is known of the last export."""
        self.names, self.written = frozenset(), written
        self.storages.clear()
        self.beside.clear()


_reads: ContextVar[Reads | None] = ContextVar("numbers of buffers", default=None)


def held_numbers() -> AbstractContextManager[Reads]:
    """A context in which models that are exported may read the numbers of their buffers."""
    return set_to(_reads, Reads())


def exported_again(export: Callable[[], Argument], model: torch.nn.Module) -> Argument:
    """Export a model, and once more where it writes a buffer whose number it reads, which then has no known number."""
    reads = _reads.get()
    if reads is None:
        return export()
    reads.start()
    reads.own = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        reads.own[id(buffer)] = reads.own.get(id(buffer), frozenset()) | {name}
    exported = export()
    mutated = reads.written.union(exported.graph_signature.buffers_to_mutate.values())
    if both := reads.names & mutated:
        reads.start(both)
        exported = export()
    return exported


def with_value(fake: torch.Tensor, value: torch.Tensor) -> None:
    """Give the stand-in of a buffer of few elements the values that are read from it. The buffer may be one itself."""
    known = value.constant if isinstance(value, FakeTensor) else value
    if isinstance(fake, FakeTensor) and known is not None and has_few(known):
        fake.constant = known.detach().to("cpu", copy=True)


def has_few(tensor: torch.Tensor) -> bool:
    """Whether a tensor has few elements, which Python may read as numbers."""
    return (
        0 < tensor.numel() <= FEW and tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_complex()
    )


def keeping(own: Callable[[FakeTensorMode, torch.Tensor], bool]) -> Callable[[FakeTensorMode, torch.Tensor], bool]:
    """Wrap torch's question whether a tensor that was computed from known numbers stays known: one of few does."""
    return lambda mode, made: own(mode, made) or (has_few(made) and not mode.is_our_fake(made))


def valued(own: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    """Wrap torch.export's making of fake parameters and buffers: buffers of few elements carry their values."""

    def fakes(mode: FakeTensorMode, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        made, reads = own(mode, module), _reads.get()
        if reads is None:
            return made
        for name, buffer in module.named_buffers(remove_duplicate=False):
            fake, names = made[name], reads.own.get(id(buffer), frozenset())
            if has_few(buffer) and isinstance(fake, FakeTensor) and names:
                reads.storages[StorageWeakRef(fake.untyped_storage())] = names
                fake.constant = None
                if not names & reads.written:
                    with_value(fake, buffer)
                    vars(fake)[FROM] = names
                    if fake.constant is not None:  # where views of its values lie
                        reads.storages[StorageWeakRef(fake.constant.untyped_storage())] = names
        return made

    return fakes


def reading(dispatch: Function) -> Callable[..., object]:
    """Wrap `FakeTensorMode.dispatch` to follow what comes from buffers, and to note what Python reads of it."""

    def dispatch_and_follow(
        mode: FakeTensorMode, func: Target, types: object, args: Argument = (), kwargs: Argument = None
    ) -> object:
        names, places = _names(args), _places(func, args)
        _hold(mode, func, args)
        made = _in_its_place(mode, (args, kwargs), _on_cpu(mode, dispatch(mode, func, types, args, kwargs)))
        if names and isinstance(func, OpOverload):
            if READS.intersection(func.tags):
                _note(names, made)
            known = [each for each in tree_leaves(made) if isinstance(each, FakeTensor) and _has_value(each)]
            if places:
                _written(places, _names(args[1:]) if known else frozenset())
            for each in known:
                vars(each)[FROM] = names
        return made

    return dispatch_and_follow


def _hold(mode: FakeTensorMode, func: Target, args: Argument) -> None:
    """Give the stand-ins of tensors that a model holds beside its buffers their values, if they are not written to."""
    reads = _reads.get()
    if reads is None or not isinstance(func, OpOverload) or func in LIFTS:
        return
    for arg in args:
        value = arg if type(arg) is torch.Tensor else _value_elsewhere(mode, arg)
        if value is not None and has_few(value) and not value.requires_grad:
            fake = mode.fake_tensor_converter.from_real_tensor(mode, arg)
            if fake.constant is None and not func._schema.is_mutable:
                fake.constant = value.to("cpu", copy=True)
                mode.fake_tensor_converter.add_constant_storage_mapping(fake)
                reads.beside.append(fake)


def _value_elsewhere(mode: FakeTensorMode, tensor: object) -> torch.Tensor | None:
    """The value of a stand-in on a GPU that the machine does not have, which another mode made."""
    return tensor.constant if isinstance(tensor, FakeTensor) and not mode.is_our_fake(tensor) else None


def _on_cpu(mode: FakeTensorMode, made: Argument) -> Argument:
    """What was made, its values on the CPU: torch makes a literal's on the GPU, and what is moved there."""
    for each in made if type(made) in SEVERAL else [made]:
        if isinstance(each, FakeTensor) and each.constant is not None and each.constant.device.type != "cpu":
            each.constant = each.constant.cpu()
            mode.fake_tensor_converter.add_constant_storage_mapping(each)
    return made


def _in_its_place(mode: FakeTensorMode, given: Argument, made: Argument) -> Argument:
    """What is made of values is on their stand-ins' device, wherever the values lie: that of a GPU elsewhere."""
    if not any(
        isinstance(x, FakeTensor) and x.constant is not None for x in (made if type(made) in SEVERAL else [made])
    ):
        return made
    leaves = tree_leaves(given)
    known = ((x.device, x.constant) for x in leaves if isinstance(x, FakeTensor))
    if all(value is None or device == value.device for device, value in known):
        return made
    device = device_of(leaves)
    return tree_map_only(FakeTensor, lambda x: x if x.device == device else faked(mode, x.constant, device), made)


def _names(args: Argument) -> frozenset[str]:
    """The buffers that the values of a call's tensors come from, of those whose values are known."""
    found: frozenset[str] = frozenset()
    for arg in args:
        if isinstance(arg, FakeTensor):
            found |= vars(arg)[FROM] if FROM in vars(arg) and _has_value(arg) else frozenset()
        elif type(arg) in SEVERAL:
            found |= _names(arg)
    return found


def _has_value(tensor: FakeTensor) -> bool:
    """Whether a number that is read from a tensor is known, or may be after some more operators."""
    return tensor.constant is not None or tensor.item_memo is not None or RATIO in vars(tensor)


def _places(func: Target, args: Argument) -> tuple[StorageWeakRef, ...]:
    """Where what a call writes to lies: the memory of its stand-in, and that of its values before the call."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable or not isinstance(args[0], FakeTensor):
        return ()
    tensors = [x for x in (args[0], args[0].constant) if x is not None and x.layout == torch.strided]
    return tuple(StorageWeakRef(x.untyped_storage()) for x in tensors)


def _written(places: Sequence[StorageWeakRef], names: frozenset[str]) -> None:
    """Note a write to a buffer. What is written to a tensor with a value counts as read, since its views may be."""
    reads = _reads.get()
    if reads is not None:
        reads.written = reads.written.union(*(reads.storages.get(place, frozenset()) for place in places))
        reads.names |= names


def _note(names: frozenset[str], read: object) -> None:
    """Note what is read, unless torch has made a symbol for it."""
    reads = _reads.get()
    if reads is not None and not free_unbacked_symbols(read):
        reads.names |= names
