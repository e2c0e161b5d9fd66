"""load: ``Compiled`` → ``Compiled``. Load each engine on this GPU; compile operators that do not load in another form.

Before: any compiled program. After: the same, and all its engines load here; or one in which the operators for which
TensorRT has no kernel have another form, with their rows in ``coverage.healed``. Without a GPU that the program is
compiled for, nothing is done.
"""

from __future__ import annotations

import torch
from attrs import evolve, field, frozen

from pipeline.compiled import Compiled
from pipeline.compose.pipelines import StageLike, as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.errors import ExecutionError, PipelineError
from pipeline.records.library_support import check_library, warn_untested
from pipeline.runtime.engine_load import current_capability, is_for_this_gpu
from pipeline.runtime.program_engines import load_engines
from pipeline.settings import CompilationSettings
from pipeline.stages.build import build
from pipeline.stages.required import warn_of_little
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.loading import Loader, loadable
from pipeline.verification.recompile import Again


@frozen
class Load:
    """The stage. It is skipped with ``load_built_engines=False``.

    loader: loads a program's engines, and returns those that do not load.
    build: builds engines on trial, in this process and without a cache.
    before: the stages before it in its pipeline.
    """

    loader: Loader = field(default=load_engines, repr=False)
    build: StageLike = field(default=build, repr=False)
    before: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="load", kw_only=True)

    def following(self, before: tuple[AnyStage, ...]) -> Load:
        """Return this stage with those before it, with which it compiles again."""
        return evolve(self, before=before)

    def check_ready(self, settings: CompilationSettings) -> None:
        """Raise an `ExecutionError`, before anything is captured, if no engine of this TensorRT loads on this GPU."""
        for library in ("torch", "tensorrt-rtx"):
            warn_untested(library)
        if settings.load_built_engines and has_gpu() and is_for_this_gpu(settings.compute_capabilities):
            check_library(torch.cuda.get_device_name(), current_capability())

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return a program whose engines load.

        Raises:
            ExecutionError: no engine loads on this GPU; or one does not, and its pipeline lacks the stages to compile
                it again.
            UnsupportedOperatorException: an operator can run in PyTorch only, and that is not allowed.
        """
        warn_of_little(compiled)
        if not compiled.settings.load_built_engines or not compiled.engines:
            return compiled
        found = self.loader(compiled, keep=True)
        if found is None:
            return compiled
        if found.refused:
            stages = self.before or STAGES
            try:
                trial, final = Again.of(stages, as_stage(self.build)), Again.of(stages)
            except PipelineError as error:
                raise ExecutionError("; ".join(found.refused.values()), error.message) from error
            compiled, found = loadable(compiled, found, self.loader, trial, final)
        return evolve(compiled, kernels=found.kernels) if found is not None else compiled
