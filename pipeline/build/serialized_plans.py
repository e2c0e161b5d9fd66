"""Serialize a network to a plan: configure TensorRT's builder, and write its output to a file."""

from __future__ import annotations

import hashlib
import mmap
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import field, frozen

from pipeline.aten.naming import make_unique
from pipeline.build.memory import return_free_memory
from pipeline.build.monitor import Monitor, interruptible
from pipeline.errors import BuildError
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network, Profile
from pipeline.network.handle import NetworkHandle
from pipeline.program import Segment
from pipeline.runtime.atomic import FULL, disk_full_error
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES, LIBRARY, compute_capability, has_gpu, trt

NOT_FOR_THIS_GPU = "CUDA error 222"
NO_REFIT = (
    "TensorRT-RTX 1.5 and newer build no engine that can be refitted on an H100 or H200: leave out {}; "
    "refit_module_weights then builds the engine anew. TensorRT-RTX 1.4 builds it (docs/versions.md)"
)
PIECE = 1 << 22
STREAMED = 128 << 20
"""Plans with more bytes of weights than this are written in a stream. A stream uses three times 64 MB in TensorRT;
without a stream a second plan is in memory, which is less for weights below 128 MB."""


@frozen
class BuildOrder:
    """A request to build an engine: the network, the names of its inputs that are sizes, and the settings."""

    network: Network
    sizes: frozenset[str]
    settings: CompilationSettings

    @classmethod
    def for_segment(cls, segment: Segment, network: Network, settings: CompilationSettings) -> BuildOrder:
        """Create the order to build a segment's engine. It omits the setting ``torch_executed_ops``, which the builder
        does not need, and which can contain functions that cannot be pickled."""
        sizes = frozenset(port.name for port in segment.inputs if port.kind == "symint")
        return cls(network, sizes, settings.evolve(torch_executed_ops=()))

    def is_refittable_weight(self, name: str) -> bool:
        """Return whether the weight of this name can be refitted in the engine."""
        settings = self.settings
        return not settings.immutable_weights or any(fnmatchcase(name, each) for each in settings.refittable_weights)

    @property
    def refittable(self) -> bool:
        """Return whether at least one weight of the engine can be refitted."""
        return any(self.is_refittable_weight(weight.name) for weight in self.network.weights)

    @property
    def stripped(self) -> bool:
        """Return whether the plan will contain no weights, so that loading the engine must supply them."""
        return self.settings.strip_engine_weights and bool(self.network.weights)

    @property
    def refit_flags(self) -> tuple[str, ...]:
        """Return TensorRT's builder flags for engines whose weights can be set after the build."""
        settings, kind = self.settings, ""
        if self.refittable:
            kind = "REFIT_INDIVIDUAL" if settings.immutable_weights else "REFIT"
        elif self.network.weights and (settings.refit_identical_engine_weights or self.stripped):
            kind = "REFIT_IDENTICAL"
        return tuple(filter(None, (kind, "STRIP_PLAN" if self.stripped else "")))

    @property
    def name(self) -> str:
        return self.network.name


@frozen
class Plan:
    """The properties of a finished plan: the SHA-256 of its bytes, the version of TensorRT that built it, and a mapping
    from names of the network's inputs and outputs to the plan's, where they differ. ``data``: the plan itself, if it
    comes from a worker that cannot access this machine's files."""

    digest: str
    library: str
    bindings: FrozenDict[str, str] = field(factory=FrozenDict)
    data: bytes = field(default=b"", repr=False)


def serialize(handle: NetworkHandle, order: BuildOrder, plan: PlanFile, monitor: Monitor) -> Plan:
    """Build a network with TensorRT and write the plan to a file; TensorRT-RTX needs no GPU for this. A `BuildError`
    quotes TensorRT's message; Ctrl-C stops the build at TensorRT's next step."""
    if order.refit_flags and not has_gpu():
        why = f"{order.name}: building a refittable engine needs a machine with a GPU"
        why += ", and so does an engine without weights (strip_engine_weights=True)" * order.stripped
        hint = "build it on a machine with a GPU, or pass immutable_weights=True: a refit then rebuilds the engine"
        raise BuildError(why, hint)
    names: dict[str, str] = {}
    for weight in handle.weights if "REFIT_INDIVIDUAL" in order.refit_flags else ():
        if order.is_refittable_weight(weight):
            handle.net.mark_weights_refittable(weight)
    for layer in map(handle.net.get_layer, range(handle.net.num_layers)):
        layer.metadata = layer.name  # the plan then lists the layers of fused kernels (inspector, `network.kernels`)
    with (
        report_full_disk(f"{order.name}: its plan", plan),
        interruptible(monitor),
        _call_repeatedly(handle.drop_pages),
        _restore_names_at_exit(handle.net, names),
    ):
        mark = handle.log.position()
        while not (built := _write_plan(handle, _builder_config(handle.builder, order, names, monitor), plan)):
            message = handle.log.error_text_since(mark)
            if not (_rename_duplicate(handle, names, message) or _name_dims(handle, message)):
                break
            mark = handle.log.position()
        plan.file.flush()
    return_free_memory()
    if not built:
        raise build_error(order, handle.log.error_text_since(mark))
    return Plan(plan.sha256.hexdigest(), LIBRARY, FrozenDict(names))


@contextmanager
def report_full_disk(description: str, file_or_size: PlanFile | int) -> Iterator[None]:
    """Return a context in which a write to a full disk raises a `BuildError` that states the required and the free
    space. ``file_or_size``: the plan's file, or the number of bytes to write."""
    try:
        yield
        if isinstance(file_or_size, PlanFile) and file_or_size.full is not None:
            raise file_or_size.full
    except OSError as error:
        if error.errno not in FULL:
            raise
        size = file_or_size.size if isinstance(file_or_size, PlanFile) else file_or_size
        place = getattr(file_or_size, "place", None) or tempfile.gettempdir()
        hint = "set TMPDIR to a folder with more room"
        raise BuildError(f"{description} cannot be written: {disk_full_error(error, place, size)}", hint) from error


def build_error(order: BuildOrder, message: str) -> BuildError:
    """Return the error for an engine that TensorRT could not build, with TensorRT's message."""
    cannot = CAPABILITIES.flavour == "tensorrt_rtx" and CAPABILITIES.version_tuple >= (1, 5)
    settings, names = order.settings, ("refittable_weights", "strip_engine_weights", "refit_identical_engine_weights")
    asked = ["immutable_weights=False"] * (not settings.immutable_weights)
    asked += [name for name in names if getattr(settings, name)]
    is_known = cannot and order.refit_flags and NOT_FOR_THIS_GPU in message
    hint = NO_REFIT.format(" and ".join(asked)) if is_known else ""
    return BuildError(f"{order.name}: TensorRT cannot build the engine: {message}", hint)


_DUPLICATE = re.compile(r'duplicate tensor name "([^"]*)"')


def _rename_duplicate(handle: NetworkHandle, plan_names: dict[str, str], message: str) -> bool:
    """Rename an input or output if TensorRT reported its name as a duplicate, and return whether it did. TensorRT-RTX
    1.4 to 1.6 add tensors ``add``, ``sub`` and ``max`` for sizes that are quotients or maxima."""
    tensors, found = {tensor.name: tensor for tensor in _inputs_and_outputs(handle.net)}, _DUPLICATE.search(message)
    if found is None or found[1] not in tensors:
        return False
    given = {plan: name for name, plan in plan_names.items()}.get(found[1], found[1])
    tensors[found[1]].name = plan_names[given] = make_unique(f"{given}_", {*tensors})
    return True


def _name_dims(handle: NetworkHandle, message: str) -> bool:
    """Name every unnamed dynamic dim of the inputs, if TensorRT reported the error that such dims cause; return whether
    one was named. TensorRT-RTX 1.6 raises it if other dims have names (`name_dimensions`) and the unnamed size depends
    on theirs, such as the length of a diagonal."""
    if "_Map_base::at" not in message:
        return False
    inputs = map(handle.net.get_input, range(handle.net.num_inputs))
    dims = [(x, d) for x in inputs for d, size in enumerate(x.shape) if size < 0 and not x.get_dimension_name(d)]
    for tensor, dim in dims:
        tensor.set_dimension_name(dim, f"{tensor.name}.{dim}")
    return bool(dims)


@contextmanager
def _restore_names_at_exit(net: trt.INetworkDefinition, plan_names: Mapping[str, str]) -> Iterator[None]:
    """Return a context that ends by giving tensors their old names; ``plan_names`` maps old names to new ones."""
    try:
        yield
    finally:
        given = {plan: name for name, plan in plan_names.items()}
        for tensor in _inputs_and_outputs(net):
            tensor.name = given.get(tensor.name, tensor.name)


def _inputs_and_outputs(net: trt.INetworkDefinition) -> Iterator[trt.ITensor]:
    yield from map(net.get_input, range(net.num_inputs))
    yield from map(net.get_output, range(net.num_outputs))


@contextmanager
def _call_repeatedly(action: Callable[[], object]) -> Iterator[None]:
    """Return a context that calls ``action`` every 10 ms, for example to drop pages of weights that were read."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.01):
            action()

    thread = threading.Thread(target=run, name="pipeline-build", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _write_plan(handle: NetworkHandle, config: trt.IBuilderConfig, plan: PlanFile) -> bool:
    """Build the network with TensorRT and write its plan to a file; return whether TensorRT could build it."""
    if handle.nbytes > STREAMED:
        return bool(handle.builder.build_serialized_network_to_stream(handle.net, config, plan))
    built = handle.builder.build_serialized_network(handle.net, config)
    if built is None:
        return False
    view = memoryview(built)
    for start in range(0, len(view), PIECE):
        plan.write(view[start : start + PIECE])
    return True


class PlanFile(trt.IStreamWriter):  # type: ignore[misc,unused-ignore]
    """A file to which TensorRT writes a plan piece by piece; unnamed if there is no path. Memory holds no second copy
    of the plan, only the pages that are read."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        # Open while this object exists: TensorRT writes from another thread, and `__del__` closes the file.
        self.file: Any = path.open("w+b") if path else tempfile.TemporaryFile(prefix="pipeline-plan-")  # noqa: SIM115
        self.sha256 = hashlib.sha256()
        self.size, self.place = 0, path
        self.full: OSError | None = None

    def write(self, data: object) -> int:
        """Write a piece of the plan, and return the number of bytes written; TensorRT calls this method."""
        beside = threading.Thread(target=self.sha256.update, args=(data,))  # it takes as long as writing
        beside.start()
        try:
            self.size += memoryview(data).nbytes  # type: ignore[arg-type]
            return int(self.file.write(data))
        except OSError as error:
            self.full = error  # TensorRT would report a failure without its reason
            raise
        finally:
            beside.join()

    def map_plan(self) -> mmap.mmap:
        """Return the plan, memory-mapped read-only; the mapping outlives this object."""
        return mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)

    def __del__(self) -> None:
        if hasattr(self, "file"):  # no path that cannot be opened
            self.file.close()


def map_file(path: Path) -> mmap.mmap:
    """Memory-map a file, read-only; the data stays available even if the file is deleted."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _builder_config(
    builder: trt.Builder, order: BuildOrder, plan_names: Mapping[str, str], monitor: Monitor
) -> trt.IBuilderConfig:
    """Return TensorRT's builder configuration; ``plan_names``: the new names of renamed inputs and outputs."""
    config, settings = builder.create_builder_config(), order.settings
    streams = settings.weight_streaming_budget is not None
    wanted = {"VERSION_COMPATIBLE": settings.version_compatible, "WEIGHT_STREAMING": streams}
    for flag in (*order.refit_flags, *(name for name, on in wanted.items() if on)):
        config.set_flag(trt.BuilderFlag.__members__[flag])
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.workspace_size is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_size)
    if settings.max_aux_streams is not None:
        config.max_aux_streams = settings.max_aux_streams
    config.progress_monitor = monitor
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layers' metadata, for the inspector
    if targets := settings.compute_capabilities:
        if not CAPABILITIES.compute_capabilities:
            why = f"compute_capabilities is {targets}, but {CAPABILITIES.flavour} builds only for this machine's GPU"
            raise BuildError(why, "leave compute_capabilities empty")
        config.num_compute_capabilities = len(targets)
        for i, target in enumerate(targets):
            config.set_compute_capability(compute_capability(target), i)
    for each in order.network.profiles:
        _add_profile(builder, config, order, each, plan_names)
    return config


def _add_profile(
    builder: trt.Builder, config: trt.IBuilderConfig, order: BuildOrder, ranges: Profile, plan_names: Mapping[str, str]
) -> None:
    """Add the optimization profile ``ranges`` to ``config``; ``plan_names``: the new names of renamed inputs."""
    profile = builder.create_optimization_profile()
    for name, low, opt, high in ranges.ranges:
        set_range = profile.set_shape_input if name in order.sizes else profile.set_shape
        try:
            set_range(plan_names.get(name, name), low, opt, high)
        except RuntimeError as error:
            raise BuildError(f"{order.name}: TensorRT rejects sizes of {name} from {low} to {high}: {error}") from error
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(f"{order.name}: TensorRT rejected the optimization profile {ranges}")
