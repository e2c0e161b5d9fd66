"""Submit builds to an executor's workers, wait for them, and raise errors that name the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait

from attrs import evolve

from pipeline.build.remote_build import Job, JobWithWeights
from pipeline.build.serialized_plans import Plan
from pipeline.errors import BuildError, PipelineError
from pipeline.records.wording import kind_of


def collect_plans(executor: Executor, jobs: Sequence[Job], progress: Callable[[int, int, str], object]) -> list[Plan]:
    """Run build jobs on workers; return the plans in order. After an error or Ctrl-C no further build starts, and
    threads stop building. The raised `BuildError` is the first error of a worker, or reports that a worker died.

    A worker that cannot access this machine's files returns None, and then receives the weights as bytes; its plan
    comes back as bytes and is written to the job's path. ``progress`` is called with the number of finished builds, the
    number of all builds, and the name of the last finished.
    """
    futures: dict[Future[object], Job] = {}
    plans: dict[str, Plan] = {}
    try:
        for job in jobs:
            futures[_submit(executor, job, job)] = job
        pending = {*futures}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                job = futures[future]
                found = _wait_for_result(future, futures)
                if found is None:
                    again = _submit(executor, job, JobWithWeights.from_job(job))
                    futures[again] = job
                    pending.add(again)
                    continue
                plans[str(job.path)] = _check_plan(job, found)
                progress(len(plans), len(jobs), job.order.name)
    except BaseException:
        for future, job in futures.items():
            future.cancel()
            job.remote_build.stopped.set()
        raise
    return [plans[str(job.path)] for job in jobs]


def _check_plan(job: Job, plan: Plan) -> Plan:
    """Verify the digest of a plan in the job's file; first write the file if the worker returned the plan as bytes."""
    if plan.data:
        job.path.write_bytes(plan.data)
    with job.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != plan.digest:
        hint = "build it again; if it happens again, check the worker's disk and its network connection"
        raise BuildError(f"{job.order.name}: the plan that arrived is not the plan that the worker built", hint)
    return evolve(plan, data=b"")


def _submit(executor: Executor, job: Job, work: Callable[[], object]) -> Future[object]:
    """Submit ``work``, the build of the job's engine, to an executor; raise a `BuildError` if it is refused."""
    try:
        future: object = executor.submit(work)
    except RuntimeError as error:
        hint = "pass an executor that has not been shut down, and whose worker processes are running"
        raise BuildError(f"{job.order.name}: the executor did not accept the build: {error}", hint) from error
    if not isinstance(future, Future):
        raise BuildError(f"{job.order.name}: the executor's submit() returned {kind_of(future)}, not a Future", _NONE)
    return future


def _wait_for_result(future: Future[object], futures: Mapping[Future[object], Job]) -> Plan | None:
    """Return what a build returned; raise a `BuildError` if it failed. ``futures``: all builds with their jobs."""
    name = futures[future].order.name
    try:
        plan = future.result()
    except PipelineError:
        raise
    except CancelledError as error:
        raise BuildError(f"{name}: the executor cancelled its build", "shut it down only after all builds") from error
    except BrokenExecutor as error:
        built = {each for each in futures if each.done() and not each.cancelled() and each.exception() is None}
        begun = (job.order.name for each, job in futures.items() if job.path.exists() and each not in built)
        names = ", ".join(begun) or name
        raise BuildError(f"{names}: a worker process crashed or was killed in the build ({error})", _ENDED) from error
    except Exception as error:
        raise BuildError(f"{name}: its build raised {type(error).__name__} in a worker: {error}", _NONE) from error
    if not isinstance(plan, Plan | None):
        raise BuildError(f"{name}: its worker returned {kind_of(plan)} instead of an engine plan", _NONE)
    return plan


_NONE = "leave the executor out: the engines are then built in this process"
_ENDED = (
    "TensorRT can crash on a network that it does not check, or the machine was out of memory: build one engine at a "
    "time (an executor with one worker), and run its operators in PyTorch (torch_executed_ops)"
)
