"""load: ``Compiled`` → ``Compiled``. Load each engine on this GPU; recompile operators whose engine does not load.

Before: any compiled program. After: a program whose engines all load on this GPU. Operators for which TensorRT has no
kernel are computed differently, and ``coverage.healed`` lists them. Without a GPU that the program is compiled for, the
stage does nothing.
"""

from __future__ import annotations

import torch
from attrs import evolve, field, frozen

from pipeline.compiled import Compiled
from pipeline.compose.pipelines import StageLike, as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.errors import ExecutionError, PipelineError
from pipeline.records.library_support import check_engines_load, warn_if_untested
from pipeline.runtime.engine_load import current_capability, is_for_this_gpu
from pipeline.runtime.program_engines import try_loading_engines
from pipeline.settings import CompilationSettings
from pipeline.stages.build import build
from pipeline.stages.required import warn_low_coverage
from pipeline.stages.verify import STAGES
from pipeline.trt import has_gpu
from pipeline.verification.loading import Loader, make_loadable
from pipeline.verification.recompile import Recompiler


@frozen
class Load:
    """The stage that recompiles what does not load as an engine. It is skipped with ``load_built_engines=False``.

    loader: loads a program's engines, and returns the engines that do not load.
    build: builds engines to try whether they load, in this process and without a cache.
    earlier_stages: those of the pipeline, which compile the program again; the pipeline sets them.
    """

    loader: Loader = field(default=try_loading_engines, repr=False)
    build: StageLike = field(default=build, repr=False)
    earlier_stages: tuple[AnyStage, ...] = field(default=(), eq=False, repr=False, kw_only=True)
    name: str = field(default="load", kw_only=True)

    def check_ready(self, settings: CompilationSettings) -> None:
        """Raise an `ExecutionError` before the capture if no engine of this TensorRT version can load on this GPU."""
        for library in ("torch", "tensorrt-rtx"):
            warn_if_untested(library)
        if settings.load_built_engines and has_gpu() and is_for_this_gpu(settings.compute_capabilities):
            check_engines_load(torch.cuda.get_device_name(), current_capability())

    def __call__(self, compiled: Compiled) -> Compiled:
        """Return a program whose engines load.

        Raises:
            ExecutionError: no engine loads on this GPU, or an engine does not load and the pipeline lacks the stages to
                compile it again.
            UnsupportedOperatorException: an operator can run only in PyTorch, and the settings do not allow that.
        """
        warn_low_coverage(compiled)
        if not compiled.settings.load_built_engines or not compiled.engines:
            return compiled
        found = self.loader(compiled, keep=True)
        if found is None:
            return compiled
        if found.refused:
            stages = self.earlier_stages or STAGES
            try:
                trial, final = Recompiler.from_stages(stages, as_stage(self.build)), Recompiler.from_stages(stages)
            except PipelineError as error:
                reasons = "; ".join(found.refused.values())
                raise ExecutionError(f"engines of the program do not load: {reasons}", error.message) from error
            compiled, found = make_loadable(compiled, found, self.loader, trial, final)
        return evolve(compiled, kernels=found.kernels) if found is not None else compiled
