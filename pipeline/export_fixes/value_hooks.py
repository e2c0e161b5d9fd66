"""Wrap torch's functions that must keep or read the known values of fake tensors during an export.
They create fake buffers and inputs, read numbers from proxies, and index by tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import _ProxyTensor, get_proxy_slot, set_proxy_slot
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument, Function, Target
from pipeline.errors import CaptureError
from pipeline.export_fixes.known_values import BUFFERS_ATTRIBUTE, attach_value, has_few_elements, known, known_maximum
from pipeline.export_fixes.patching import Kernel, ModelCall
from pipeline.inputs import Constant


def export_with_known_values(export: Callable[[], Argument], model: torch.nn.Module) -> Argument:
    """Export a model. A number that it reads from a buffer becomes a constant; if it also writes to this buffer, the
    number changes between calls: then export again, with the buffer's elements unknown."""
    state = known.get()
    assert state is not None
    state.reset()
    state.names_by_id = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        state.names_by_id[id(buffer)] = state.names_by_id.get(id(buffer), frozenset()) | {name}
    exported = export()
    mutated = state.written.union(exported.graph_signature.buffers_to_mutate.values())
    if both := state.read_buffers & mutated:
        state.reset(both)
        exported = export()
    return exported


def attach_small_value(fake: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Store the elements of a small tensor in ``fake``, its fake tensor, and return it; ``value`` may be fake, too."""
    elements = value.constant if isinstance(value, FakeTensor) else value
    if isinstance(fake, FakeTensor) and elements is not None and has_few_elements(elements):
        attach_value(fake, elements.detach().to("cpu", copy=True))
    return fake


def fake_buffers_with_values(
    orig: Callable[..., dict[str, torch.Tensor]], mode: FakeTensorMode, module: torch.nn.Module
) -> dict[str, torch.Tensor]:
    """Replace torch.export's creation of fake parameters and buffers: also store values of small buffers in them."""
    made, state = orig(mode, module), known.get()
    assert state is not None
    for name, buffer in module.named_buffers(remove_duplicate=False):
        fake, names = made[name], state.names_by_id.get(id(buffer), frozenset())
        if has_few_elements(buffer) and isinstance(fake, FakeTensor) and names:
            state.storages[StorageWeakRef(fake.untyped_storage())] = names
            fake.constant = None
            if not names & state.written:
                attach_small_value(fake, buffer)
                vars(fake)[BUFFERS_ATTRIBUTE] = names
                if fake.constant is not None:  # where views of its values lie
                    state.storages[StorageWeakRef(fake.constant.untyped_storage())] = names
    return made


def fake_inputs_with_values(
    orig: Kernel, module: object, args: object, kwargs: object, *rest: Argument, **options: Argument
) -> Argument:
    """Replace torch.export's creation of fake inputs: also store the values of `Constant` inputs in them."""
    made, state = orig(module, args, kwargs, *rest, **options), known.get()
    values = state.inputs if state is not None else {}
    for place, fake in enumerate(tree_leaves(made[1:3]) if values else ()):
        if place in values:
            if not all(isinstance(size, int) for size in fake.shape):
                why = f"dynamic_shapes has a range for the input {Constant(values[place])!r}"
                raise CaptureError(why, "a pipeline.Constant has no dynamic sizes: pass None for it in dynamic_shapes")
            attach_value(fake, values[place].cpu().clone())
    return made


def trace_known_number_read(
    orig: Kernel, mode: Argument, func: Target, pre_dispatch: bool, args: Argument, kwargs: Argument
) -> object:
    """Replace torch's ``proxy_call`` (``orig``): if the operator reads a number, let it read the fake tensor's current
    elements. The proxy's copy of the elements is outdated after a write through a view."""
    if torch.Tag.data_dependent_output in func.tags and args and isinstance(args[0], FakeTensor):
        slot = get_proxy_slot(args[0], mode.tracer, None)
        if slot is not None and slot.constant is not None:
            set_proxy_slot(args[0], mode.tracer, _ProxyTensor(slot.proxy, args[0].constant))
    return orig(mode, func, pre_dispatch, args, kwargs)


def skip_known_numbers(specialize: Callable[..., object], graph: Argument) -> object:
    """Run Dynamo's pass ``specialize`` for float inputs; first delete known ints, which it would take for symbols."""
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor) and isinstance(value.item_memo, int):
            value.item_memo = None
    return specialize(graph)


def replace_known_index(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call to trace in place of ``x[i]`` or ``x[i] = y``: a 0-d ``i`` computed from sizes becomes a number.
    Else torch specializes it: torch 2.11 in reads, 2.13 in writes and in reads that have further index tensors."""
    if getattr(func, "__name__", "") in ("__getitem__", "__setitem__") and isinstance(args[0], torch.Tensor):
        args = (args[0], map_index(args[1], _index_with_known_numbers), *args[2:])
    return func, args, kwargs


def map_index(index: Argument, function: Function) -> object:
    """Return a copy of a tensor index in which ``function`` has replaced each item, including the bounds of slices."""
    if isinstance(index, tuple):
        return tuple(map_index(each, function) for each in index)
    if isinstance(index, slice):
        return slice(*(map_index(each, function) for each in (index.start, index.stop, index.step)))
    return function(index)


def _index_with_known_numbers(index: Argument) -> Argument:
    """Return the number that a 0-d index tensor equals, if it is computed from sizes; other items unchanged."""
    number = known_maximum(index) if isinstance(index, FakeTensor) and index.dim() == 0 else None
    return index.item() if isinstance(number, torch.SymInt) else index
