"""``pipeline.default`` returns the pipeline of all stages; ``pipeline.compile`` and ``pipeline.bisect`` run it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import torch

from pipeline.artifact.engine_cache_stage import wrap_in_engine_cache
from pipeline.artifact.measurement_file import measurement_store
from pipeline.capture.capture import Model
from pipeline.compiled import Compiled
from pipeline.compiled import Executor as Runs
from pipeline.compose.joins import is_empty
from pipeline.compose.pipelines import Pipeline
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable, select_decompositions
from pipeline.converters.registry import ConverterRegistry
from pipeline.export_fixes.torchscript.module import is_script
from pipeline.inputs import Input
from pipeline.program import Built, Program
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings
from pipeline.settings_migration import ELSEWHERE
from pipeline.stages import (
    Build,
    Choose,
    Decompose,
    Improve,
    Load,
    Validate,
    avoid_faults,
    convert,
    partition,
    refit_map,
    unbuilt,
)
from pipeline.stages.autocast import autocast
from pipeline.trt import CAPABILITIES, LIBRARY
from pipeline.verification.bisection import MAX_BUILDS, bisect_program
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.measure import Comparison, choose_executor
from pipeline.verification.recompile import Recompiler, check_compilable
from pipeline.verification.records import Bisection
from pipeline.verification.samples import UserInputs

PRECISIONS: Final[Mapping[str, torch.dtype | None]] = {
    **dict.fromkeys(("float32", "fp32", "f32"), None),
    **dict.fromkeys(("float16", "fp16", "f16", "half"), torch.float16),
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
}
"""The dtype of matmuls for each value of ``precision=``; None leaves the model in its own dtypes."""


def compile(
    model: Model,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    *,
    precision: str | torch.dtype | None = None,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[object] | None = None,
    settings: CompilationSettings | None = None,
    **fields: object,
) -> Compiled:
    """Compile a model: the same as ``pipeline.default(…)(model, …)``, in one call.

    Args:
        model: an nn.Module, ExportedProgram or TorchScript; or the path of an ONNX file (`pipeline.capture`).
        args, kwargs: example inputs: tensors, or ``pipeline.Input`` with a shape or a range of shapes.
        dynamic_shapes: the sizes that vary, as in ``torch.export.export``.
        precision: as for `default`.
        output_names, profiles: as for `pipeline.Pipeline`.
        settings: the settings; default ones if None.
        fields: fields of ``CompilationSettings`` that differ from ``settings``.

    Raises:
        TypeError, ValueError: an argument or a setting is invalid; the message says what is expected.
        PipelineError: the model cannot be captured, converted or built.
    """
    _check_keyword_spelling(fields, compile)
    made: Any = default
    stages = made(settings, precision=precision, **fields)
    compiled: Compiled = stages(model, args, kwargs, dynamic_shapes, output_names=output_names, profiles=profiles)
    return compiled


def add_precision_stage(
    compile: Pipeline[Program, Compiled], precision: str | torch.dtype | None, exclude: object = ()
) -> Pipeline[Program, Compiled]:
    """Return the pipeline with a mixed-precision stage before ``decompose``; unchanged for float32 and None.

    ``exclude``: the nodes that keep their dtype, as in `pipeline.autocast`.

    Raises:
        ValueError: ``precision`` is not float16, bfloat16 or float32, by torch's names or short ones.
    """
    name = str(precision).removeprefix("torch.")
    if precision is not None and name not in PRECISIONS:
        raise ValueError(f"precision must be 'float16', 'bfloat16' or 'float32' (fp16, bf16, fp32), got {precision!r}")
    dtype = None if precision is None else PRECISIONS[name]
    return compile if dtype is None else compile.insert(autocast(dtype, exclude=exclude), before="decompose")


def default(
    settings: CompilationSettings | None = None,
    *,
    precision: str | torch.dtype | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    decompositions: DecompositionTable = DECOMPOSITIONS,
    torch_enabled_decompositions: Iterable[object] | None = None,
    torch_disabled_decompositions: Iterable[object] | None = None,
    build_executor: Executor | None = None,
    **fields: object,
) -> Pipeline[Program, Compiled]:
    """Return the default pipeline: decompose → improve → validate → partition → avoid_faults →
    convert → build → refit_map → load → choose.

    Args:
        settings: the settings; default ones if None.
        precision: ``"float16"`` or ``"bfloat16"`` for mixed precision, the stage `autocast`; None or ``"float32"`` for
            the model's own dtypes. Inputs and outputs keep their dtypes.
        registry: the converters.
        decompositions: our own decompositions, which take precedence over converters.
        torch_enabled_decompositions: operators that torch decomposes before converters are looked up, in addition to
            those that it always decomposes.
        torch_disabled_decompositions: operators that are never decomposed: they have a converter or run in PyTorch.
        build_executor: a ``concurrent.futures.Executor`` that builds a program's engines in parallel; the caller shuts
            it down (see ``pipeline.stages.Build``). None: engines are built sequentially in this process.
        fields: fields of ``CompilationSettings`` that differ from ``settings``.

    Raises:
        TypeError: a field that ``CompilationSettings`` does not have, or a value of a wrong type.
        ValueError: a value out of range, an unknown precision, ``compute_capabilities`` that this TensorRT does not
            build for, or a decomposition that is enabled and disabled.
    """
    _check_argument_types(settings, registry, decompositions)
    _check_keyword_spelling(fields, default)
    settings = (settings or CompilationSettings()).evolve(**fields)
    if unknown := [c for c in settings.compute_capabilities if c not in CAPABILITIES.compute_capabilities]:
        known = ", ".join(CAPABILITIES.compute_capabilities)
        builds = f"builds for {known}" if known else "builds for the GPU of this machine only: leave it empty"
        raise ValueError(f"compute_capabilities: {LIBRARY} cannot build for {unknown[0]}; it {builds}")
    decompositions, whole = select_decompositions(
        decompositions, torch_enabled_decompositions, torch_disabled_decompositions
    )
    front = Decompose(registry, decompositions, whole), Improve(registry), Validate(registry, decompositions, whole)
    built = wrap_in_engine_cache(settings, Build(build_executor))
    back = partition, avoid_faults, convert, built, refit_map, Load(), Choose(kept=measurement_store(settings))
    return add_precision_stage(Pipeline((*front, *back), settings), precision)


def bisect(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    compile: Pipeline[Program, Any] | None = None,
    inputs: UserInputs = None,
    executor: Runs | None = None,
    multiple: float = MULTIPLE,
    limit: int = MAX_BUILDS,
) -> Bisection:
    """Find the smallest sets of nodes for which TensorRT's engines compute wrong results.

    The program is compiled as a whole, then with parts in TensorRT and the rest in PyTorch. Finding the first faulty
    node needs at most log2(nodes) + 4 builds, each further independent node log2(nodes) + 3 more.

    Args:
        model: an nn.Module or ExportedProgram with its ``args``, ``kwargs`` and ``dynamic_shapes``, as for a pipeline;
            or a `Compiled` without them.
        compile: the pipeline that compiles the model; the default pipeline if None. Stages after the one that returns
            `Compiled` (`verify`) are skipped.
        inputs, executor, multiple: as in `pipeline.verify`. With the reference executor no engines are built.
        limit: the largest number of builds; a search that reaches it returns the faulty sets found so far, with
            ``complete=False``.

    Returns:
        The faulty sets, each with its nodes, operators and source lines; the agreement of the whole program; and a
        script that reproduces the first wrong result.

    Raises:
        PipelineError: the pipeline does not have the usual records between its stages, or the program does not compile
            or run.
    """
    if type(limit) is not int or limit < 1:
        raise ValueError(f"limit must be a number of builds, at least 1, got {limit!r}")
    runs = choose_executor(executor)
    compile = _stages_until_compiled(default() if compile is None else compile, build_engines=runs == "tensorrt")
    alone = isinstance(model, Compiled)
    if alone and not (is_empty(args) and is_empty(kwargs) and dynamic_shapes is None):
        raise TypeError("a Compiled is bisected without args, kwargs and dynamic_shapes: pass inputs=[(x,)] for calls")
    compiled: Compiled = model if alone else compile(model, args, kwargs, dynamic_shapes)
    check_compilable(compiled.program)
    comparison = Comparison.create(compiled.program, runs, inputs, multiple)
    return bisect_program(
        compiled, comparison.measure_agreement(compiled), comparison, Recompiler.from_stages(compile.stages), limit
    )


def _stages_until_compiled(compile: Pipeline[Program, Any], *, build_engines: bool) -> Pipeline[Program, Any]:
    """Return a pipeline's stages up to the one that returns `Compiled`; engines are built only if ``build_engines``."""
    if not isinstance(compile, Pipeline):
        raise TypeError(f"compile must be a pipeline, such as pipeline.default(), got {kind_of(compile)}")
    last = next((step.name for step in compile if step.gives is Compiled), None)
    if last is None:
        due = "compile must be a pipeline that returns a Compiled, such as pipeline.default()"
        ends = f"one that ends with the stage {compile.names[-1]!r}" if compile.names else "one without stages"
        raise TypeError(f"{due}, got {ends}")
    compile = compile.until(last)
    built = next((step.name for step in compile if step.gives is Built), None)
    return compile if build_engines or built is None else compile.replace(built, unbuilt)


def _check_keyword_spelling(keywords: Mapping[str, object], function: Callable[..., object]) -> None:
    """Raise a `TypeError` if a keyword is no setting, but its spelling resembles an argument of the function."""
    arguments, known = [*inspect.signature(function).parameters][1:-1], CompilationSettings.names()
    for name in keywords:
        close = difflib.get_close_matches(name, (*arguments, *known), 1)
        if name not in (*known, *ELSEWHERE) and close and close[0] in arguments:
            raise TypeError(f"pipeline.{function.__name__} has no argument {name!r}; did you mean {close[0]!r}?")


def _check_argument_types(settings: object, registry: object, decompositions: object) -> None:
    if not isinstance(settings, CompilationSettings | None):
        if isinstance(settings, torch.nn.Module | torch.export.ExportedProgram) or is_script(settings):
            due = "pipeline.compile(model, args=(x,)), or pipeline.default()(model, args=(x,))"
            raise TypeError(f"pipeline.default takes settings, got a model, {kind_of(settings)}: write {due}")
        is_input = isinstance(settings, Input | torch.Tensor)
        how = ", and inputs to pipeline.compile(model, args=…)" if is_input else ""
        how = ", as pipeline.default(**settings)" if isinstance(settings, Mapping) else how
        by_name = "pass settings by name, such as min_block_size=1"
        raise TypeError(f"settings must be CompilationSettings, got {kind_of(settings)}: {by_name}{how}")
    if not isinstance(registry, ConverterRegistry):
        adopted = "; ConverterRegistry.from_legacy converts a dict of functions" if isinstance(registry, dict) else ""
        raise TypeError(f"registry must be a ConverterRegistry, got {kind_of(registry)}{adopted}")
    if not isinstance(decompositions, DecompositionTable):
        raise TypeError(f"decompositions must be a DecompositionTable, got {kind_of(decompositions)}")
