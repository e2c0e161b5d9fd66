"""What reads ReLU's or GELU's result, or its input, after a product with a bias, which RTX 1.6.1 loses in the plain
form."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.functional import gelu

import pipeline
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_matmuls_with_bias

MAXIMUM, RELU = "op=MAX", "type=RELU"
FORMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "power": lambda y, above: above**2,
    "product": lambda y, above: above * above,
    "gate": lambda y, above: y * above,
    "cube": lambda y, above: above**3,
    "part": lambda y, above: torch.relu(y.chunk(2, -1)[0]).repeat_interleave(2, -1) * above,
    "view": lambda y, above: (above.flatten(0, 1) ** 2).view(above.shape),
    "gate in a view": lambda y, above: (y.flatten(0, 1) * above.flatten(0, 1)).view(y.shape),
    "magnitude": lambda y, above: above * above.abs(),
    "exponential": lambda y, above: above * torch.exp(-above),
    "sum": lambda y, above: above * above.sum(-1, keepdim=True),
    "choice": lambda y, above: torch.where(above > 0.5, above, 1 - above),
    "sine of what is before": lambda y, above: above * torch.sin(y),
}
"""Of ReLU's input and its result."""


class Squared(nn.Module):
    """Normed rows, a product with a bias, ReLU and one of `FORMS`, another product."""

    def __init__(self, form: str, width: int = 64) -> None:
        super().__init__()
        self.form, self.norm = form, nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, width] -> [N, S, width]"""
        y = self.up(self.norm(x))
        return x + self.down(FORMS[self.form](y, torch.relu(y)))


class Convolved(nn.Module):
    """A convolution with a bias, ReLU and one of `FORMS`, another convolution."""

    def __init__(self, form: str, width: int = 16) -> None:
        super().__init__()
        self.form, self.up, self.down = form, nn.Conv2d(width, 2 * width, 3, padding=1), nn.Conv2d(2 * width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, width, H, W] -> [N, width, H, W]"""
        y = self.up(x)
        return x + self.down(FORMS[self.form](y, torch.relu(y)))


@pytest.mark.parametrize("form", FORMS)
@quirks.assume("biases-of-matmuls")
def test_what_relu_reads_is_kept_apart(form: str) -> None:
    """As for a TensorRT that needs it; where TensorRT does, no product has a bias of its own."""
    x, model = torch.randn(2, 12, 64), Squared(form).eval()
    compiled = pipeline.default(compute_capabilities=("8.9",))(model, args=(x,))
    assert str(compiled.networks[0]).count(MAXIMUM) == str(compiled.networks[0]).count(RELU) > 0
    torch.testing.assert_close(compiled.module("reference")(x), model(x))
    if LOSES_THEM:
        assert not find_matmuls_with_bias(bytes(compiled.engines[0].plan))


LOSES_THEM = is_avoided("biases-of-matmuls")
GATES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gate": lambda y, z: gelu(y) * z,
    "halves": lambda y, z: (gelu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1]).repeat(1, 1, 2),
    "square": lambda y, z: gelu(y) * gelu(y),
    "its input": lambda y, z: gelu(y, approximate="tanh") * y,
    "by erf": lambda y, z: 0.5 * y * (1 + torch.erf(y / 2**0.5)) * z,
    "by tanh": lambda y, z: 0.5 * y * (1 + torch.tanh(y * 0.7978845608 * (1 + 0.044715 * y * y))) * z,
}
"""Of the result of a product with a bias, and another."""


class Gated(nn.Module):
    """A gated feed-forward layer in one of `GATES`."""

    def __init__(self, form: str, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form, self.up, self.other = form, nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, width] -> [N, S, width]"""
        return self.down(GATES[self.form](self.up(x), self.other(x)))


def gated(form: str, dtype: torch.dtype, vary: bool = False) -> pipeline.Compiled:
    x, shapes = torch.randn(2, 12, 64).to(dtype), ({0: Dim("batch", max=8)},) if vary else None
    compile = pipeline.default(compute_capabilities=("8.9",))
    return compile(Gated(form).eval().to(dtype), args=(x,), dynamic_shapes=shapes)


@pytest.mark.parametrize("vary", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", GATES)
@quirks.assume("biases-of-matmuls")
def test_what_gelu_reads_is_kept_apart(form: str, dtype: torch.dtype, vary: bool) -> None:
    compiled = gated(form, dtype, vary)
    network = str(compiled.networks[0])
    assert MAXIMUM in network or (dtype != torch.float32 and not form.startswith("by"))  # behind a cast to float32
    x, model = torch.randn(2, 12, 64).to(dtype), Gated(form).eval().to(dtype)
    torch.testing.assert_close(compiled.module("reference")(x), model(x).detach(), rtol=0.05, atol=0.02)
    if LOSES_THEM:
        assert not find_matmuls_with_bias(bytes(compiled.engines[0].plan))


@pytest.mark.skipif(not LOSES_THEM, reason="this TensorRT adds them")
@pytest.mark.parametrize("vary", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("form", "dtype"),
    [("square", torch.float32), ("its input", torch.float32), ("by erf", torch.float16), ("by tanh", torch.float16)],
)
@quirks.without("biases-of-matmuls")
def test_a_bias_that_is_part_of_a_product_is_warned_of(
    form: str, dtype: torch.dtype, vary: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_matmuls_with_bias(bytes(gated(form, dtype, vary).engines[0].plan))
    assert "may leave out its bias" in caplog.text


@quirks.assume("biases-of-matmuls")
def test_convolutions_are_left_as_they_are() -> None:
    converted = pipeline.default().until("convert")(Convolved("power").eval(), args=(torch.randn(2, 16, 8, 8),))
    assert MAXIMUM not in str(converted.networks[0])


@quirks.without("biases-of-matmuls")
def test_nothing_is_added_where_tensorrt_is_right() -> None:
    converted = pipeline.default().until("convert")(Squared("power").eval(), args=(torch.randn(2, 12, 64),))
    assert MAXIMUM not in str(converted.networks[0])
