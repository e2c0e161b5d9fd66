"""What the benchmarks compare agrees, on a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu, methods
from examples.models import Case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", [m for m in methods.METHODS if not m.startswith("Torch-TensorRT")])
def test_methods_agree_on_a_gpu(method: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).half().cuda().eval()
    inputs = {"input": torch.randn(4, 64, device="cuda", dtype=torch.float16)}
    with torch.no_grad():
        expected = [model.float()(inputs["input"].float())]
    with torch.cuda.stream(torch.cuda.Stream()):
        row = gpu.measured(Case("toy", model.half(), {}, None), inputs, expected, [method], list)[method]
    assert row["relative_error"] < 1e-2
    assert row["gpu_ms"] > 0
