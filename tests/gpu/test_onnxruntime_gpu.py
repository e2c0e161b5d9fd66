"""The program of docs/onnx.md: a session of ONNX Runtime, in a process of its own, returns what the program does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline
from pipeline.artifact.named_io import outputs_by_name
from pipeline.trt import LIBRARY
from tests.artifact.test_epcontext import Rows, rows

pytestmark = pytest.mark.gpu
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
PROVIDER = "onnxruntime_ep_nv_tensorrt_rtx"


@pytest.fixture
def provider() -> None:
    """Skip where the provider is missing, or is for another version of TensorRT-RTX."""
    for package in ("onnx", "onnxruntime", PROVIDER):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    version = importlib.metadata.version("onnxruntime-ep-nv-tensorrt-rtx-cu13")
    if not (LIBRARY.startswith("tensorrt_rtx 1.6.1") and version.startswith("0.4.")):
        pytest.skip(f"{PROVIDER} {version} is not for {LIBRARY}: 0.4 is for tensorrt_rtx 1.6.1")


IMAGE = pipeline.Input(min_shape=(1, 3, 16, 16), opt_shape=(4, 3, 16, 16), max_shape=(16, 3, 16, 16))
CASES = {
    "convolution": (
        lambda: torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.GELU(), torch.nn.Flatten()),
        (IMAGE,),
        (torch.randn(7, 3, 16, 16),),
    ),
    "half": (lambda: torch.nn.Linear(8, 16).half(), (rows(torch.float16),), (torch.randn(5, 8).half(),)),
    "mask": (
        Rows,
        (rows(), rows(torch.bool), torch.ones(2)),
        (torch.randn(9, 8), torch.randn(9, 8) > 0, torch.ones(2)),
    ),
}
"""Models, the inputs that they are compiled for, and those of a call."""


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("name", CASES)
def test_a_session_returns_what_the_program_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    made, args, inputs = CASES[name]
    compile = pipeline.default().without("choose")  # which leaves to PyTorch what is faster there
    compiled = compile(made().eval().cuda(), args=args)
    compiled.save("model.onnx", "inside" if name == "half" else "model.plan", format="epcontext")
    names = [port.name for port in compiled.program.inputs]
    np.savez("inputs.npz", **dict(zip(names, (x.numpy() for x in inputs), strict=True)))
    (program,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    if "no device of the provider" in ran.stderr:
        pytest.skip(f"the provider refuses {torch.cuda.get_device_name()}: {ran.stderr.splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr[-3000:]
    expected = outputs_by_name(compiled.program, compiled(*(x.cuda() for x in inputs)))
    found = np.load("outputs.npz")
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        torch.testing.assert_close(torch.from_numpy(found[key]), value.cpu(), rtol=1e-3, atol=1e-3)
