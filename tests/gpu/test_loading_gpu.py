"""Layers for which this GPU has no kernel are found when their engine is loaded, and compiled otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.runtime.program_engines import try_loading_engines
from pipeline.trt import LIBRARY

pytestmark = pytest.mark.gpu

aten = torch.ops.aten


@dynamo_tensorrt_converter(
    aten.group_norm.default, supports_dynamic_shapes=True, priority=pipeline.ConverterPriority.HIGH
)
def one_layer(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor

    One NORMALIZATION layer of many groups: of 320 channels it loads on no H200 with TensorRT-RTX 1.6.1.
    """
    x, groups, scale, shift = args[:4]
    shape = (1, x.shape[1], *[1] * (len(x.shape) - 2))
    constants = [
        ctx.add(f"{name}.{i}", "constant", shape, ctx.trt_weights(w.view(shape))) for i, w in ((0, scale), (1, shift))
    ]
    tensors = [layer.get_output(0) for layer in constants]
    layer = ctx.add(name, "normalization_v2", x, *tensors, sum(1 << i for i in range(2, len(x.shape))))
    layer.num_groups, layer.epsilon = groups, args[4] if len(args) > 4 else 1e-5
    return layer.get_output(0)


class Block(nn.Module):
    """A residual block of Stable Diffusion's size."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(32, 320), nn.Conv2d(320, 320, 3, padding=1)
        self.out = nn.GroupNorm(32, 320)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 320, H, W] -> [N, 320, H, W]"""
        return x + self.out(self.conv(torch.nn.functional.silu(self.norm(x))))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_program_whose_norms_have_no_kernel_loads_all_the_same(dtype: torch.dtype) -> None:
    model, x = Block().eval().cuda().to(dtype), torch.randn(2, 320, 64, 64, device="cuda", dtype=dtype)
    registry = pipeline.DYNAMO_CONVERTERS.register(one_layer)
    as_written = pipeline.default(registry=registry, load_built_engines=False)(model, (x,))
    found = try_loading_engines(as_written, keep=False)
    made = pipeline.default(registry=registry)(model, (x,))
    assert made.engines and not made.coverage.fallback and try_loading_engines(made, keep=False).refused == {}
    assert {row.target for row in made.healed} <= {"aten.group_norm.default"}
    assert bool(made.healed) == bool(found.refused)
    assert all("does not load" in row.reason for row in made.healed)
    if torch.cuda.get_device_capability() == (9, 0) and LIBRARY == "tensorrt_rtx 1.6.1.120":
        assert found.refused, "this GPU has a kernel for it now: another layer is needed for this test"
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=2e-2, atol=2e-2)
