"""Load plans as engines, with one TensorRT runtime per process, and report TensorRT's messages when it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import torch
from attrs import evolve, field, frozen

from pipeline.errors import ExecutionError
from pipeline.network.description import Network, Profile, Tensor
from pipeline.network.engine import Engine
from pipeline.runtime.engine_cache import RuntimeCache
from pipeline.trt import CAPABILITIES, LIBRARY, Log, enum_member, has_gpu, trt

LOG = Log()
Messages: TypeAlias = Callable[[], str]

_loading = threading.Lock()
_hearing = threading.Lock()
_listeners = 0


class UnloadableError(ExecutionError):
    """TensorRT does not load an engine on this GPU, although the same TensorRT version built it."""


@contextmanager
def collect_errors() -> Iterator[Messages]:
    """Yield a function that returns the errors that TensorRT logged since the start of this ``with`` block."""
    global _listeners
    with _hearing:
        _listeners += 1
        mark = LOG.position()
    try:
        yield lambda: LOG.error_text_since(mark)
    finally:
        with _hearing:
            _listeners -= 1
            if not _listeners:
                LOG.messages.clear()


def load(engine: Engine, capabilities: Sequence[str] = ()) -> trt.ICudaEngine:
    """Return the ``ICudaEngine`` of a serialized engine, on the current GPU.

    capabilities: the compute capabilities that the engine was built for; empty for TensorRT's default.

    Raises:
        ExecutionError: there is no GPU, the plan comes from another library, or TensorRT cannot load it.
    """
    require_gpu(engine.name)
    flavour = engine.library.split(" ")[0]
    rebuild = f"compile it again here, or install the version that built it (PIPELINE_TENSORRT={flavour} selects it)"
    if flavour != CAPABILITIES.flavour:
        raise ExecutionError(f"{engine.name} was built by {engine.library}, but this process uses {LIBRARY}", rebuild)
    with _loading, collect_errors() as messages:
        loaded = _tensorrt_runtime().deserialize_cuda_engine(engine.checked_plan())
        engine.checked_plan()  # its file may have been overwritten meanwhile
        if loaded is None:
            # A version-compatible plan of another version may load, so the versions are compared only after a failure.
            if engine.library != LIBRARY:
                differs = f"it was built by {engine.library}, but {LIBRARY} loads only its own plans"
                raise ExecutionError(f"{engine.name} cannot be loaded: {differs} ({messages()})", rebuild)
            raise UnloadableError(f"{engine.name} cannot be loaded ({messages()})", _other_gpu_hint(capabilities))
    return loaded


def require_gpu(action: str) -> None:
    """Raise an ``ExecutionError`` if there is no GPU; ``action`` names what needs one."""
    if not has_gpu():
        raise ExecutionError(f"{action} needs a GPU, but torch finds none on this machine")


@frozen(eq=False)
class LoadedEngine:
    """An engine on a GPU, shared by all its execution contexts; its collectives join the process group ``group``."""

    cuda_engine: trt.ICudaEngine = field(repr=False)
    network: Network = field(repr=False)
    specialization: str = "none"
    cache: RuntimeCache | None = None
    targets: tuple[str, ...] = ()
    group: str = ""

    @classmethod
    def load(
        cls, engine: Engine, network: Network, prepare: Callable[[Any], None] = lambda loaded: None, **options: Any
    ) -> LoadedEngine:
        """Load a serialized engine on the current GPU. ``options``: other fields of this class, such as ``cache``.

        ``prepare`` is called with the ``ICudaEngine`` before any context is created, for example to set weights.

        Raises:
            ExecutionError: there is no GPU, or the engine does not load; with TensorRT's message.
        """
        loaded = cls(load(engine, options.get("targets", ())), rename_bindings(network, engine.bindings), **options)
        prepare(loaded.cuda_engine)
        if loaded.cache is not None:
            loaded.cache.create_once(loaded.cuda_engine)
        return loaded

    def for_network(self, engine: Engine, network: Network) -> LoadedEngine:
        """Return this loaded engine for another segment, whose ``engine`` has an equal plan and whose ``network``
        differs in names only. ``engine.bindings`` maps the names in ``network`` to the names in the plan."""
        return evolve(self, network=rename_bindings(network, engine.bindings))

    @property
    def device_memory(self) -> int:
        """The bytes of activation memory that the engine needs at the largest shapes."""
        return int(getattr(self.cuda_engine, "device_memory_size_v2", 0))

    def new_context(self, messages: Messages, *, graph: bool = False) -> tuple[trt.IExecutionContext, Any]:
        """Create an execution context; return it and its configuration, which must live as long as the context.

        The caller sets the context's memory. TensorRT-RTX reads the configuration when a profile other than the first
        is selected, and crashes if it is freed. ``graph``: TensorRT-RTX launches the context as a CUDA graph.
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
            context = self.cuda_engine.create_execution_context(runtime_config=config)
        else:
            context = self.cuda_engine.create_execution_context(strategy)
        if context is None:
            refused = f"{self.network.name}: TensorRT refused an execution context ({messages()})"
            raise UnloadableError(refused, _other_gpu_hint(self.targets))
        return context, config


def rename_bindings(network: Network, plan_names: Mapping[str, str]) -> Network:
    """Return a network with its inputs and outputs renamed to the plan's names, given by the mapping ``plan_names``."""
    if not plan_names:
        return network

    def named(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(evolve(tensor, name=plan_names.get(tensor.name, tensor.name)) for tensor in tensors)

    def renamed(profile: Profile) -> Profile:
        return Profile(tuple((plan_names.get(row[0], row[0]), *row[1:]) for row in profile.ranges))

    bound = evolve(network, inputs=named(network.inputs), outputs=named(network.outputs))
    first, *others = map(renamed, network.profiles) if network.profiles else (None,)
    return evolve(bound, profile=first, other_profiles=tuple(filter(None, others)))


@cache
def _tensorrt_runtime() -> trt.Runtime:
    return trt.Runtime(LOG)


def is_for_this_gpu(capabilities: Sequence[str]) -> bool:
    """Return whether engines for these compute capabilities (empty: TensorRT's default) run on the current GPU."""
    return not capabilities or current_capability() in capabilities


def current_capability() -> str:
    """Return the compute capability of the current GPU, such as ``"9.0"``."""
    return ".".join(map(str, torch.cuda.get_device_capability()))


def _other_gpu_hint(capabilities: Sequence[str]) -> str:
    """Return the hint of an error: how to build an engine that loads on this GPU. ``capabilities``: those that the
    engine was built for, such as "9.0"; empty for TensorRT's default."""
    if is_for_this_gpu(capabilities):
        return (
            "compile the program on this GPU, with load_built_engines=True: operators for which TensorRT has no kernel "
            "here are then compiled in another form, or run in PyTorch"
        )
    here = current_capability()
    wanted = (*capabilities, here)
    return (
        f"it was built for compute capability {', '.join(capabilities)}, and {torch.cuda.get_device_name()} has "
        f"{here}: compile the program on this GPU, or with compute_capabilities={wanted} on another machine"
    )
