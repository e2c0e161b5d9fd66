"""contract_products: large products that are only summed are a matmul; small ones, and matrices by vectors, stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from tests.improvements.programs import agree, decomposed, improved, targets

Tensor = torch.Tensor


class Calls(nn.Module):
    """A function of two tensors as a model."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Any shapes."""
        return self.function(a, b)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


CONTRACTED = {
    "scores of Mamba-2": (
        lambda c, b: (c[:, :, :, None] * b[:, :, None]).sum(-1),
        (draw(1, 2, 64, 4, 32), draw(1, 2, 64, 4, 32)),
    ),
    "values of Mamba-2": (
        lambda m, x: (m[..., None] * x[:, :, None]).sum(3),
        (draw(1, 2, 64, 64, 4), draw(1, 2, 64, 4, 48)),
    ),
    "states of Mamba-2": (
        lambda b, x: (b[..., None, :] * x[..., None]).sum(dim=2),
        (draw(1, 2, 64, 4, 32), draw(1, 2, 64, 4, 96)),
    ),
    "a bilinear form": (lambda a, b: (a[:, None] * b[None]).sum((-1, -2)), (draw(64, 32, 9), draw(96, 32, 9))),
    "expanded before": (
        lambda a, b: (a[:, None].expand(64, 96, 256) * b.expand(64, 96, 256)).sum(2),
        (draw(64, 256), draw(96, 256)),
    ),
    "dims kept": (lambda a, b: (a[:, :, None] * b[None]).sum(1, keepdim=True), (draw(64, 256), draw(256, 96))),
    "a dim of one, and a sum of one factor": (
        lambda a, b: (a[None, :, None, :, None] * b[:, None]).sum((3, 4)),
        (draw(64, 128), draw(1, 96, 128, 5)),
    ),
    "halves": (
        lambda a, b: (a[:, :, None] * b).sum(1),
        (draw(64, 256, dtype=torch.float16), draw(256, 96, dtype=torch.float16)),
    ),
}


@pytest.mark.parametrize("name", CONTRACTED)
def test_large_sums_of_products_are_matmuls(name: str) -> None:
    function, inputs = CONTRACTED[name]
    program = decomposed(Calls(function), *inputs)
    after = improved(program, "contract_products")
    assert "mul.Tensor" in targets(program) and "mul.Tensor" not in targets(after)
    assert {"mm.default", "bmm.default"} & {*targets(after)}
    tolerance = 2e-3 if inputs[0].dtype == torch.float16 else 1e-5
    agree(program, after, *inputs, rtol=tolerance, atol=20 * tolerance)


def test_sizes_may_vary() -> None:
    function, (c, b) = CONTRACTED["scores of Mamba-2"]
    batch, length = Dim("batch", min=1, max=8), Dim("length", min=2, max=512)
    shapes = ({0: batch, 2: length}, {0: batch, 2: length})
    examples = draw(2, 2, 200, 4, 32), draw(2, 2, 200, 4, 32)
    compiled = pipeline.default(require_full_compilation=True)(Calls(function), examples, dynamic_shapes=shapes)
    kinds = [layer.kind for layer in compiled.networks[0].layers]
    assert "MATRIX_MULTIPLY" in kinds and "REDUCE" not in kinds
    torch.testing.assert_close(compiled.module("reference")(c, b), function(c, b), rtol=1e-4, atol=1e-4)


STAY: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "few numbers": (CONTRACTED["dims kept"][0], (draw(4, 16), draw(16, 8))),
    "a matrix by a vector": (lambda a, b: (a * b).sum(1), (draw(2048, 1024), draw(1024))),
    "numbers": (lambda a, b: (a * b).sum(0), (torch.tensor(2.0), torch.tensor(3.0))),
    "few terms": (lambda a, b: (a[:, None] * b[None]).sum(2), (draw(1024, 2), draw(1024, 2))),
    "nothing that both have": (lambda a, b: (a[:, None] * b).sum(0), (draw(2048, 1), draw(1, 1024))),
    "integers": (lambda a, b: (a[:, :, None] * b).sum(1), (torch.ones(64, 256).int(), torch.ones(256, 96).int())),
    "a sum in another dtype": (
        lambda a, b: (a[:, :, None] * b).sum(1, dtype=torch.float32),
        (draw(64, 256, dtype=torch.float16), draw(256, 96, dtype=torch.float16)),
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_other_sums_stay(name: str) -> None:
    function, inputs = STAY[name]
    program = decomposed(Calls(function), *inputs)
    assert targets(improved(program, "contract_products")) == targets(program)
