"""Bytes of tensors of any layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pipeline
from pipeline.aten.tensor_type import raw_bytes

LAYOUTS = {
    "one element of stride 0": torch.tensor(3).expand(1),
    "stride 0": torch.tensor(3.0).expand(4),
    "rows of one": torch.arange(3.0)[:, None].expand(3, 2),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "a part": torch.arange(12.0)[5:9],
    "none": torch.ones(0, 3),
    "one": torch.tensor(7),
    "negated": torch.complex(torch.ones(2), torch.arange(2.0)).conj().imag,
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_bytes_are_those_of_a_copy(tensor: torch.Tensor) -> None:
    assert bytes(raw_bytes(tensor).tolist()) == tensor.resolve_neg().numpy().tobytes()


def test_where_elements_lie_in_order_they_are_not_copied() -> None:
    tensor = torch.arange(12.0)[5:9]
    assert raw_bytes(tensor).data_ptr() == tensor.data_ptr()


class Scaled(torch.nn.Module):
    """Has buffers of stride 0."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(3.0).expand(1))
        self.register_buffer("shifts", torch.tensor(0.5).expand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return x * self.scale + self.shifts


def test_weights_of_stride_0_compile(tmp_path: Path) -> None:
    """The key of an engine is made of their bytes."""
    x = torch.randn(2, 4)
    cached = pipeline.default(cache_built_engines=True, reuse_cached_engines=True, engine_cache_dir=str(tmp_path))
    compiled = cached(Scaled(), (x,))
    torch.testing.assert_close(compiled.module("reference")(x), Scaled()(x))
