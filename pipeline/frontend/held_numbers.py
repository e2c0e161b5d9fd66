"""Let Python read numbers that a model holds: a stride, or a flag, in a buffer of one element.

torch creates a symbol for each number that is read while it traces, and fails where Python decides by one. A buffer
that the model never writes has one value, so that its number is what it is in the model; so is what Python computes
from it before it reads. The program notes the names: with another number there, the graph would be another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from attrs import define, field
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument, Function, Target
from pipeline.frontend.ratios import RATIO

FROM: Final = "_pipeline_buffers"
"""The attribute of fakes with the names of the buffers that their values come from."""

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
    """

    names: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    storages: dict[StorageWeakRef, frozenset[str]] = field(factory=dict)
    own: dict[int, frozenset[str]] = field(factory=dict)

    def start(self, written: frozenset[str] = frozenset()) -> None:
        """Forget what is known of the last export."""
        self.names, self.written = frozenset(), written
        self.storages.clear()


_reads: ContextVar[Reads | None] = ContextVar("numbers of buffers", default=None)


@contextmanager
def held_numbers() -> Iterator[Reads]:
    """A context in which models that are exported may read the numbers of their buffers."""
    found = Reads()
    token = _reads.set(found)
    try:
        yield found
    finally:
        _reads.reset(token)


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
    """Give the stand-in of a buffer of one element the value that is read from it. The buffer may be one itself."""
    known = value.constant if isinstance(value, FakeTensor) else value
    if isinstance(fake, FakeTensor) and known is not None and is_number(known):
        fake.constant = known.detach().clone()


def is_number(buffer: torch.Tensor) -> bool:
    """Whether a buffer has one element, which Python may read as a number."""
    return buffer.numel() == 1 and buffer.layout == torch.strided and not buffer.is_meta and not buffer.is_complex()


def valued(own: Callable[..., dict[str, torch.Tensor]]) -> Callable[..., dict[str, torch.Tensor]]:
    """Wrap torch.export's making of fake parameters and buffers: buffers of one element carry their values."""

    def fakes(mode: FakeTensorMode, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        made, reads = own(mode, module), _reads.get()
        if reads is None:
            return made
        for name, buffer in module.named_buffers(remove_duplicate=False):
            fake, names = made[name], reads.own.get(id(buffer), frozenset())
            if is_number(buffer) and isinstance(fake, FakeTensor) and names:
                reads.storages[StorageWeakRef(fake.untyped_storage())] = names
                fake.constant = None
                if not names & reads.written:
                    with_value(fake, buffer)
                    vars(fake)[FROM] = names
        return made

    return fakes


def reading(dispatch: Function) -> Callable[..., object]:
    """Wrap `FakeTensorMode.dispatch` to follow what comes from buffers, and to note what Python reads of it."""

    def dispatch_and_follow(
        mode: object, func: Target, types: object, args: Argument = (), kwargs: Argument = None
    ) -> object:
        names = _names(args)
        made = dispatch(mode, func, types, args, kwargs)
        if names and isinstance(func, OpOverload):
            if READS.intersection(func.tags):
                _note(names, made)
            known = [each for each in tree_leaves(made) if isinstance(each, FakeTensor) and _has_value(each)]
            if func._schema.is_mutable:
                _written(args, _names(args[1:]) if known else frozenset())
            for each in known:
                vars(each)[FROM] = names
        return made

    return dispatch_and_follow


def _names(args: Argument) -> frozenset[str]:
    """The buffers that the values of a call's tensors come from, of those whose values are known."""
    found: frozenset[str] = frozenset()
    for arg in args:
        if isinstance(arg, FakeTensor):
            found |= vars(arg)[FROM] if FROM in vars(arg) and _has_value(arg) else frozenset()
        elif type(arg) in (list, tuple):
            found |= _names(arg)
    return found


def _has_value(tensor: FakeTensor) -> bool:
    """Whether a number that is read from a tensor is known, or may be after some more operators."""
    return tensor.constant is not None or tensor.item_memo is not None or RATIO in vars(tensor)


def _written(args: Argument, names: frozenset[str]) -> None:
    """Note a write to a buffer. What is written to a tensor with a value counts as read, since its views may be."""
    reads = _reads.get()
    if reads is not None and isinstance(args[0], FakeTensor):
        reads.written |= reads.storages.get(StorageWeakRef(args[0].untyped_storage()), frozenset())
        reads.names |= names


def _note(names: frozenset[str], read: object) -> None:
    """Note what is read, unless torch has made a symbol for it."""
    reads = _reads.get()
    if reads is not None and not free_unbacked_symbols(read):
        reads.names |= names
