"""Read what a tensor holds, and not what it held before it was written: ``n = torch.tensor([0]); n[0] = x; n.item()``.

torch keeps the value beside a tensor that Python spells out, and takes it where a number is read. A write through a
view leaves it there: the graph then had the number from before.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import _ProxyTensor, get_proxy_slot, set_proxy_slot
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.aten.types import Argument, Target
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.patching import Kernel

_written: ContextVar[set[StorageWeakRef] | None] = ContextVar("memory that data was written to", default=None)


def writes_noted() -> AbstractContextManager[object]:
    """A context of one trace, in which writes are noted."""
    return set_to(_written, set())


def fresh(own: Kernel) -> Kernel:
    """Wrap torch's tracing of a call: what has been written has no value from before."""

    def proxy_call(mode: Argument, func: Target, pre_dispatch: bool, args: Argument, kwargs: Argument) -> object:
        written = _written.get()
        if written is not None and args and isinstance(args[0], FakeTensor):
            if func._schema.is_mutable and not all(_is_constant(arg, mode.tracer) for arg in args):
                written |= _memories(args[0])
            elif torch.Tag.data_dependent_output in func.tags and _memory(args[0]) in written:
                _refresh(args[0], mode.tracer)
        return own(mode, func, pre_dispatch, args, kwargs)

    return proxy_call


def _memory(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _memories(tensor: FakeTensor) -> set[StorageWeakRef]:
    """The memory of a stand-in, and of those whose values lie where its own does: beside a `Constant`, a view's is not
    its base's."""
    if tensor.constant is None:
        return {_memory(tensor)}
    alike = tensor.fake_mode.fake_tensor_converter.constant_storage_mapping.get(_memory(tensor.constant), ())
    return {_memory(tensor), *(_memory(each) for each in (ref() for ref in alike) if each is not None)}


def _is_constant(arg: object, tracer: Argument) -> bool:
    """Whether an argument is no tensor, or one whose value torch keeps."""
    return not isinstance(arg, torch.Tensor) or getattr(get_proxy_slot(arg, tracer, None), "constant", None) is not None


def _refresh(tensor: FakeTensor, tracer: Argument) -> None:
    """Keep the value that the stand-in has by now, which may be none."""
    slot = get_proxy_slot(tensor, tracer, None)
    if slot is not None and slot.constant is not None:
        set_proxy_slot(tensor, tracer, _ProxyTensor(slot.proxy, tensor.constant))
