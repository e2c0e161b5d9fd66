"""cached: a stage, or a whole pipeline, behind a store that keeps its results."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import torch
from attrs import evolve, field, frozen

from pipeline.artifact.begun import Begun, hint_of, plan_of
from pipeline.artifact.cached import Cached
from pipeline.artifact.engine_entry import CorruptEntryError
from pipeline.artifact.engine_store import EngineStore, FileStore, as_files, warn
from pipeline.artifact.identity import NoIdentityError
from pipeline.artifact.program_entry import EntryLoader, entry_of
from pipeline.artifact.program_key import hint_key, program_key, stages_of
from pipeline.artifact.sums import THREADS
from pipeline.compiled import Compiled
from pipeline.compose.pipelines import FunctionStage, Named, Pipeline, StageLike, report
from pipeline.compose.stage_signature import AnyStage
from pipeline.errors import ArtifactError
from pipeline.program import Built, Program
from pipeline.stages.build import build, faults
from pipeline.stages.unbuilt import unbuilt

log = logging.getLogger(__name__)


@frozen
class CachedProgram:
    """The stage: a pipeline from `Program` to `Compiled` behind a store of programs and of their engines.

    store: where programs and engines are kept.
    compile: the pipeline that compiles missing programs.
    reuse: take programs and engines from the store.
    keep: save those that were compiled.
    """

    store: EngineStore = field(hash=False)
    compile: Pipeline[Program, Compiled]
    reuse: bool = True
    keep: bool = True
    begun: Begun | None = field(default=None, eq=False, repr=False)
    hint: str = field(default="", eq=False, repr=False)
    name: str = field(default="compile", repr=False)

    def __call__(self, program: Program) -> Compiled:
        """The program, from the store or compiled. One that has no digest is compiled, with a warning."""
        try:
            known = self.begun.known if self.begun else lambda tensor: None
            key = program_key(program, stages_of(self.compile.stages), known)
        except NoIdentityError as error:
            warn(f"the program is compiled, and not taken from the cache or kept there: {error.message}")
            return self.compile(program)
        files = as_files(self.store)
        made = self._found(files, key, program) if self.reuse else None
        if made is None:
            made = self.compile(program)
            if self.keep:
                self._save(files, key, made, program)
        return made

    def started(self, model: object) -> CachedProgram:
        """Return this stage, with the work started that can be done while the model is captured."""
        try:
            stages = stages_of(self.compile.stages)
        except NoIdentityError:
            return self
        hint = hint_key(model, stages) if isinstance(model, torch.nn.Module) else ""
        return evolve(self, begun=Begun.of(model, as_files(self.store), hint), hint=hint)

    def _found(self, files: FileStore, key: str, captured: Program) -> Compiled | None:
        """The program in the store, or None. Errors of the store become warnings."""
        try:
            opened = files.opened(key)
            if opened is None:
                return None
            with opened[0] as file, ThreadPoolExecutor(THREADS) as threads:
                data = file.read(opened[1])
                loader = EntryLoader(data, key, captured, lambda *each: self._plan(files, *each), threads)
                made = loader.compiled()
        except _NoEngineError as error:
            log.info("the program %s is compiled again: %s", key, error)
            return None
        except (ArtifactError, CorruptEntryError) as error:
            warn(f"the entry {key} of the cache is dropped: {error}; the program is compiled")
            files.drop(key)
            return None
        except Exception as error:
            warn(f"the cache failed ({type(error).__name__}: {error}); the program is compiled")
            return None
        report(1, 1, "from the cache")
        log.info("the program comes from the cache (%s)", key)
        return made

    def _plan(self, files: FileStore, key: str, digest: str) -> Any:
        """The plan of an engine, if it is the one that the program had."""
        found = (self.begun.plan(key) if self.begun else None) or plan_of(files, key)
        if found is None or found[0] != digest:
            raise _NoEngineError(f"its engine {key} is not in the store any more, or was built anew")
        return found[1]

    def _save(self, files: FileStore, key: str, made: Compiled, captured: Program) -> None:
        """Keep a program, and name its engines under the hint. Engines that are known to be wrong are compiled each
        time, since compiling warns of them."""
        rows = zip(made.networks, made.engines, strict=False)
        if any(faults(network, engine.plan) for network, engine in rows):
            log.info("the program is not kept: its engines have kernels that are known to be wrong")
            return
        try:
            files.write(key, [entry_of(made, captured)])
            if self.hint:
                files.write(self.hint, [hint_of([engine.key for engine in made.engines])])
        except Exception as error:
            warn(f"the program cannot be kept in the cache: {type(error).__name__}: {error}")


class _NoEngineError(Exception):
    """An engine of a program that the store has is not there."""


@frozen(repr=False)
class CachedPipeline(Pipeline[Program, Compiled]):
    """A pipeline whose one stage is `CachedProgram`, which starts working while the model is captured."""

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As a pipeline."""
        (step,) = self.stages
        stage: CachedProgram = step.function  # type: ignore[attr-defined]
        started = stage if isinstance(model, Program) else stage.started(model)
        try:
            return Pipeline((started,), self._settings, self.observers)(model, *args, **kwargs)
        finally:
            if started.begun is not None:
                started.begun.end()


@overload
def cached(
    store: EngineStore, stage: Pipeline[Program, Compiled], *, reuse: bool = ..., keep: bool = ...
) -> Pipeline[Program, Compiled]: ...
@overload
def cached(store: EngineStore, stage: StageLike = ..., *, reuse: bool = ..., keep: bool = ...) -> Cached: ...
def cached(
    store: EngineStore, stage: Any = build, *, reuse: bool = True, keep: bool = True
) -> Cached | Pipeline[Program, Compiled]:
    """Put a store before a stage that builds, or before a whole pipeline.

    ``pipeline.default().replace("build", pipeline.cached(store))`` keeps engines. The key of an engine covers
    everything that reaches it: the network's layers and their arguments, shapes and ranges, weights, the builder's
    settings, the library, its version and its targets; but not the names of nodes and sizes.

    ``pipeline.cached(store, pipeline.default())`` keeps engines and whole programs: one that was compiled before is not
    even decomposed. The key of a program covers the captured graph, the values of its weights, the stages, settings and
    versions. If a stage or converter is a function of your own, which has no digest, or the model calls an operator of
    your own, you get a warning and only engines are kept. A program from the store is like a loaded one, with the
    model's own tensors and ``program.source``: it has only the names of converters and of operators that run in
    engines.

    Args:
        store: a `pipeline.DiskStore`, a `pipeline.FsspecStore`, or any object with the methods
            ``load(key) -> bytes | None`` and ``save(key, data)``.
        stage: builds missing engines: ``pipeline.stages.Build(build_executor)``, say; or a pipeline that compiles
            programs. Change the pipeline's stages before you cache it.
        reuse: take engines and programs from the store.
        keep: save new engines and programs.

    Raises:
        TypeError: ``store`` lacks one of the two methods.
    """
    if not isinstance(stage, Pipeline):
        return Cached(store, stage, reuse, keep)
    steps = tuple(_with_engines(store, step, reuse, keep) for step in stage.stages)
    program = CachedProgram(store, Pipeline(steps, stage._settings, stage.observers), reuse, keep)
    return CachedPipeline((program,), stage._settings, stage.observers)


def _with_engines(store: EngineStore, step: AnyStage, reuse: bool, keep: bool) -> AnyStage | Cached:
    """A stage that builds engines with the store before it, unless it has one; any other as it is."""
    inner: Any = step
    while isinstance(inner, FunctionStage | Named):
        inner = inner.function if isinstance(inner, FunctionStage) else inner.stage
    if step.gives is not Built or isinstance(inner, Cached) or step is unbuilt:
        return step
    return Cached(store, step, reuse, keep, name=step.name)
