"""PyTorch's OpInfo: the sample inputs of every operator that the installed torch tests itself with."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.suites.judge import Case, Row, judged_call

DTYPES = {torch.float32: 6, torch.float16: 2, torch.int64: 2}
"""How many samples of an operator are tried in each dtype, spread over all that it has."""
ANY_INDEX = {"kthvalue", "median", "mode", "nanmedian", "topk"}
"""Operators that return the index of any of equal elements: their values are compared."""


def cases() -> Iterator[Case]:
    """Yield a case for each sample; ``expecttest`` must be installed."""
    from torch.testing._internal.common_methods_invocations import op_db

    for dtype, most in DTYPES.items():
        for op in op_db:
            if op.supports_dtype(dtype, "cpu"):
                for index in range(most):
                    yield Case(
                        f"{op.formatted_name}[{dtype}][{index}]".replace("torch.", ""),
                        partial(_judge, op, dtype, index, most),
                    )


def version() -> str:
    """Return the version of the suite."""
    return f"torch {torch.__version__.partition('+')[0]}"


def _judge(op: Any, dtype: torch.dtype, index: int, most: int) -> Row:
    torch.manual_seed(zlib.crc32(op.formatted_name.encode()))
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    except Exception as error:
        return {"outcome": "no case", "reason": str(error)}
    if index >= min(most, len(samples)):
        return {"outcome": "no case", "reason": "fewer samples"}
    sample = samples[index * len(samples) // min(most, len(samples))]
    function = partial(_values, op.op) if op.name in ANY_INDEX else op.op
    return judged_call(function, (sample.input, *sample.args), sample.kwargs)


def _values(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the first result of a function that returns several, or its only one."""
    results = function(*args, **kwargs)
    return results[0] if isinstance(results, tuple) else results
