"""Build networks in the workers of an executor: send descriptions with the weights in a file, collect plans."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import define, field, frozen

from pipeline.build.memory_mapped_weights import leave_memory
from pipeline.build.monitor import Monitor
from pipeline.build.plans import Order, Plan, PlanFile, mapped, serialize
from pipeline.errors import BuildError, PipelineError
from pipeline.network.codes import PACKED
from pipeline.network.description import Network, Weight, describe
from pipeline.network.handle import NetworkHandle
from pipeline.network.replay import ReplayError, replay
from pipeline.trt import Log, dtype_called, trt

ALIGNMENT = 256


@frozen
class Stored:
    """A weight in a file: TensorRT's count of its elements, and where its bytes lie."""

    dtype: str
    count: int
    offset: int
    nbytes: int


Index: TypeAlias = Mapping[str, Stored]


@define(eq=False)
class RemoteBuild:
    """The build of one network, which can be pickled. In the process that made it, its handle is the network itself.

    When it is first pickled its weights are written to ``path``, once. Elsewhere ``opened`` maps that file and replays
    the description: all processes of a machine share the pages, so that the weights are in memory once.
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
                self.index = write(self.path, self.handle.weights, {w.name: w.dtype for w in self.network.weights})
        return RemoteBuild, (self.network, self.path, None, self.index)

    def opened(self) -> NetworkHandle:
        """The network, replayed in a process that is not its own. `BuildError` where it cannot be."""
        if self.handle is None:
            try:
                self.handle = _replayed(self.network, self.path, self.index or {})
            except ReplayError as error:
                hint = "build it in this process: leave the stage build without an executor"
                raise BuildError(f"{self.network.name}: {error}", hint) from None
        return self.handle


def write(path: Path, weights: Mapping[str, torch.Tensor], dtypes: Mapping[str, str] = MappingProxyType({})) -> Index:
    """Writes the tensors one after the other, from where they lie; codes of 4 bits by the dtype that networks give."""
    index: dict[str, Stored] = {}
    with path.open("wb") as file:
        for name, tensor in weights.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            dtype = dtypes.get(name, str(tensor.dtype).removeprefix("torch."))
            count = tensor.numel() * (2 if dtype in PACKED else 1)
            index[name] = Stored(dtype, count, file.tell(), tensor.nbytes)
            file.write(_bytes(tensor))
        file.write(b"\0")  # an empty file cannot be mapped
    return index


def _bytes(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous CPU tensor, without a copy."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""


class MappedFile:
    """The weights of a remote build, read only."""

    def __init__(self, path: Path) -> None:
        self.mapping = mapped(path)

    def leave_memory(self) -> None:
        """What was read leaves this process's memory."""
        leave_memory(self.mapping)


def _replayed(network: Network, path: Path, index: Index) -> NetworkHandle:
    """The network over the mapped file, after its description was compared with the one it was made from."""
    file = MappedFile(path)
    data = np.frombuffer(file.mapping, np.uint8)
    known: dict[int, Weight] = {data.ctypes.data + index[w.name].offset: w for w in network.weights}

    def weight_of(name: str) -> object:
        stored = index[name]
        return trt.Weights(dtype_called(stored.dtype), data.ctypes.data + stored.offset, stored.count)

    log = Log()
    builder = trt.Builder(log)
    net = replay(network, weight_of, builder, log)
    again = describe(net, name=network.name, weight_name=known.get, profile=network.profile)
    if again.digest != network.digest:
        raise ReplayError("the network that was made from the description has another description")
    views = {name: data[stored.offset :][: stored.nbytes] for name, stored in index.items()}
    return NetworkHandle(net, builder, log, [data], views, [file])


@frozen
class Job:
    """One engine to build: its plan goes to ``path``, a file that is there as soon as a worker has begun."""

    order: Order
    remote_build: RemoteBuild
    path: Path

    def __call__(self) -> Plan:
        """What a worker does."""
        file = PlanFile(self.path)
        return serialize(self.remote_build.opened(), self.order, file, Monitor(stopped=self.remote_build.stopped))


def gathered(executor: Executor, jobs: Sequence[Job], report: Callable[[int, int, str], object]) -> list[Plan]:
    """The plans of the jobs, in their order. After an error or Ctrl-C nothing more is begun, and threads stop building.
    ``report`` is told how many are built, of how many, and which came last.

    Raises:
        BuildError: the first that a worker met, or that a worker ended.
    """
    futures: dict[Future[Plan], Job] = {}
    try:
        for job in jobs:
            futures[_submitted(executor, job)] = job
        for done, future in enumerate(as_completed(futures), 1):
            _result(future, futures)
            report(done, len(jobs), futures[future].order.name)
    except BaseException:
        for future, job in futures.items():
            future.cancel()
            job.remote_build.stopped.set()
        raise
    return [future.result() for future in futures]


def _submitted(executor: Executor, job: Job) -> Future[Plan]:
    try:
        future: object = executor.submit(job)
    except RuntimeError as error:
        hint = "pass an executor that has not been shut down, and whose workers live"
        raise BuildError(f"{job.order.name}: the executor takes no work: {error}", hint) from error
    if not isinstance(future, Future):
        raise BuildError(f"{job.order.name}: the executor's submit() gave a {type(future).__name__}, no Future", _NONE)
    return future


def _result(future: Future[Plan], futures: Mapping[Future[Plan], Job]) -> Plan:
    name = futures[future].order.name
    try:
        plan: Any = future.result()
    except PipelineError:
        raise
    except CancelledError as error:
        raise BuildError(f"{name}: the executor cancelled it", "keep the executor open until all is built") from error
    except BrokenExecutor as error:
        names = ", ".join(_suspects(futures)) or name
        raise BuildError(f"{names}: a process that was building it ended abruptly ({error})", _ENDED) from error
    except Exception as error:
        raise BuildError(f"{name}: {type(error).__name__} in its worker: {error}", _NONE) from error
    if not isinstance(plan, Plan):
        raise BuildError(f"{name}: its worker gave a {type(plan).__name__}, what a job returns is due", _NONE)
    return plan


_NONE = "leave the executor out: the engines are then built in this process"

_ENDED = (
    "TensorRT can crash on a network that it does not check, or the machine was out of memory: build one engine at a "
    "time (an executor with one worker), and run what the engine is of in PyTorch (torch_executed_ops)"
)


def _suspects(futures: Mapping[Future[Plan], Job]) -> Iterator[str]:
    """The engines that were begun and not finished."""
    for future, job in futures.items():
        finished = future.done() and not future.cancelled() and future.exception() is None
        if job.path.exists() and not finished:
            yield job.order.name
