"""Check the requirements of the settings on a partitioned program, and warn if engines run little of it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from pipeline.aten.calls import find_operator
from pipeline.aten.traits import Kind, op_kind
from pipeline.compiled import Compiled
from pipeline.errors import CoverageWarning, Fallback, QuantizationError, UnsupportedOperatorException, warn
from pipeline.program import Partitioned

QUANTIZED: Final = (Kind.QUANTIZES, Kind.DEQUANTIZES)
SHOWN: Final = 3
"""The maximum number of reasons that the warning about low coverage lists."""

_NAMES = re.compile(r"\b(?:the result|its input|its argument) \S+")
_ONE = {"the result": "a result", "its input": "an input", "its argument": "an argument"}


def check_requirements(partitioned: Partitioned) -> None:
    """Raise an error if the program does not meet ``require_full_compilation`` or ``require_fused_quantization``.

    Raises:
        UnsupportedOperatorException: ``require_full_compilation`` is set, and the program has no operator at all.
        QuantizationError: ``require_fused_quantization`` is set, and a quantized operator runs in PyTorch, or no
        operator is quantized.
    """
    settings, segments = partitioned.program.settings, partitioned.engine_segments
    if settings.require_full_compilation and not any(segment.nodes for segment in segments):
        raise UnsupportedOperatorException((), 0)
    if not settings.require_fused_quantization:
        return
    if outside := [fallback for fallback in partitioned.fallbacks if _is_quantization_operator(fallback.target)]:
        raise QuantizationError("PyTorch", outside)
    names = {name for segment in segments for name in segment.nodes}
    if not any(_is_quantization_operator(partitioned.verdicts[name].target) for name in names):
        raise QuantizationError("the program", ())


def warn_low_coverage(compiled: Compiled) -> None:
    """Warn if engines run no operator or less than half of the operators, with the most frequent reasons."""
    coverage = compiled.coverage
    converted, total = len(coverage.converted), coverage.total
    sizes = tuple(port.value for port in compiled.program.inputs)
    if not total and sizes and all(type(size) is int for size in sizes):
        instead = f"for a tensor of this shape, pass args=(pipeline.Input(shape={sizes}),)"
        warn(f"all inputs are numbers, {sizes}, so no operator runs in an engine: {instead}", CoverageWarning)
    if 2 * converted >= total:
        return
    reasons = Counter(map(_fallback_reason, coverage.fallback)).most_common()
    rows = [f"  {number} operator{'s'[: number != 1]}: {why}" for why, number in reasons[:SHOWN]]
    more = [f"  and {len(reasons) - SHOWN} other reasons"] if len(reasons) > SHOWN else []
    first = f"{converted} of {total} operators run in TensorRT, the others in PyTorch:"
    last = "  compiled.report() lists each operator; require_full_compilation=True makes this an error"
    warn("\n".join([first, *rows, *more, last]), CoverageWarning)


def _fallback_reason(fallback: Fallback) -> str:
    """Return the first reason why an operator runs in PyTorch, without names of tensors, followed by the hint."""
    why = _NAMES.sub(lambda match: _ONE[match[0].rpartition(" ")[0]], fallback.reason.split("; ")[0])
    return f"{why} ({fallback.hint.split('; ')[0]})" if fallback.hint else why


def _is_quantization_operator(target: str) -> bool:
    """Return whether the operator with this name quantizes or dequantizes."""
    operator = find_operator(target)
    return operator is not None and op_kind(operator) in QUANTIZED
