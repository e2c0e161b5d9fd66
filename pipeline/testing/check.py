"""``check``: test all properties of an operator's converter on one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Literal, TypeVar

import torch
from attrs import field, frozen

from pipeline.compiled import Compiled, Executor
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry, Rejection
from pipeline.errors import PipelineError
from pipeline.network.description import Network
from pipeline.program import Converted, Partitioned, Program
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import shape_of
from pipeline.stages import Decompose, Validate, avoid_faults, convert, partition, refit_map
from pipeline.stages import build as build_stage
from pipeline.stages.unbuilt import unbuilt
from pipeline.testing.calls import Call
from pipeline.testing.compare import Expected, compute_expected, describe_difference
from pipeline.testing.programs import CallError, CallProgram, build_call_program, first_difference
from pipeline.trt import has_gpu

Kind = Literal["decomposes", "converts", "deterministic", "runs", "values", "builds", "used"]
T = TypeVar("T")


class CheckError(PipelineError, AssertionError):
    """A converter fails a check: ``kind`` is the property that failed, ``call`` is the call, and ``converter`` is the
    name of the tested function ("" for a converter of the registry)."""

    converter = ""

    def __init__(self, kind: Kind, call: Call, message: str) -> None:
        super().__init__(message)
        self.kind, self.call = kind, call
        self.args = (kind, call, message)

    def __str__(self) -> str:
        """Return the error message, followed by Python code that reproduces the failure."""
        lines = ["import torch", "import pipeline", "from pipeline.testing import *"]
        own = f", registry=pipeline.DYNAMO_CONVERTERS.override({self.converter})" if self.converter else ""
        snippet = "\n".join([*lines, f"check({self.call!r}{own})"])
        return f"{self.kind}: {self.call.target}: {self.message}\n\n{snippet}"


@frozen
class Checked:
    """The result of a passed ``check``. ``used``: the target's own converter ran; ``built``: an engine was built."""

    call: Call
    networks: tuple[Network, ...] = field(repr=False)
    tried: tuple[Mapping[str, int], ...]
    used: bool
    built: bool


@frozen
class Rejected:
    """The result of ``check`` for a call that cannot run in an engine, with the reasons. It is falsy."""

    call: Call
    reasons: tuple[Rejection, ...]

    def __bool__(self) -> bool:
        return False


def check(
    call: Call,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    decompositions: DecompositionTable = DECOMPOSITIONS,
    settings: CompilationSettings | None = None,
    dynamic: bool | None = None,
    build: bool = False,
    executors: Sequence[Executor] | None = None,
    used: bool = False,
    devices: Sequence[str] = (),
) -> Checked | Rejected:
    """Compile a program that consists of this call, and compare it with eager PyTorch at each of ``call.sizes_to_try``.

    The check requires that two conversions produce the same network, that this network runs at all sizes, and, if
    requested, that an engine builds. Every result must have the operator's dtype and shape, and NaN and infinities
    where eager has them. A result's float64 error may exceed eager's by a few units in the last place (``ULPS``).

    Args:
        call: the operator call.
        registry, decompositions, settings: what to compile with. ``decompositions`` take precedence over converters.
        dynamic: False makes all sizes static; True requires named sizes in the call; None uses the call unchanged.
        build: also build the engine.
        executors: the executors to run on; None: the CPU reference, and TensorRT if ``build`` and there is a GPU.
        devices: further devices to capture for (``"cuda"``): if a device's graph differs, that graph is checked too.
        used: fail if a decomposition took precedence over the target's own converter.

    Returns ``Checked``, or ``Rejected`` with the reasons if part of the call would run in PyTorch.

    Raises:
        CheckError: a check failed; the message has a snippet that reproduces it.
        CallError: PyTorch itself does not accept the call.
        TypeError: ``call`` is not a `Call`.
    """
    call, settings = _choose_static_or_dynamic(call, dynamic), settings or CompilationSettings()
    made = build_call_program(call, settings)
    decompose, validate = Decompose(registry, decompositions), Validate(registry)
    partitioned = run_or_fail("converts", call, lambda: avoid_faults(partition(validate(decompose(made.program)))))
    if partitioned.fallbacks:
        refused = (verdict.reasons for verdict in partitioned.verdicts.values() if not verdict.supported)
        return Rejected(call, tuple(chain.from_iterable(refused)))
    converted = _convert_twice(call, partitioned)
    was_used = _uses_own_converter(call, partitioned, used)
    build = build or "tensorrt" in (executors or ())
    built = run_or_fail("builds", call, lambda: build_stage(converted)) if build else None
    for executor in default_executors(build) if executors is None else executors:
        compare_with_eager(call, made, refit_map(built or unbuilt(converted)), executor)
    for device in devices:
        _check_on_device(device, call, partitioned.program, registry, decompositions, settings)
    return Checked(call, converted.networks, call.sizes_to_try, was_used, build)


def _choose_static_or_dynamic(call: Call, dynamic: bool | None) -> Call:
    """Return the call, with static sizes if ``dynamic`` is False; raise an error if True and no size is named."""
    if not isinstance(call, Call):
        example = "Call(torch.ops.aten.relu.default, (TensorSpec((2, 3)),))"
        raise TypeError(f"check takes a call, such as {example}, got {call!r}")
    if dynamic and not call.is_dynamic:
        raise ValueError(f"dynamic=True, but the call names no sizes: {call!r}")
    return call.with_static_sizes() if dynamic is False else call


def _check_on_device(
    device: str,
    call: Call,
    program: Program,
    registry: ConverterRegistry,
    decompositions: DecompositionTable,
    settings: CompilationSettings,
) -> None:
    """Capture the call with its tensors on ``device``; run `check` on the result if it differs from ``program``. Do
    nothing if PyTorch does not accept the call there."""
    device_settings = settings.evolve(device=device)
    try:
        with suppress(CallError):
            captured = build_call_program(call, device_settings).program
            decomposed = run_or_fail("converts", call, lambda: Decompose(registry, decompositions)(captured))
            if not first_difference(program, decomposed):
                return
            result = check(call, registry=registry, decompositions=decompositions, settings=device_settings)
            if isinstance(result, Rejected):
                raise CheckError(
                    "converts", call, f"part of it would run in PyTorch: {'; '.join(map(str, result.reasons))}"
                )
    except CheckError as error:
        raise CheckError(error.kind, call, f"captured as on {device}: {error.message}") from error


def _convert_twice(call: Call, partitioned: Partitioned) -> Converted:
    """Convert a call twice, check that the two networks are equal, and return the result."""
    first, second = (run_or_fail("converts", call, lambda: convert(partitioned)) for _ in range(2))
    if str(first) != str(second):
        raise CheckError("deterministic", call, f"two conversions differ:\n{first}\n\n{second}")
    return first


def _uses_own_converter(call: Call, partitioned: Partitioned, required: bool) -> bool:
    """Return whether an engine runs the call's operator itself, so its converter is tested, and not a decomposition;
    if not, and if ``required``, raise a `CheckError`."""
    kept = {node.name for node in partitioned.program.graph.nodes if node.target is call.target}
    found = any(name in kept for segment in partitioned.engine_segments for name in segment.nodes)
    if required and not found:
        raise CheckError(
            "used", call, f"used=True, but its converter was not used; the program is\n{partitioned.program}"
        )
    return found


def default_executors(build: bool) -> tuple[Executor, ...]:
    """Return the executors to run on: the CPU reference, and TensorRT if engines are built and there is a GPU."""
    return ("reference", "tensorrt") if build and has_gpu() else ("reference",)


def compare_with_eager(call: Call, call_program: CallProgram, compiled: Compiled, executor: Executor) -> None:
    """Run ``compiled`` and, in eager, ``call`` at each of ``call.sizes_to_try``; raise a `CheckError` if results
    differ. ``call_program``: the captured program, which gives the arguments for the sizes."""
    module = run_or_fail("runs", call, lambda: compiled.module(executor))
    for sizes in call.sizes_to_try:
        where = f" with {', '.join(f'{n} = {s}' for n, s in sizes.items()) or 'these sizes'} on {executor}"
        arguments = call_program.arguments(call, sizes)
        results = run_or_fail("runs", call, partial(module, *arguments), where)
        expected = compute_expected(call, sizes, [fake.dtype for fake in _fake_outputs(call_program.program)])
        _check_fake_tensors(expected, call_program.program)
        for i, got in enumerate(results):
            if fault := describe_difference(expected, i, got.cpu(), executor):
                name = f"result {i}" if len(results) > 1 else "the result"
                networks = "\n\n".join(map(str, module.compiled.networks))
                raise CheckError("values", call, f"{name}{where}: {fault}\n\n{networks}")


def _check_fake_tensors(expected: Expected, program: Program) -> None:
    """Raise a `CallError` if results in eager and on fake tensors, which converters see, differ in a dtype or size.

    They differ, for example, if tracing replaces a dynamic size by its current value: Torch 2.11 does so for the size
    ``int(k * 1.7)`` of the result of upsample_linear1d.
    """
    for result, fake in zip(expected.eager, _fake_outputs(program), strict=True):
        if result.dtype != fake.dtype:
            raise CallError(f"PyTorch returns {result.dtype} in eager mode, but {fake.dtype} when it is traced")
        sizes = shape_of(fake)
        seen = [s if isinstance(s, int) else r for s, r in zip(sizes, result.shape, strict=False)]
        if len(sizes) == result.dim() and seen != list(result.shape):
            raise CallError(f"PyTorch returns {list(result.shape)} in eager mode, but {list(sizes)} when it is traced")


def _fake_outputs(program: Program) -> list[torch.Tensor]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    return [values[output.value] for output in program.outputs]


def run_or_fail(kind: Kind, call: Call, function: Callable[[], T], where: str = "") -> T:
    """Return the function's result; convert an exception to a `CheckError` of this kind, whose text has ``where``."""
    try:
        return function()
    except CheckError:
        raise
    except Exception as error:
        raise CheckError(kind, call, f"this step raised {type(error).__name__}{where}: {error}") from error
