"""build: ``Converted`` → ``Built``. Serialize an engine for each network. TensorRT-RTX needs no GPU for this."""

from __future__ import annotations

import logging
import mmap
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

from attrs import evolve, field, frozen

from pipeline.build.deduplicate import build_without_duplicates
from pipeline.build.executor_pool import collect_plans
from pipeline.build.monitor import Monitor
from pipeline.build.remote_build import Job, RemoteBuild
from pipeline.build.serialized_plans import BuildOrder, Plan, PlanFile, map_file, serialize
from pipeline.build.threads import build_in_threads
from pipeline.compose.pipelines import report
from pipeline.errors import QuantizationError
from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.network.handle import NetworkHandle, drop_pages
from pipeline.network.pairs import find_quantized_pairs
from pipeline.program import Built, Converted
from pipeline.quirks import QUIRKS, has_bug
from pipeline.quirks.plan_detectors import find_kernel_offsets, without_weights
from pipeline.stages.unbuilt import unbuilt

log = logging.getLogger(__name__)


@frozen
class Build:
    """The build stage, which builds an engine for each network: in threads of this process, or by an executor. Networks
    that differ only in names share one engine.

    executor: any ``concurrent.futures.Executor``; the caller shuts it down. Threads build the networks directly
        (TensorRT releases the interpreter lock while it builds). Other processes rebuild the networks from their
        descriptions, and map the weights from a file. Spawn these processes, since forked processes may hang in PyTorch
        or TensorRT: ``ProcessPoolExecutor(4, mp_context=get_context("spawn"))``. Workers of a cluster
        (``dask.distributed.Client(…).get_executor()``) that cannot read this machine's files get weights and return
        plans as bytes.
    folder: the folder of the files that this process and the executor's workers exchange; None: the system's temporary
        folder. It must have room for the weights of all networks and for all plans; the files are deleted at the end.
    """

    executor: Executor | None = None
    folder: Path | None = None
    name: str = field(default="build", repr=False)

    def __attrs_post_init__(self) -> None:
        given: object = self.executor
        if given is not None and (isinstance(given, type) or not callable(getattr(given, "submit", None))):
            due = "a concurrent.futures.Executor, such as ThreadPoolExecutor(4)"
            raise TypeError(f"a build executor must be {due}, got {given!r}")

    def __call__(self, converted: Converted) -> Built:
        """Build an engine for each network. The networks are not changed, and the result does not reference them.

        Raises:
            BuildError: TensorRT could not build an engine, or the engine's worker died; the message names the engine.
        """
        partitioned = converted.partitioned
        rows = zip(partitioned.engine_segments, converted.networks, strict=True)
        orders = [BuildOrder.for_segment(segment, network, partitioned.program.settings) for segment, network in rows]

        def build(due: Sequence[int]) -> Iterable[Engine]:
            made, handles = [orders[i] for i in due], [converted.handles[i] for i in due]
            return self._submit(self.executor, made, handles) if self.executor else self._build_here(made, handles)

        engines = build_without_duplicates(orders, [handle.weights for handle in converted.handles], build)
        return evolve(unbuilt(converted), engines=tuple(engines))

    def _build_here(self, orders: Sequence[BuildOrder], handles: Sequence[NetworkHandle]) -> Sequence[Engine]:
        """Build an engine for each order in this process. ``handles``: the orders' TensorRT networks."""
        if len(orders) == 1:
            return [_build_engine(orders[0], handles[0], Monitor(partial(_report_phase, orders[0].name)))]
        if orders:
            report(0, len(orders), f"{len(orders)} engines")
        builds = [partial(_build_in_thread, *row) for row in zip(orders, handles, strict=True)]
        return build_in_threads(builds, [each.nbytes for each in handles], lambda done: report(done, len(orders)))

    def _submit(
        self, executor: Executor, orders: Sequence[BuildOrder], handles: Sequence[NetworkHandle]
    ) -> Iterable[Engine]:
        """Build an engine for each order by the executor's workers. ``handles``: the orders' TensorRT networks."""
        with tempfile.TemporaryDirectory(prefix="pipeline-build-", dir=self.folder, ignore_cleanup_errors=True) as name:
            jobs = [
                Job(order, RemoteBuild(order.network, Path(name, f"{i}.weights"), handle), Path(name, f"{i}.plan"))
                for i, (order, handle) in enumerate(zip(orders, handles, strict=True))
            ]
            plans = collect_plans(executor, jobs, report)
            return [make_engine(job.order, plan, map_file(job.path)) for job, plan in zip(jobs, plans, strict=True)]


build = Build()


def _build_engine(order: BuildOrder, handle: NetworkHandle, monitor: Monitor) -> Engine:
    file = PlanFile()
    plan = serialize(handle, order, file, monitor)
    return make_engine(order, plan, file.map_plan())


def _build_in_thread(order: BuildOrder, handle: NetworkHandle, stopped: threading.Event) -> Engine:
    return _build_engine(order, handle, Monitor(stopped=stopped))


def _report_phase(engine_name: str, phase: str) -> None:
    report(0, 1, f"{engine_name}: {phase}")


def make_engine(order: BuildOrder, plan: Plan, plan_bytes: bytes | mmap.mmap) -> Engine:
    """Return the `Engine` of a built plan; warn if it has kernels with known bugs. ``order``: the network and settings
    that it was built from; ``plan``: the digest and bindings of the plan; ``plan_bytes``: the serialized plan."""
    for kernel, fault in find_faulty_kernels(order.network, plan_bytes):
        how = "compare with eager PyTorch, and add the operators in the kernel's name to torch_executed_ops"
        log.warning("%s: TensorRT's kernel %s %s, so results may be wrong: %s", order.name, kernel, fault, how)
    required = order.settings.require_fused_quantization
    if required and (apart := [pair for pair in find_quantized_pairs(order.network, plan_bytes) if not pair.fused]):
        raise QuantizationError(order.name, apart)
    drop_pages(plan_bytes)
    given = order.name, plan_bytes, plan.library, order.refittable, plan.digest, plan.bindings
    return Engine(*given, stripped=order.stripped)


def find_faulty_kernels(network: Network, plan: bytes | mmap.mmap) -> list[tuple[str, str]]:
    """Return the kernels of a plan that are known to compute wrong results, each with a description of the bug."""
    text, dtypes = without_weights(plan), {tensor.dtype for layer in network.layers for tensor in layer.outputs}
    sources = find_kernel_offsets(text)
    return [
        (kernel, quirk.finding.format(*result))
        for quirk in QUIRKS
        if quirk.detector is not None and quirk.dtype in ("", *dtypes) and has_bug(quirk.id)
        for found in quirk.detector(text, sources)
        for kernel, *result in [(found,) if isinstance(found, str) else found]
    ]
