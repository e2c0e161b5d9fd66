"""A kernel of a product or convolution that ends in a cast to bfloat16 gives garbage on TensorRT-RTX 1.4 (an H200), so
that our networks have none. Plans tell which kernels there will be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY
from examples.models import small
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_rounded_matmuls
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx", reason="the plans of TensorRT-RTX tell what its kernels are made of"
)


class Normed(nn.Sequential):
    """Convolutions of normed convolutions."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64)] * 2
        super().__init__(*layers, nn.Conv2d(64, 64, 3))


class Summed(nn.Module):
    """A product that is added in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 16] -> [N, 16]"""
        return (self.product(x).float() + 1).to(x.dtype)


PIECES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gelu": (lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU()), (4, 16)),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()), (4, 16)),
    "silu": (lambda: nn.Sequential(nn.Linear(16, 16), nn.SiLU()), (4, 16)),
    "a user's cast": (Summed, (4, 16)),
    "batch norm": (Normed, (1, 64, 28, 28)),
}


def compiled(piece: str) -> pipeline.Compiled:
    make, shape = PIECES[piece]
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(make().eval().to(torch.bfloat16), args=(torch.randn(shape, dtype=torch.bfloat16),))


needed = pytest.mark.skipif(not is_avoided("halves-behind-matmuls"), reason="this TensorRT has such kernels right")


@needed
@pytest.mark.parametrize("piece", PIECES)
def test_no_kernel_of_a_product_ends_in_a_cast(piece: str) -> None:
    assert find_rounded_matmuls(compiled(piece).engines[0].plan) == ()


@pytest.mark.parametrize("piece", PIECES)
@quirks.assume("halves-behind-matmuls")
@quirks.without("halves-behind-matmuls")
def test_the_kernels_that_there_would_be(piece: str, caplog: pytest.LogCaptureFixture) -> None:
    """And what building them says. When this fails, TensorRT makes other kernels."""
    found = find_rounded_matmuls(compiled(piece).engines[0].plan)
    assert found
    for kernel, tensor in found:
        said = f"TensorRT's kernel {kernel} gives {tensor} by a cast to bfloat16 at its end, so results may be wrong"
        assert said in caplog.text


@needed
@pytest.mark.parametrize("name", ["vit", "gpt2", "resnet18", "convnext", "whisper"])
def test_nor_does_one_of_a_model(name: str) -> None:
    case = small(name, torch.bfloat16)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    compiled = compile(case.model, args=(), kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    assert find_rounded_matmuls(compiled.engines[0].plan) == ()


@needed
def test_nor_does_one_of_a_convolution_of_one_spatial_dim() -> None:
    """For which TensorRT has two: the cast comes before they are one again."""
    layers = nn.Conv1d(64, 64, 9, padding=4, groups=64, bias=False), nn.Conv1d(64, 32, 1)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    x = torch.randn(2, 64, 33, dtype=torch.bfloat16)
    assert find_rounded_matmuls(compile(nn.Sequential(*layers).eval().to(x.dtype), args=(x,)).engines[0].plan) == ()


class Rounded(nn.Module):
    """A layer in float32, a move, and a cast to bfloat16."""

    def __init__(self, layer: nn.Module, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.move = layer, move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The rounded result, moved."""
        return self.move(self.layer(x)).to(torch.bfloat16)


MOVED: dict[str, tuple[nn.Module, Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "heads": (nn.Linear(16, 24), lambda x: x.view(-1, 6, 2, 12), (2, 6, 16)),
    "turned": (nn.Linear(16, 24), lambda x: x.transpose(1, 2), (2, 6, 16)),
    "patches": (nn.Conv2d(3, 8, 3), lambda x: x.flatten(2).transpose(1, 2), (2, 3, 9, 9)),
    "one dim": (nn.Conv1d(4, 8, 3), lambda x: x, (2, 4, 64)),
    "one dim, turned": (nn.Conv1d(4, 8, 3), lambda x: x.transpose(1, 2), (2, 4, 64)),
}


@needed
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MOVED)
def test_nor_does_one_before_a_move(name: str, dynamic: bool) -> None:
    layer, move, sizes = MOVED[name]
    shapes = {"x": {0: Dim("batch", max=8)}} if dynamic else None
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    compiled = compile(Rounded(layer, move).eval(), args=(torch.randn(sizes),), dynamic_shapes=shapes)
    assert find_rounded_matmuls(compiled.engines[0].plan) == ()


@pytest.mark.parametrize(("groups", "wide"), [(1, False), (4, False), (8, True)])
@quirks.assume("bfloat16-convolutions")
def test_depthwise_is_computed_in_float32(groups: int, wide: bool) -> None:
    model, x = nn.Conv2d(8, 8, 3, groups=groups), torch.randn(1, 8, 9, 9)
    half = pipeline.default(require_full_compilation=True)(
        model.eval().to(torch.bfloat16), args=(x.to(torch.bfloat16),)
    )
    [layer] = [layer for layer in half.networks[0].layers if layer.kind == "CONVOLUTION"]
    assert (layer.outputs[0].dtype == "float32") is wide


@pytest.mark.parametrize(
    ("kernel", "stride", "wide"), [(10, 5, False), (16, 8, False), (33, 1, True), (9, 17, True), (127, 64, True)]
)
@quirks.assume("bfloat16-convolutions")
def test_long_windows_are_computed_in_float32(kernel: int, stride: int, wide: bool) -> None:
    model, x = nn.Conv1d(1, 32, kernel, stride, bias=False).eval().bfloat16(), torch.randn(2, 1, 640).bfloat16()
    half = pipeline.default(require_full_compilation=True)(model, args=(x,))
    [layer] = [layer for layer in half.networks[0].layers if layer.kind == "CONVOLUTION"]
    assert (layer.outputs[0].dtype == "float32") is wide
    assert not is_avoided("halves-behind-matmuls") or find_rounded_matmuls(half.engines[0].plan) == ()
