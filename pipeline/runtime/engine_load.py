"""Load plans as engines, with one TensorRT runtime per process, and report TensorRT's messages when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import torch
from attrs import evolve, field, frozen

from pipeline.aten.types import Leaf
from pipeline.errors import ExecutionError
from pipeline.network.description import Network, Profile, Tensor
from pipeline.network.engine import Engine
from pipeline.runtime.engine_cache import RuntimeCache
from pipeline.trt import CAPABILITIES, LIBRARY, Log, enum_member, has_gpu, trt

LOG = Log()
Said: TypeAlias = Callable[[], str]
Prepare: TypeAlias = Callable[[Any], None]

_loading = threading.Lock()
_hearing = threading.Lock()
_listeners = 0


class UnloadableError(ExecutionError):
    """TensorRT does not load an engine of its own on this GPU."""


@contextmanager
def listening() -> Iterator[Said]:
    """A context that yields a function returning TensorRT's errors since its start. Messages are dropped when nobody
    listens."""
    global _listeners
    with _hearing:
        _listeners += 1
        mark = LOG.mark()
    try:
        yield lambda: LOG.said_since(mark)
    finally:
        with _hearing:
            _listeners -= 1
            if not _listeners:
                LOG.messages.clear()


def load(engine: Engine, targets: Sequence[str] = ()) -> Leaf:
    """The ``ICudaEngine`` of a serialized engine, on the current GPU. ``targets``: the compute capabilities that it was
    built for; none for TensorRT's default.

    Raises:
        ExecutionError: there is no GPU, the plan comes from another library, or TensorRT cannot load it.
    """
    require_gpu(engine.name)
    flavour = engine.library.split(" ")[0]
    if flavour != CAPABILITIES.flavour:
        raise ExecutionError(f"{engine.name} was built by {engine.library}, and {LIBRARY} is loaded", _rebuild(flavour))
    with _loading, listening() as said:
        loaded = _runtime().deserialize_cuda_engine(engine.checked())
        engine.checked()  # it may have been overwritten meanwhile
        if loaded is None:
            if engine.library != LIBRARY:
                raise ExecutionError(_unloadable(engine, said()), _rebuild(flavour))
            raise UnloadableError(_unloadable(engine, said()), _elsewhere(targets))
    return loaded


def require_gpu(what: str) -> None:
    """Raise ``ExecutionError`` if no engine can run here."""
    if not has_gpu():
        raise ExecutionError(f"{what} runs on a GPU, and torch sees none here")


@frozen(eq=False)
class LoadedEngine:
    """An engine on a GPU, shared by all its execution contexts."""

    cuda_engine: trt.ICudaEngine = field(repr=False)
    network: Network = field(repr=False)
    specialization: str = "none"
    cache: RuntimeCache | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, engine: Engine, network: Network, prepare: Prepare = lambda loaded: None, **options: Any
    ) -> LoadedEngine:
        """Load a serialized engine on the current GPU, with its compiled kernels if a ``cache`` is among the options.

        ``prepare`` is called with the engine before any context is made.

        Raises:
            ExecutionError: there is no GPU, or the engine does not load; with TensorRT's words.
        """
        loaded = cls(load(engine, options.get("targets", ())), as_bound(network, engine.bindings), **options)
        prepare(loaded.cuda_engine)
        if loaded.cache is not None:
            loaded.cache.attach(loaded.cuda_engine)
        return loaded

    def serving(self, engine: Engine, network: Network) -> LoadedEngine:
        """The same engine for another network of the same structure; ``engine`` has the plan's names for it."""
        return evolve(self, network=as_bound(network, engine.bindings))

    @property
    def device_memory(self) -> int:
        """Bytes of activations at the largest shapes."""
        return int(getattr(self.cuda_engine, "device_memory_size_v2", 0))

    def keep_kernels(self) -> None:
        """Save newly compiled kernels for the next start, after a first run with some shapes."""
        if self.cache is not None:
            self.cache.save()

    def context(self, said: Said, *, graph: bool = False) -> tuple[Leaf, Leaf]:
        """A new execution context, which gets its memory from us, and its configuration, which must outlive it.

        A context of TensorRT-RTX reads its configuration when another profile than the first is selected: without it
        the process crashes. With ``graph`` TensorRT-RTX launches the context as a CUDA graph.
        """
        config = None
        strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if CAPABILITIES.runtime_config:
            config = self.cuda_engine.create_runtime_config()
            config.set_execution_context_allocation_strategy(strategy)
            name = self.specialization.upper()
            kinds = trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = enum_member(kinds, name)
            if graph:
                config.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            if self.cache is not None and self.cache.handle is not None:
                config.set_runtime_cache(self.cache.handle)
            made = self.cuda_engine.create_execution_context(runtime_config=config)
        else:
            made = self.cuda_engine.create_execution_context(strategy)
        if made is None:
            refused = f"{self.network.name}: TensorRT refused an execution context ({said()})"
            raise UnloadableError(refused, _elsewhere(self.targets))
        return made, config


def as_bound(network: Network, names: Mapping[str, str]) -> Network:
    """The network with an engine's names for its inputs and outputs."""
    if not names:
        return network

    def named(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(evolve(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors)

    def renamed(profile: Profile) -> Profile:
        return Profile(tuple((names.get(row[0], row[0]), *row[1:]) for row in profile.ranges))

    first, *others = map(renamed, network.profiles) if network.profiles else (None,)
    made = evolve(network, inputs=named(network.inputs), outputs=named(network.outputs), profile=first)
    return evolve(made, other_profiles=tuple(filter(None, others)))


@cache
def _runtime() -> Leaf:
    return trt.Runtime(LOG)


def _unloadable(engine: Engine, said: str) -> str:
    # A version-compatible plan of another version does load, so the versions are compared only when one did not.
    differs = f": it was built by {engine.library}, this is {LIBRARY}, and plans fit one version"
    return f"{engine.name} cannot be loaded{differs if engine.library != LIBRARY else ''} ({said})"


def is_for_this_gpu(targets: Sequence[str]) -> bool:
    """Whether engines of these targets, compute capabilities or TensorRT's default, are built for the current GPU."""
    return not targets or current_capability() in targets


def current_capability() -> str:
    """Return the compute capability of the current GPU, such as ``"9.0"``."""
    return ".".join(map(str, torch.cuda.get_device_capability()))


def _elsewhere(targets: Sequence[str]) -> str:
    """What to do about an engine that does not load here."""
    if is_for_this_gpu(targets):
        return (
            "compile the program on this GPU, with load_built_engines=True: operators for which TensorRT has no kernel "
            "here are then compiled in another form, or run in PyTorch"
        )
    here = current_capability()
    wanted = (*targets, here)
    return (
        f"it was built for compute capability {', '.join(targets)}, and {torch.cuda.get_device_name()} has "
        f"{here}: compile the program on this GPU, or with compute_capabilities={wanted} on another machine"
    )


def _rebuild(flavour: str) -> str:
    return f"compile it again here, or install the version it was built by (PIPELINE_TENSORRT={flavour} chooses it)"
