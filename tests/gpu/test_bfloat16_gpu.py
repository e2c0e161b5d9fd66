"""Halves of both kinds in the pieces of which models are made, at the sizes of ViT-B, BERT-base and ResNet.

RTX 1.4 gave garbage on an H200 for bfloat16 where it had float16 right (docs/tensorrt.md, "Numbers").
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float16: 8e-3, torch.bfloat16: 6e-2}
"""Relative to the largest of a result in float32."""
ROWS, WIDTH = 197, 768


class Heads(nn.Module):
    """Attention with its four products."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[N, S, 768], bool [N, 1, 1, S] -> [N, S, 768]"""
        q, k, v = (f(x).view(*x.shape[:-1], 12, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class OneHead(nn.Module):
    """Attention of one head, with nothing between it and its products."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 768] -> [N, S, 64]"""
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


class Alone(nn.Module):
    """Attention without products around it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 768] -> [N, 12, S, 64]"""
        q = x.view(*x.shape[:-1], 12, 64).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q + 1, q * 2)


class Residual(nn.Module):
    """A product, a bias and a sum, and the norm of it."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH) if normed else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 768] -> [N, S, 768]"""
        return self.norm(x + self.product(x))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """An image cut into patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 16, stride=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 197, 768] -> [N, 196, 768]"""
        return self.cut(x[:, 1:].reshape(-1, 3, 224, 224)).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


PIECES: dict[str, Any] = {
    "product": lambda: nn.Linear(WIDTH, WIDTH),
    "wide product": lambda: nn.Linear(WIDTH, 3 * WIDTH),
    "product and gelu": lambda: nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()),
    "product and tanh gelu": lambda: nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh")),
    "product and tanh": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    "residual": lambda: Residual(normed=False),
    "residual and norm": lambda: Residual(normed=True),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "attention": Heads,
    "attention of one head": OneHead,
    "attention alone": Alone,
    "patches": Patches,
}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("kernel", "stride"), [(10, 5), (16, 8), (31, 16), (33, 16), (63, 32), (127, 64)])
def test_long_windows(kernel: int, stride: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Conv1d(1, 32, kernel, stride, bias=False).eval(), torch.randn(2, 1, 1600)
    with torch.no_grad():
        expected = model.to(dtype).float()(x.to(dtype).float())
    assert_close(model.to(dtype), [x.to(dtype)], expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", [16, 128, ROWS, 600])
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece(piece: str, rows: int, dtype: torch.dtype) -> None:
    if piece == "patches" and rows != ROWS:
        pytest.skip("an image has 196 patches")
    torch.manual_seed(0)
    model, x = PIECES[piece]().eval(), torch.randn(1, rows, WIDTH)
    with torch.no_grad():
        expected = model(x.to(dtype).float())
    assert_close(model.to(dtype), [x.to(dtype)], expected)


def normed(**fields: Any) -> nn.Sequential:
    """Convolutions with batch norms between them."""
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3, padding=1, **fields), nn.BatchNorm2d(32))]
    return nn.Sequential(*layers, nn.GELU(), nn.Conv2d(32, 8, 1))


IMAGES: dict[str, Any] = {
    "convolutions and norms": normed,
    "in groups": lambda: normed(groups=4),
    "depthwise": lambda: normed(groups=32),
    "depthwise, no bias": lambda: normed(groups=32, bias=False),
    "depthwise, wide": lambda: nn.Conv2d(32, 64, 7, padding=3, groups=32),
    "depthwise, one dim": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(32, 32, 9, padding=4, groups=32, bias=False), nn.Conv1d(32, 8, 1)
    ),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(32, 16, 2, stride=2), nn.GELU()),
}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("size", [2, 7, 28, 56])
@pytest.mark.parametrize("piece", IMAGES)
def test_an_image(piece: str, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = IMAGES[piece]().eval(), torch.randn(2, 32, size, size)
    with torch.no_grad():
        expected = model.to(dtype).float()(x.to(dtype).float())
    assert_close(model.to(dtype), [x.to(dtype)], expected)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", [16, 128, ROWS, 600])
@pytest.mark.parametrize("most", [1.0, 0.6], ids=["all", "some"])
def test_attention_with_a_mask(rows: int, most: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(1, rows, WIDTH)
    mask = (torch.arange(rows) < most * rows).expand(1, 1, 1, rows).contiguous()
    with torch.no_grad():
        expected = model(x.to(dtype).float(), mask)
    assert_close(model.to(dtype), [x.to(dtype), mask], expected)


def assert_close(model: nn.Module, given: list[torch.Tensor], expected: torch.Tensor) -> None:
    compile = pipeline.default(require_full_compilation=True)
    run = compile(model, args=tuple(given)).module(executor="tensorrt")
    actual = run(*[value.cuda() for value in given]).float().cpu()
    error = (actual - expected).abs().max() / expected.abs().max()
    assert float(error) < BOUNDS[given[0].dtype]
