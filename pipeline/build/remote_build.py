"""Build networks in other processes, from picklable descriptions and a file with the weights."""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import define, evolve, field, frozen

from pipeline.aten.tensor_type import raw_bytes
from pipeline.build.monitor import Monitor
from pipeline.build.serialized_plans import BuildOrder, Plan, PlanFile, map_file, report_full_disk, serialize
from pipeline.errors import BuildError
from pipeline.network.description import Network, Weight, describe
from pipeline.network.handle import PACKED, NetworkHandle
from pipeline.network.replay import ReplayError, replay
from pipeline.trt import Log, trt, trt_dtype

ALIGNMENT = 256


@frozen
class StoredWeight:
    """The location of a weight in a file: its dtype, TensorRT's count of its elements, and the offset of its bytes."""

    dtype: str
    count: int
    offset: int
    nbytes: int


Index: TypeAlias = Mapping[str, StoredWeight]
"""The locations of a network's weights in a file, by weight name."""


@define(eq=False)
class RemoteBuild:
    """A network that can be pickled, so that another process can build its engine. In the process that created it,
    ``handle`` is the network itself.

    The first pickling writes the weights to ``path``. In other processes, `open_network` maps this file and builds the
    network again. All processes of a machine share the mapped pages, so that the weights are in memory only once.
    """

    network: Network
    path: Path
    handle: NetworkHandle | None = None
    index: Index | None = None
    stopped: threading.Event = field(factory=threading.Event, init=False, repr=False)
    _lock: Any = field(factory=threading.Lock, init=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        with self._lock:
            if self.index is None and self.handle is not None:
                self.index = store(self.path, self.handle.weights, {w.name: w.dtype for w in self.network.weights})
        return RemoteBuild, (self.network, self.path, None, self.index)

    @property
    def is_reachable(self) -> bool:
        """Return whether `open_network` can work here: the process has the network, or can access the weights' file."""
        return self.handle is not None or can_read_weights(self.path, self.index or {})

    def open_network(self) -> NetworkHandle:
        """Return the network, in another process built from its description; raise a `BuildError` if that fails."""
        try:
            self.handle = self.handle or _rebuild_network(self.network, self.path, self.index or {})
        except ReplayError as error:
            hint = "build the engine in this process: do not pass an executor to the stage build"
            raise BuildError(f"{self.network.name} cannot be built in a worker process: {error}", hint) from None
        return self.handle


def can_read_weights(path: Path, index: Index) -> bool:
    """Return whether this machine has the file with the weights in ``index``: a file at ``path`` of the right size. Its
    folder has a random name, so no other file can be mistaken for it."""
    size = max((stored.offset + stored.nbytes for stored in index.values()), default=0)
    return path.is_file() and path.stat().st_size == size + 1


def store(path: Path, weights: Mapping[str, torch.Tensor], dtypes: Mapping[str, str] = MappingProxyType({})) -> Index:
    """Write weights to a file in order, without copies, and return where each is. ``dtypes``: by weight name, the dtype
    that the network uses, such as ``int4``, where it is not the tensor's."""
    index: dict[str, StoredWeight] = {}
    with report_full_disk("the weights of a network", sum(t.nbytes for t in weights.values())), path.open("wb") as file:
        for name, tensor in weights.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            dtype = dtypes.get(name, str(tensor.dtype).removeprefix("torch."))
            count = tensor.numel() * (2 if dtype in PACKED else 1)
            index[name] = StoredWeight(dtype, count, file.tell(), tensor.nbytes)
            file.write(memoryview(raw_bytes(tensor).numpy()))  # type: ignore[arg-type]
        file.write(b"\0")  # an empty file cannot be mapped
    return index


def _rebuild_network(network: Network, path: Path, index: Index) -> NetworkHandle:
    """Create TensorRT's network from its description and mapped weights; raise a `ReplayError` if it differs."""
    mapping = map_file(path)
    data = np.frombuffer(mapping, np.uint8)
    known: dict[int, Weight] = {data.ctypes.data + index[w.name].offset: w for w in network.weights}

    def weight_of(name: str) -> object:
        stored = index[name]
        return trt.Weights(trt_dtype(stored.dtype), data.ctypes.data + stored.offset, stored.count)

    log = Log()
    builder = trt.Builder(log)
    net = replay(network, weight_of, builder, log)
    again = describe(net, name=network.name, weight_name=known.get, profile=network.profile)
    if evolve(again, other_profiles=network.other_profiles).digest != network.digest:
        raise ReplayError("the network that was rebuilt from its description differs from the description")
    views = {name: data[stored.offset :][: stored.nbytes] for name, stored in index.items()}
    return NetworkHandle(net, builder, log, [data], views, [mapping])


@frozen
class Job:
    """A request to build an engine and write its plan to ``path``; the file exists once a worker has started."""

    order: BuildOrder
    remote_build: RemoteBuild
    path: Path

    def __call__(self) -> Plan | None:
        """Build the engine in a worker; return the plan, or None if the worker cannot access this machine's files."""
        if not self.remote_build.is_reachable:
            return None
        file = PlanFile(self.path)
        return serialize(self.remote_build.open_network(), self.order, file, Monitor(stopped=self.remote_build.stopped))


@frozen
class JobWithWeights:
    """A request to build an engine on a machine that cannot access this machine's files; it contains the weights."""

    order: BuildOrder
    index: Index = field(repr=False)
    weights: bytes = field(repr=False)

    @classmethod
    def from_job(cls, job: Job) -> JobWithWeights:
        """Convert a `Job` to a request that contains the weights; write and read the job's file of weights for that."""
        build = job.remote_build
        build.__reduce__()
        return cls(job.order, build.index or {}, build.path.read_bytes())

    def __call__(self) -> Plan:
        """Build the engine in a worker, which writes the weights to a temporary file first."""
        with tempfile.TemporaryDirectory(prefix="pipeline-sent-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "weights")
            path.write_bytes(self.weights)
            plan, data = build_with_stored_weights(self.order, path, self.index)
            return evolve(plan, data=bytes(data))


def build_with_stored_weights(order: BuildOrder, path: Path, index: Index) -> tuple[Plan, mmap.mmap]:
    """Build an engine in this process, from the order's network and weights in a file; return the plan and its bytes.
    ``index``: the locations of the weights, from `store`."""
    handle, file = RemoteBuild(order.network, path, None, index).open_network(), PlanFile()
    return serialize(handle, order, file, Monitor()), file.map_plan()
