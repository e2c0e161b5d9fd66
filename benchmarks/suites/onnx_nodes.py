"""ONNX's backend tests of nodes: each is an ONNX file with inputs and the outputs that ONNX computed for them."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pipeline
from benchmarks.suites.judge import COMPILE, Case, Row, draws, said
from pipeline.errors import CaptureError
from pipeline.export_fixes.onnx_file import read_onnx_file

FLOATS = "fc"
"""Kinds of dtypes whose values may differ by ONNX's own tolerance, 1e-3."""


def cases() -> Iterator[Case]:
    """Yield a case for each node test; the packages ``onnx`` and ``onnx2fx`` must be installed."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        if "expanded" not in case.name:  # the same computation, written in other nodes
            yield Case(case.name, partial(_judge, case))


def version() -> str:
    """Return the version of the suite."""
    return f"onnx {importlib.metadata.version('onnx')}"


def _judge(case: Any) -> Row:
    import onnx

    given, expected = case.data_sets[0]
    try:
        inputs = tuple(torch.from_numpy(np.array(each)) for each in given)
        wanted = [np.asarray(each) for each in expected]
    except (TypeError, ValueError) as error:
        return {"outcome": "no case", "reason": f"NumPy or torch has no such input: {said(error)}"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "node.onnx")
        onnx.save(case.model, path)
        try:
            compiled: pipeline.Compiled = COMPILE(pipeline.capture(path, inputs))
            results = compiled.module("reference")(*inputs)
        except CaptureError as error:
            return {"outcome": "refused", "reason": said(error).replace(str(path), "the file")}
        except Exception as error:
            with suppress(Exception):
                read_onnx_file(path).module(*inputs)
                return {"outcome": "wrong", "reason": f"{type(error).__name__}: {said(error)}"}
            return {"outcome": "refused", "reason": f"eager PyTorch does not run it either: {said(error)}"}
    reasons = Counter(f"{fallback.target}: {fallback.reason}" for fallback in compiled.coverage.fallback)
    row = {"operators": compiled.coverage.total, "in_pytorch": dict(reasons)}
    fault = "" if draws(compiled) else _difference(list(results.values()), wanted)
    return {"outcome": "wrong", "reason": fault, **row} if fault else {"outcome": "right", **row}


def _difference(results: Sequence[torch.Tensor], wanted: Sequence[Any]) -> str:
    """Describe the first result that is not ONNX's; empty if all are."""
    for number, (result, expected) in enumerate(zip(results, wanted, strict=True)):
        found = (result.float() if result.dtype == torch.bfloat16 else result).numpy()
        if (found.shape, found.dtype.kind) != (expected.shape, expected.dtype.kind):
            return f"output {number}: {found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
        tolerance = {"rtol": 1e-3, "atol": 1e-3 if expected.dtype == np.float16 else 1e-6}
        close = partial(np.allclose, equal_nan=True, **tolerance) if found.dtype.kind in FLOATS else np.array_equal
        if not close(found, expected):
            return f"output {number}: {found.reshape(-1)[:3]}, expected {expected.reshape(-1)[:3]}"
    return ""
