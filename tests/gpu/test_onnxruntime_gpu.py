"""The program of docs/onnx.md: a session of ONNX Runtime, in a process of its own, returns what the program does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline
from pipeline.trt import LIBRARY

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


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("plan", ["inside", "model.plan"])
def test_a_session_returns_what_the_program_does(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(8 * 49, 5)
    image = pipeline.Input(min_shape=(1, 3, 16, 16), opt_shape=(4, 3, 16, 16), max_shape=(16, 3, 16, 16))
    compiled = pipeline.compile(torch.nn.Sequential(*convolution).eval().cuda(), args=(image,))
    compiled.save("model.onnx", plan, format="epcontext")
    x = torch.randn(7, 3, 16, 16)
    np.save("x.npy", x.numpy())
    (program,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    if "no device of the provider" in ran.stderr:
        pytest.skip(f"the provider refuses {torch.cuda.get_device_name()}: {ran.stderr.splitlines()[-1]}")
    assert ran.returncode == 0, ran.stderr[-3000:]
    torch.testing.assert_close(torch.from_numpy(np.load("y.npy")), compiled(x.cuda()).cpu(), rtol=0, atol=1e-5)
