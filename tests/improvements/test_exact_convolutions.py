"""exact_convolutions: convolutions of float16 with many terms are matmuls, of the same values; all others stay."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.quirks import is_avoided
from tests.improvements.programs import agree, decomposed, improved, targets

pytestmark = pytest.mark.skipif(not is_avoided("convolution-sums"), reason="this TensorRT has not the fault")
PASS = importlib.import_module("pipeline.improvements.exact_convolutions")

X = torch.randn(2, 16, 9, 11, generator=torch.Generator().manual_seed(0))
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "padded": (lambda: nn.Conv2d(16, 32, 3, padding=1), X),
    "in steps": (lambda: nn.Conv2d(16, 32, 3, 2, 1), X),
    "dilated, no bias": (lambda: nn.Conv2d(16, 32, 3, 1, 2, 2, bias=False), X),
    "oblong": (lambda: nn.Conv2d(16, 32, (1, 3), padding=(0, 1)), X),
    "disjoint": (lambda: nn.Conv2d(16, 32, 2, 2), X),
    "one dim": (lambda: nn.Conv1d(16, 32, 3, padding=1), X[:, :, 0]),
    "three dims": (lambda: nn.Conv3d(8, 8, 3, padding=1), torch.randn(1, 8, 5, 6, 7)),
    "pixels behind windows": (lambda: nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 8, 1)), X),
}


@pytest.fixture
def few_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a few terms were many."""
    for name in ("TERMS", "MAPS", "FEW_TERMS"):
        monkeypatch.setattr(PASS, name, 1)


def _improved(model: nn.Module, x: torch.Tensor, shapes: Any = None, **settings: Any) -> list[str]:
    program = decomposed(model.half(), x.half(), dynamic_shapes=shapes, **settings)
    after = improved(program, "exact_convolutions")
    agree(program, after, x.half(), rtol=4e-3, atol=4e-3)
    return targets(after)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("name", MODELS)
def test_windows_are_multiplied(name: str) -> None:
    make, x = MODELS[name]
    assert "convolution.default" not in _improved(make(), x)


@pytest.mark.usefixtures("few_terms")
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("in steps", "disjoint")])
def test_windows_of_sizes_that_vary(name: str) -> None:
    make, x = MODELS[name]
    shapes = ({0: Dim("n", max=4), **{d: Dim(f"s{d}", min=5, max=20) for d in range(2, x.dim())}},)
    assert "convolution.default" not in _improved(make(), torch.cat([x, x]), shapes)


@pytest.mark.usefixtures("few_terms")
def test_a_batch_may_be_empty() -> None:
    model = MODELS["pixels behind windows"][0]().half().eval()
    batch = pipeline.Input(min_shape=(0, 16, 9, 9), opt_shape=(2, 16, 9, 9), max_shape=(4, 16, 9, 9), dtype=torch.half)
    compiled = pipeline.default(min_block_size=1)(model, args=(batch,))
    assert all(layer.kind != "CONVOLUTION" for layer in compiled.networks[0].layers)
    assert compiled.module("reference")(torch.zeros(0, 16, 9, 9).half()).shape == (0, 8, 7, 7)


@pytest.mark.parametrize(
    ("model", "calls", "wide"),
    {
        "few terms": (lambda: nn.Conv2d(16, 320, 3, padding=1), 1, 0),
        "few channels": (lambda: nn.Conv2d(256, 64, 3, padding=1), 1, 1),
        "many of both": (lambda: nn.Conv2d(256, 320, 3, padding=1), 0, 0),
        "pixels alone": (lambda: nn.Conv2d(2560, 320, 1), 1, 0),
        "groups": (lambda: nn.Conv2d(512, 320, 3, groups=2), 1, 1),
    }.values(),
)
def test_many_terms_and_channels(model: Callable[[], nn.Conv2d], calls: int, wide: int) -> None:
    made = model()
    after = _improved(made, torch.randn(1, made.in_channels, 4, 5) / 16)
    assert after.count("convolution.default") == calls and after.count("maximum.default") == wide


def test_many_pixels_are_convolved_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PASS, "FEW_PIXELS", 19)
    after = _improved(nn.Conv2d(512, 320, 3, padding=1, groups=2), torch.randn(1, 512, 4, 5) / 16)
    assert after == ["convolution.default"]


def test_windows_that_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PASS, "WINDOWS", 9 * 256 * 2 * 20 - 1)
    x = torch.randn(1, 256, 4, 5) / 16
    assert "convolution.default" in _improved(nn.Conv2d(256, 320, 3, padding=1), x)


@pytest.mark.parametrize("asked", [True, False])
def test_the_setting(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3), nn.Conv2d(32, 8, 5, groups=1), nn.Conv2d(8, 320, 1), nn.Conv2d(320, 8, 1)
    )
    monkeypatch.setattr(PASS, "TAPS", 9)
    after = _improved(model, X, use_fp32_acc=asked)
    # a kernel of 25 elements is convolved in float32, and ends its kernel; 8 terms are few
    found = after.count("convolution.default"), "_to_copy.default" in after, "maximum.default" in after
    assert found == ((2, True, True) if asked else (4, False, False))


@pytest.mark.usefixtures("few_terms")
def test_other_dtypes_stay() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        program = decomposed(nn.Conv2d(16, 32, 3).to(dtype), X.to(dtype))
        assert targets(improved(program, "exact_convolutions")) == ["convolution.default"]
