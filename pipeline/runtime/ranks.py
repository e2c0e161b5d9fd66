"""Call a program that is one rank's part of a sharded model: convert DTensors, and check that all ranks agree."""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from itertools import count
from typing import Final, TypeVar
from weakref import ref

import torch
import torch.distributed as dist
from attrs import define, field
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.collectives import is_collective
from pipeline.aten.types import Argument
from pipeline.errors import ExecutionError, error_text
from pipeline.program import Program
from pipeline.records.sharding import Alone, Layout, Sharding
from pipeline.runtime.rank_watchdog import PART, Watchdog, waiting_text

T = TypeVar("T")
log = logging.getLogger(__name__)
_exchanges: Final = count()
"""A counter for the keys under which ranks exchange values."""
_modules: Final = count()
"""A counter of the modules of sharded programs; all ranks create modules in the same order, so numbers agree."""

CAPSULE: Final = b"ncclComm_t"
"""The name that TensorRT requires for a Python capsule with a pointer to an NCCL communicator."""
SAME: Final = "all ranks must make the same calls in the same order, with inputs of the same shapes"


@define(eq=False)
class Ranks:
    """A module's connection to the other ranks that run the same sharded model.

    number, calls: the module's number, equal on all ranks, and the count of its calls with new shapes; both are part of
        the keys by which ranks exchange values. watchdog: ends this process if a call on a GPU hangs.
    """

    program: Program
    sharding: Sharding
    number: int = field(factory=lambda: next(_modules))
    calls: int = 0
    watchdog: Watchdog | None = None

    @classmethod
    def for_program(cls, program: Program) -> Ranks | None:
        """Return the `Ranks` of a sharded program; None for other programs, and if it is measured on one rank.

        Raises:
            ExecutionError: the program is for a rank other than this process, or its process groups do not exist here
                with the same ranks.
        """
        if program.sharding is None or isinstance(program.sharding, Alone):
            return None
        _check_rank(program.sharding)
        return cls(program, program.sharding)

    def attach_to(self, module: torch.nn.Module, on_gpu: bool) -> None:
        """Let a module accept and return DTensors if its program does. On a GPU, create a `Watchdog` for its calls."""
        if on_gpu:
            seconds = PART * _shared_store().timeout.total_seconds()
            itself = ref(self)
            self.watchdog = Watchdog(seconds, lambda: "" if (ranks := itself()) is None else ranks.why_waiting(seconds))
        if self.sharding.inputs:
            module.register_forward_pre_hook(self._to_local_arguments, with_kwargs=True)
        if self.sharding.outputs:
            module.register_forward_hook(self._to_dtensor_results)

    def _to_local_arguments(self, _: object, args: Argument, kwargs: Argument) -> tuple[Argument, Argument]:
        """Return a call's arguments, with DTensors replaced by their local tensors."""
        from torch.distributed.tensor import DTensor

        leaves, form = tree_flatten((args, kwargs))
        for i, layout in self.sharding.inputs:
            if isinstance(leaves[i], DTensor):
                leaves[i] = _to_local_tensor(leaves[i], layout, self.program.inputs[i].name)
        return tree_unflatten(leaves, form)  # type: ignore[no-any-return]

    def _to_dtensor_results(self, _: object, args: object, results: Argument) -> Argument:
        """Return a call's results, with DTensors where the model returns DTensors."""
        from torch.distributed.tensor import DTensor

        leaves, form = tree_flatten(results)
        for i, layout in self.sharding.outputs:
            shape = torch.Size(layout.shape) if layout.shape else None
            stride = torch.empty(shape, device="meta").stride() if shape is not None else None
            how = {"run_check": False, "shape": shape, "stride": stride}
            leaves[i] = DTensor.from_local(leaves[i], _device_mesh(layout), _placements(layout), **how)  # type: ignore[arg-type]
        return tree_unflatten(leaves, form)

    def check_same_shapes(self, inputs: Sequence[object]) -> None:
        """Check that all ranks make this call with the same shapes: wait until each has passed its new shapes to this
        method. Call it only for shapes that are new on this rank.

        Raises:
            ExecutionError: another rank has other shapes, or does not call this within the store's timeout.
        """
        ports = zip(self.program.inputs, inputs, strict=False)
        own = ", ".join(f"{p.name}: {list(v.shape) if isinstance(v, torch.Tensor) else v}" for p, v in ports)
        store, key, before = _shared_store(), self._store_key(), self._store_key(-1)
        self.calls += 1
        store.set(f"{key}/{self.sharding.rank}", own)
        for other in self.other_ranks():
            try:
                found = store.get(f"{key}/{other}").decode()
            except RuntimeError as error:
                why = f"rank {self.sharding.rank} has new shapes ({own}); rank {other} has no new shapes, or has ended"
                raise ExecutionError(f"{why}: {error_text(error)}", SAME) from error
            if found != own:
                raise ExecutionError(f"rank {self.sharding.rank} has shapes {own}; rank {other} has {found}", SAME)
        with suppress(RuntimeError, NotImplementedError):  # all ranks are past it
            store.delete_key(f"{before}/{self.sharding.rank}")

    def watch_launch(self) -> None:
        """Let the watchdog watch the call just launched on the current stream, unless it is being captured."""
        if self.watchdog is not None and not torch.cuda.is_current_stream_capturing():
            mark = torch.cuda.Event()
            mark.record()
            self.watchdog.watch(mark)

    def why_waiting(self, seconds: float) -> str:
        """Return the text that explains why a call has not finished after ``seconds``: which ranks it waits for."""
        return waiting_text(_shared_store(), self._store_key(), self.sharding.rank, self.other_ranks(), seconds)

    def _store_key(self, calls_ahead: int = 0) -> str:
        """Return the key of this call in the store that the ranks share.

        calls_ahead: return the key of the call that many calls later; negative for an earlier call.
        """
        return f"pipeline/{self.number}/{self.calls + calls_ahead}"

    def other_ranks(self) -> Iterator[int]:
        """Yield the other ranks in this rank's process groups."""
        every = {rank for ranks in self.sharding.groups.values() if self.sharding.rank in ranks for rank in ranks}
        yield from sorted(every - {self.sharding.rank})

    def add_rank_to_error(self, error: Exception) -> Exception:
        """Return ``error`` with this rank and the graph node added if a collective failed, or else unchanged."""
        notes = {*getattr(error, "__notes__", ())}
        node = next((n for n in self.program.graph.nodes if is_collective(n) and f"in node {n.name}" in notes), None)
        if node is None or not isinstance(error, RuntimeError):
            return error
        why = f"rank {self.sharding.rank} failed in the collective {node.target} at node {node.name}"
        return ExecutionError(f"{why}: {error_text(error)}", f"look at the other ranks: one may have ended; {SAME}")


def _check_rank(sharding: Sharding) -> None:
    """Raise an ExecutionError if this process is not the rank that ``sharding`` names, or lacks its process groups."""
    if not dist.is_available() or not dist.is_initialized():
        why = f"the program is for {sharding}, but this process has no process group"
        raise ExecutionError(why, "start the processes with torchrun, and call torch.distributed.init_process_group")
    here = Sharding(dist.get_rank(), dist.get_world_size())
    if (here.rank, here.ranks) != (sharding.rank, sharding.ranks):
        raise ExecutionError(f"the program is for {sharding}, but this process is {here}", "load this rank's program")
    for name, ranks in sharding.groups.items():
        try:
            found = group_ranks(name)
        except (LookupError, RuntimeError, ValueError):
            found = ()
        if found != ranks:
            why = f"the program's group {name!r} has the ranks {list(ranks)}, but here it has {list(found) or 'none'}"
            raise ExecutionError(why, "create the same device meshes, in the same order, as when compiling")


def group_ranks(group_name: str) -> tuple[int, ...]:
    """Return the ranks in the process group of this name."""
    return tuple(dist.get_process_group_ranks(find_group(group_name)))


def group_backend(group_name: str) -> str:
    """Return the backend of the process group of this name, such as "nccl"; empty if this process has no such group."""
    try:
        return str(dist.get_backend(find_group(group_name)))
    except (LookupError, RuntimeError, ValueError):
        return ""


def collectives_run_on_host(group_name: str) -> bool:
    """Return whether the collectives of a process group run on the CPU."""
    backend = group_backend(group_name)
    return bool(backend) and "nccl" not in backend


def find_group(group_name: str) -> Argument:
    """Return the process group of this name."""
    return dist.distributed_c10d._resolve_process_group(group_name)  # type: ignore[attr-defined,arg-type]


def _shared_store() -> Argument:
    """Return the default key-value store of torch.distributed, which all ranks read and write."""
    return dist.distributed_c10d._get_default_store()


def nccl_communicator(group_name: str) -> object:
    """Return the NCCL communicator of a process group on the current GPU, in the capsule that TensorRT needs for the
    collectives of an engine.

    All ranks of the group must call this together: if the group has no communicator yet, a collective creates it.

    Raises:
        ExecutionError: the group's backend is not NCCL.
    """
    group = find_group(group_name)
    pointer = getattr(group._get_backend(torch.device("cuda")), "_comm_ptr", None)
    if pointer is None:
        why = f"the engine's collectives need an NCCL process group, but {group_name!r} uses {dist.get_backend(group)}"
        raise ExecutionError(why, "call init_process_group('nccl'), or compile with collectives_in_engine=False")
    if not pointer():
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    form = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return form(("PyCapsule_New", ctypes.pythonapi))(pointer(), CAPSULE, None)


def _to_local_tensor(tensor: Argument, layout: Layout, name: str) -> torch.Tensor:
    """Return this rank's part of a DTensor, the input ``name``; raise an error if its layout is not ``layout``."""
    found = tuple(each.dim if each.is_shard() else None for each in tensor.placements)
    ranks = tuple(tensor.device_mesh.mesh.flatten().tolist())
    if found != layout.placements or ranks != layout.ranks or any(each.is_partial() for each in tensor.placements):
        expected = ", ".join(map(str, _placements(layout)))
        raise ExecutionError(
            f"{name} is a DTensor with placements {tensor.placements} on ranks {list(ranks)}, expected {expected} on "
            f"{list(layout.ranks)}",
            "redistribute it to the placements that the program was compiled for",
        )
    return tensor.to_local()  # type: ignore[no-any-return]


def _placements(layout: Layout) -> list[Argument]:
    """Return a layout as DTensor placements, one for each dim of the mesh: ``Replicate()`` or ``Shard(dim)``."""
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if dim is None else Shard(dim) for dim in layout.placements]


@cache
def _device_mesh(layout: Layout) -> Argument:
    """Return the device mesh of a DTensor's layout. All ranks create it at the first call that returns a DTensor."""
    from torch.distributed.device_mesh import DeviceMesh

    ranks = torch.tensor(layout.ranks).reshape(layout.mesh)
    return DeviceMesh(layout.device, ranks, mesh_dim_names=layout.names or None)


def gather_from_ranks(program: Program, value: T, seconds: float) -> list[T]:
    """Return the ``value`` of each rank in this rank's process group (of all ranks if it is in several groups), in the
    same order on each rank. Return [] on all ranks if a rank has not called this after ``seconds``, for example because
    ranks compile one after another. A value must be representable in JSON."""
    sharding = program.sharding
    if sharding is None or not sharding.groups:
        return [value]
    every = [ranks for ranks in sharding.groups.values() if sharding.rank in ranks]
    ranks = range(sharding.ranks) if len(every) > 1 else every[0]
    store, key = _shared_store(), f"pipeline/values/{next(_exchanges)}/{ranks[0]}"
    names = [f"{key}/{rank}" for rank in ranks]
    store.set(f"{key}/{sharding.rank}", json.dumps(value))
    ends = time.monotonic() + seconds
    while not store.check(names) and not store.check([key]) and time.monotonic() < ends:
        time.sleep(0.02)
    if store.compare_set(key, "", "all" if store.check(names) else "none") != b"all":  # the first answer stays
        log.info("the program does not change: not all ranks were ready within %g s to compare its variants", seconds)
        return []
    return [json.loads(store.get(name)) for name in names]


@contextmanager
def share_random_numbers(program: Program) -> Iterator[None]:
    """Return a context in which all ranks generate the first rank's random numbers. After it, the other ranks
    continue with the numbers of their own generators."""
    groups = {} if program.sharding is None else program.sharding.groups
    if not groups:
        yield
        return
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]
    for name, ranks in groups.items():
        dist.broadcast_object_list(states, ranks[0], find_group(name))
    is_first = all(ranks[0] == dist.get_rank() for ranks in groups.values())
    with nullcontext() if is_first else torch.random.fork_rng(devices):
        if not is_first:
            torch.set_rng_state(states[0])
            for device, state in zip(devices, states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
        yield


def collectives_capture_obstacle(program: Program) -> str:
    """Return why CUDA graphs cannot contain the collectives of a program; empty if they can."""
    groups = () if program.sharding is None else program.sharding.groups
    host = next(filter(collectives_run_on_host, groups), "")
    return f"the collectives of {group_backend(host)} run on the host" if host else ""
