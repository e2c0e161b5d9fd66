"""build: ``Converted`` → ``Built``. TensorRT serializes an engine for each network; needs no GPU with TensorRT-RTX."""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from typing import Any

from pipeline.compose import report, stage
from pipeline.errors import BuildError
from pipeline.heap import large_blocks_returned
from pipeline.network import Network
from pipeline.program import Built, Converted, Engine, Segment
from pipeline.settings import CompilationSettings
from pipeline.stages.convert import NetworkHandle
from pipeline.trt import CAPABILITIES, compute_capability, has_gpu, trt


@stage
def build(converted: Converted) -> Built:
    """Serialized engines. The networks stay as they are; nothing of them is kept in the result."""
    partitioned = converted.partitioned
    engines = []
    rows = zip(partitioned.engine_segments, converted.networks, converted.handles, strict=True)
    for i, (segment, network, handle) in enumerate(rows):
        report(i, len(converted.networks), segment.name)
        engines.append(_build(segment, network, handle, partitioned.program.settings))
    return Built(
        partitioned, converted.networks, tuple(engines), converted.recipes, converted.literals, converted.computed
    )


def _build(segment: Segment, network: Network, handle: NetworkHandle, settings: CompilationSettings) -> Engine:
    refittable = not settings.immutable_weights and bool(network.weights)
    if refittable and not has_gpu():
        raise BuildError(
            f"{segment.name}: an engine that can be refitted can only be built on a machine with a GPU",
            "build it there, or pass immutable_weights=True: refit_module_weights then builds the engine anew",
        )
    mark, plan = handle.log.mark(), PlanFile()
    config = _config(handle.builder, settings, refittable)
    _add_profile(segment, network, handle.builder, config)
    with large_blocks_returned():
        built = handle.builder.build_serialized_network_to_stream(handle.net, config, plan)
    if not built:
        said = handle.log.errors_since(mark)
        raise BuildError(f"{segment.name}: {'; '.join(said) or 'TensorRT gave no reason'}")
    library = f"{CAPABILITIES.flavour} {CAPABILITIES.version}"
    return Engine(segment.name, plan.mapped(), library, refittable, plan.sha256.hexdigest())


class PlanFile(trt.IStreamWriter):  # type: ignore[misc]
    """Takes a plan from TensorRT piece by piece into a nameless temporary file: large plans need no second copy in
    memory, and the operating system keeps in memory only what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.file = tempfile.TemporaryFile(prefix="pipeline-plan-")  # noqa: SIM115 - lives as long as the mapping
        self.sha256 = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Called by TensorRT with each piece; gives the number of bytes taken."""
        self.sha256.update(data)
        return self.file.write(data)

    def mapped(self) -> mmap.mmap:
        """The whole plan, read only."""
        self.file.flush()
        return mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)


def _config(builder: Any, settings: CompilationSettings, refittable: bool) -> Any:
    config = builder.create_builder_config()
    for wanted, flag in (
        (refittable, "REFIT"),
        (settings.version_compatible, "VERSION_COMPATIBLE"),
    ):
        if wanted:
            config.set_flag(trt.BuilderFlag.__members__[flag])
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.workspace_size is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_size)
    if settings.max_aux_streams is not None:
        config.max_aux_streams = settings.max_aux_streams
    _set_targets(config, settings.compute_capabilities)
    return config


def _set_targets(config: Any, capabilities: tuple[str, ...]) -> None:
    if not capabilities:
        return
    if not CAPABILITIES.compute_capabilities:
        raise BuildError(f"{CAPABILITIES.flavour} builds for the GPU at hand only; leave compute_capabilities empty")
    config.num_compute_capabilities = len(capabilities)
    for i, capability in enumerate(capabilities):
        config.set_compute_capability(compute_capability(capability), i)


def _add_profile(segment: Segment, network: Network, builder: Any, config: Any) -> None:
    if network.profile is None:
        return
    profile = builder.create_optimization_profile()
    symints = {p.name for p in segment.inputs if p.kind == "symint"}
    for name, low, opt, high in network.profile.ranges:
        if name in symints:
            profile.set_shape_input(name, low, opt, high)
        else:
            profile.set_shape(name, low, opt, high)
    if config.add_optimization_profile(profile) < 0:
        raise BuildError(f"{segment.name}: TensorRT refused the profile {network.profile}")
