"""Build on machines that do not see this one's files: weights are sent, and plans returned, as bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from attrs import field, frozen

from pipeline.build.monitor import Monitor
from pipeline.build.remote_build import Index, Job, RemoteBuild
from pipeline.build.serialized_plans import Order, Plan, PlanFile, serialize


@frozen
class SentPlan:
    """A plan that was returned as bytes."""

    plan: Plan
    data: bytes = field(repr=False)


@frozen
class SentJob:
    """One engine to build elsewhere, including the weights of its network."""

    order: Order
    index: Index = field(repr=False)
    weights: bytes = field(repr=False)

    @classmethod
    def of(cls, job: Job) -> SentJob:
        """Create the job for a worker that cannot map the file, which was written when the job was first sent."""
        build = job.remote_build
        build.__reduce__()
        return cls(job.order, build.index or {}, build.path.read_bytes())

    def __call__(self) -> SentPlan:
        """Build the engine in a worker, from a file of the worker's own."""
        with tempfile.TemporaryDirectory(prefix="pipeline-sent-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "weights")
            path.write_bytes(self.weights)
            file = PlanFile()
            handle = RemoteBuild(self.order.network, path, None, self.index).opened()
            plan = serialize(handle, self.order, file, Monitor())
            return SentPlan(plan, bytes(file.mapped()))
