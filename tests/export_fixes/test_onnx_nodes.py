"""ONNX's own cases of nodes: none is wrong of the operators that are refused in part, and of some others."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.export_fixes.onnx_file import WRONG_CONVERSIONS, read_onnx_file

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnx2fx", reason="the extra onnx is not installed")
MODULES = (
    *("batch_normalization", "convinteger", "dropout", "eyelike", "lpnormalization", "pad", "pow", "quantizelinear"),
    *(
        "reducemax",
        "resize",
        "spacetodepth",
        "reshape",
        "expand",
        "shape",
        "slice",
        "gather",
        "gemm",
        "conv",
        "maxpool",
    ),
    *("softmax", "concat", "split", "reducemean", "layernormalization", "matmul", "where", "cast", "transpose"),
)
ALWAYS = {
    *("Attention", "DynamicQuantizeLinear", "QLinearMatMul", "SoftmaxCrossEntropyLoss", "SplitToSequence", "Swish")
}
"""Operators of `WRONG_CONVERSIONS` that are always refused, and whose cases are many."""


def equal(ours: torch.Tensor, theirs: Any) -> bool:
    found = ours.float().numpy() if ours.dtype == torch.bfloat16 else ours.numpy()
    if found.shape != theirs.shape or found.dtype.kind != theirs.dtype.kind:
        return False
    tolerance = {"rtol": 2e-3, "atol": 1e-3 if theirs.dtype == np.float16 else 1e-5, "equal_nan": True}
    return bool(np.allclose(found, theirs, **tolerance) if theirs.dtype.kind in "fc" else np.array_equal(found, theirs))


def result(case: Any, path: Path) -> str:
    """Return how a case ends: right, wrong, refused, or not computed by torch."""
    given, expected = case.data_sets[0]
    try:
        inputs = [torch.from_numpy(np.array(each)) for each in given]
    except (TypeError, ValueError):
        return "not read"
    onnx.save(case.model, path)
    try:
        outputs = read_onnx_file(path).module(*inputs).values()
    except pipeline.CaptureError:
        return "refused"
    except Exception:
        return "not computed"
    return "right" if all(map(equal, outputs, map(np.asarray, expected))) else "wrong"


def test_no_case_is_wrong(tmp_path: Path) -> None:
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:  # importing one adds its cases; all would take 20 seconds
            importlib.import_module(f"{node.__name__}.{name}")
        cases = [case for case in node._NodeTestCases if "expanded" not in case.name]
        ends = {case.name: result(case, tmp_path / "m.onnx") for case in cases}
    assert not [name for name, end in ends.items() if end == "wrong"]
    assert Counter(ends.values())["right"] > 150
    refused = {case.model.graph.node[-1].op_type for case in cases if ends[case.name] == "refused"}
    assert refused >= WRONG_CONVERSIONS.keys() - ALWAYS
