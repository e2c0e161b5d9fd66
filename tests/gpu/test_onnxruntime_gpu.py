"""The program of docs/onnx.md: a session of ONNX Runtime, in a process of its own, returns what the program does."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

import pipeline
from pipeline.artifact.named_io import outputs_by_name
from pipeline.trt import LIBRARY

pytest.importorskip("onnx", reason="the extra onnx is not installed")

from tests.artifact.test_epcontext import Rows, rows
from tests.docs.test_onnxruntime_cpp import built

pytestmark = pytest.mark.gpu
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
PROVIDER = "onnxruntime_ep_nv_tensorrt_rtx"
LIBRARY_FILE = "libonnxruntime_providers_nv_tensorrt_rtx.so"


@pytest.fixture(scope="module")
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


@attrs.frozen
class Saved:
    """A folder with a program as ``model.onnx``, what it is called with, and what our module returns."""

    folder: Path
    inputs: dict[str, torch.Tensor]
    expected: dict[str, torch.Tensor]

    def check(self, ran: subprocess.CompletedProcess[str], found: Callable[[str], np.ndarray]) -> None:
        """Compare what a process left, or skip with the provider's words if it refuses this GPU."""
        said = "\n".join(re.findall(r".*(?:RTX|GPU|device).*", ran.stderr))
        if re.search("no device of the provider|EP does not support GPU", ran.stderr):
            pytest.skip(f"the provider refuses {torch.cuda.get_device_name()}: {said}")
        assert ran.returncode == 0, ran.stderr[-3000:]
        for name, value in self.expected.items():
            result = torch.from_numpy(found(name)).view(value.shape)
            torch.testing.assert_close(result, value, rtol=1e-3, atol=1e-3)


@pytest.fixture(params=CASES, scope="module")
def saved(request: pytest.FixtureRequest, provider: None, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Each case as an ONNX file, with the plan inside or beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    made, args, inputs = CASES[request.param]
    compile = pipeline.default().without("choose")  # which leaves to PyTorch what is faster there
    compiled = compile(made().eval().cuda(), args=args)
    plan = "inside" if request.param == "half" else folder / "model.plan"
    compiled.save(folder / "model.onnx", plan, format="epcontext")
    expected = outputs_by_name(compiled.program, compiled(*(x.cuda() for x in inputs)))
    names = [port.name for port in compiled.program.inputs]
    return Saved(folder, dict(zip(names, inputs, strict=True)), {k: v.cpu() for k, v in expected.items()})


def test_a_session_returns_what_the_program_does(saved: Saved) -> None:
    np.savez(saved.folder / "inputs.npz", **{name: x.numpy() for name, x in saved.inputs.items()})
    (program,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    program = f"import onnxruntime\nonnxruntime.set_default_logger_severity(1)\n{program}"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=saved.folder, capture_output=True, text=True, timeout=300)
    saved.check(ran, lambda name: np.load(saved.folder / "outputs.npz")[name])


def test_so_does_one_of_cpp(saved: Saved, tmp_path: Path) -> None:
    """A program that was built elsewhere is taken from the PATH."""
    program = shutil.which("run_onnx") or built(tmp_path)
    for name, x in saved.inputs.items():
        x.numpy().tofile(saved.folder / f"{name}.raw")
    own, library = (Path(importlib.util.find_spec(each).origin).parent for each in ("onnxruntime", PROVIDER))
    (runtime,) = (own / "capi").glob("libonnxruntime.so.*")
    (tmp_path / "libonnxruntime.so.1").symlink_to(runtime)
    folders = [tmp_path, library, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    command = [program, saved.folder / "model.onnx", saved.folder, library / LIBRARY_FILE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    dtypes = {name: value.numpy().dtype for name, value in saved.expected.items()}
    saved.check(ran, lambda name: np.fromfile(saved.folder / f"{name}.raw", dtypes[name]))
