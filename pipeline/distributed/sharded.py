"""Export this rank's part of a sharded module: operators on local tensors, and collectives between them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
import torch.distributed as dist
from attrs import evolve, field, frozen
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from pipeline.aten.collectives import process_groups
from pipeline.aten.types import Argument
from pipeline.errors import CaptureError
from pipeline.export_fixes.interrupts import undo_at_exit
from pipeline.frozen import FrozenDict
from pipeline.program import Program
from pipeline.records.sharding import Layout, Sharding
from pipeline.runtime.ranks import collectives_run_on_host, group_ranks

WRAPPERS: Final = {
    "FSDPModule": "whose hooks gather its parameters for each call",
    "FullyShardedDataParallel": "whose hooks gather its parameters for each call",
    "DistributedDataParallel": "which synchronizes gradients",
}
"""torch's wrappers of modules for training, which cannot be compiled."""
UNWRAPPED: Final = "compile the module without this wrapper: shard it by parallelize_module, or not at all"


@frozen(eq=False)
class ShardedTensor:
    """A parameter or buffer of a model that is a DTensor, and where its module registers it.

    registered: the module's dict ``_parameters`` or ``_buffers``. name: the key of ``dtensor`` in this dict.
    """

    registered: MutableMapping[str, Argument]
    name: str
    dtensor: Argument

    def replace(self, value: object) -> None:
        """Register another tensor in the module under the name of this parameter or buffer."""
        self.registered[self.name] = value


@frozen(eq=False)
class LocalExport:
    """The ``args`` and ``kwargs`` of an export, with local tensors in place of DTensors.

    inputs, outputs: (index, layout) of each input or output of the model that is a DTensor before the export.
    """

    args: Sequence[object]
    kwargs: Mapping[str, object] | None
    inputs: tuple[tuple[int, Layout], ...] = ()
    outputs: list[tuple[int, Layout]] = field(factory=list)

    def add_sharding(self, program: Program) -> Program:
        """Return the program with a `Sharding`: its rank, process groups, and the layouts of DTensors among inputs and
        outputs. A program without collectives and DTensors is returned unchanged."""
        names = process_groups(program.graph.nodes)
        if not (names or self.inputs or self.outputs):
            return program
        if not dist.is_available() or not dist.is_initialized():  # an ExportedProgram: modules of it are refused
            return program
        groups = {name: group_ranks(name) for name in names}
        rank = Sharding(dist.get_rank(), dist.get_world_size(), FrozenDict(groups), self.inputs, tuple(self.outputs))
        return evolve(program, sharding=rank)


@contextmanager
def use_local_tensors(
    model: object, args: Sequence[object], kwargs: Mapping[str, object] | None, device: str | None = None
) -> Iterator[LocalExport]:
    """Return a context for exporting a module: in it, local tensors replace parameters and inputs that are DTensors,
    and collectives are operators. Without an initialized torch.distributed nothing changes.

    device: the device that the model is captured on, to be checked against the mesh of its DTensors; None: no check.
    """
    if not dist.is_available() or not dist.is_initialized():
        yield LocalExport(args, kwargs)
        return
    from pipeline.distributed.collectives import trace_collectives

    if "torch.distributed.tensor" not in sys.modules:  # then nothing is a DTensor
        with trace_collectives():
            yield LocalExport(args, kwargs)
        return
    from torch.distributed.tensor import DTensor

    given, form = tree_flatten((tuple(args), dict(kwargs or {})))
    wholes = [value if isinstance(value, DTensor) else None for value in given]
    layouts = tuple((i, tensor_layout(value)) for i, value in enumerate(wholes) if value is not None)
    with trace_collectives():
        if not isinstance(model, nn.Module):
            yield LocalExport(args, kwargs)
            return
        places = _sharded_tensors(model)
        _check_no_training_wrapper(model)
        _check_device(places, device)
        own = [value.to_local() if isinstance(value, DTensor) else value for value in given]
        positional, named = tree_unflatten(own, form)
        local = LocalExport(positional, named, layouts)
        by_path = dict(zip(input_paths(given, form), wholes, strict=True))
        with _run_on_local_tensors(model, places, by_path, local):
            yield local


def input_paths(leaves: Sequence[object], structure: Argument) -> list[tuple[object, ...]]:
    """Return each leaf's pytree path in ``(args, kwargs)``, which was flattened to ``leaves`` and ``structure``."""
    from torch.utils._pytree import tree_flatten_with_path

    return [tuple(map(str, path)) for path, _ in tree_flatten_with_path(tree_unflatten(leaves, structure))[0]]


def _check_no_training_wrapper(model: nn.Module) -> None:
    """Raise a CaptureError if the model contains a wrapper for training, which a compiled program does not run."""
    for each in model.modules():
        for kind in type(each).__mro__:
            if kind.__name__ in WRAPPERS and kind.__module__.startswith("torch."):
                why = f"the model is wrapped in {kind.__name__}, {WRAPPERS[kind.__name__]}, as no compiled program does"
                raise CaptureError(why, UNWRAPPED)


def _check_device(sharded: Sequence[ShardedTensor], device: str | None) -> None:
    """Raise a CaptureError if ``device`` is not the device type of the mesh that the module is sharded over."""
    found = next((each.dtensor.device_mesh.device_type for each in sharded), None)
    if device is not None and found is not None and torch.device(device).type != found:
        why = f"the model is sharded over a DeviceMesh of {found}, but is captured with device={device}"
        raise CaptureError(why, f"shard it over a DeviceMesh of {device}, one device for each rank, or omit device")


def check_call_is_safe(model: nn.Module) -> None:
    """Raise a CaptureError if a call of the model would crash the process: with the backend gloo, torch 2.11 reads a
    GPU tensor's address as CPU memory."""
    places = _sharded_tensors(model) if "torch.distributed.tensor" in sys.modules else []
    meshes = (each.dtensor.device_mesh for each in places if each.dtensor.device_mesh.device_type == "cuda")
    if any(collectives_run_on_host(group.group_name) for mesh in meshes for group in mesh.get_all_groups()):
        why = f"{type(model).__name__} is sharded over GPUs with the backend gloo, and a call would crash this process"
        raise CaptureError(why, 'use the backend "nccl", or pipeline.compile(model, …), which does not call it')


def tensor_layout(tensor: Argument) -> Layout:
    """Return the layout of a DTensor.

    Raises:
        CaptureError: each rank holds a summand of the tensor (``Partial``), or its parts are interleaved.
    """
    placements = []
    for each in tensor.placements:
        if not (each.is_replicate() or (each.is_shard() and type(each).__name__ == "Shard")):
            why = f"an input or output is a DTensor with placement {each}; programs support only Shard and Replicate"
            raise CaptureError(why, "redistribute it: x.redistribute(placements=[Replicate()])")
        placements.append(each.dim if each.is_shard() else None)
    mesh, sizes = tensor.device_mesh, tuple(tensor.shape)
    ranks, shape = tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh.shape)
    static = all(isinstance(size, int) for size in sizes)
    names = tuple(mesh.mesh_dim_names or ())
    return Layout(mesh.device_type, shape, ranks, names, tuple(placements), sizes if static else ())


def _sharded_tensors(model: nn.Module) -> list[ShardedTensor]:
    from torch.distributed.tensor import DTensor

    spaces = (space for each in model.modules() for space in (each._parameters, each._buffers))
    return [ShardedTensor(space, *item) for space in spaces for item in space.items() if isinstance(item[1], DTensor)]


@contextmanager
def _run_on_local_tensors(
    model: nn.Module, state: Sequence[ShardedTensor], inputs: Mapping[tuple[object, ...], Argument], export: LocalExport
) -> Iterator[None]:
    """Return a context in which the model has local parameters, and its ``forward`` takes and returns local tensors.
    This ``forward`` converts them to DTensors, calls the original ``forward``, and converts the results back.

    state: the parameters and buffers to replace by their local tensors. inputs: by pytree path, each input that is a
        DTensor, or None for another input. export: receives the layouts of the outputs that are DTensors.
    """
    local: dict[int, Argument] = {}
    for each in state:
        if id(each.dtensor) not in local:
            tensor, kept = each.dtensor.detach().to_local(), isinstance(each.dtensor, nn.Parameter)
            local[id(each.dtensor)] = nn.Parameter(tensor, requires_grad=False) if kept else tensor
    space, before, forward = vars(model), vars(model).get("forward"), model.forward

    @functools.wraps(forward, updated=())
    def called(*args: Argument, **kwargs: Argument) -> Argument:
        from pipeline.distributed.functions import LocalFunctions

        held = [each.registered[each.name] for each in state]
        whole = {id(value): _as_dtensor(each.dtensor, value) for each, value in zip(state, held, strict=True)}
        given, form = tree_flatten((args, kwargs))
        paths = input_paths(given, form)
        own = [_as_dtensor(inputs.get(path), value) for path, value in zip(paths, given, strict=True)]
        positional, named = tree_unflatten(own, form)
        try:
            for each, value in zip(state, held, strict=True):
                each.replace(whole[id(value)])
            with LocalFunctions():
                return _local_results(forward(*positional, **named), export)
        finally:
            for each, value in zip(state, held, strict=True):
                each.replace(value)

    def restore() -> None:
        space.pop("forward", None)
        space.update({} if before is None else {"forward": before})
        for each in state:
            each.replace(each.dtensor)

    with undo_at_exit(restore):
        space["forward"] = called
        for each in state:
            each.replace(local[id(each.dtensor)])
        yield


def _as_dtensor(dtensor: Argument, local_tensor: Argument) -> Argument:
    """Return ``local_tensor``, a weight or input in an export, as a DTensor with the layout of ``dtensor``, the model's
    original; unchanged if ``dtensor`` is None. Dynamic sizes of the local tensor are assumed equal on all ranks."""
    from torch.distributed.tensor import DTensor

    if dtensor is None:
        return local_tensor
    if all(isinstance(size, int) for size in local_tensor.shape):
        return DTensor(local_tensor, dtensor._spec, requires_grad=False)
    return DTensor.from_local(local_tensor, dtensor.device_mesh, dtensor.placements, run_check=False)


def _local_results(results: Argument, export: LocalExport) -> Argument:
    """Return ``results`` with local tensors in place of DTensors; store the DTensors' layouts in ``export.outputs``."""
    from torch.distributed.tensor import DTensor

    leaves = tree_leaves(results)
    export.outputs[:] = [(i, tensor_layout(value)) for i, value in enumerate(leaves) if isinstance(value, DTensor)]
    return tree_map(lambda value: value._local_tensor if isinstance(value, DTensor) else value, results)
