"""patch_embedding: convolutions that tile an image are products; all others stay."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.improvements.rewriting import Rewriting, improvement
from tests.improvements.programs import agree, decomposed, improved, targets

X = torch.randn(2, 4, 8, 12, generator=torch.Generator().manual_seed(0))

TILES = {
    "square": (lambda: nn.Conv2d(4, 6, 4, 4), X),
    "oblong, no bias": (lambda: nn.Conv2d(4, 6, (2, 3), (2, 3), bias=False), X),
    "one dim": (lambda: nn.Conv1d(4, 6, 2, 2), X[:, :, 0]),
    "three dims": (lambda: nn.Conv3d(4, 6, 2, 2), torch.randn(2, 4, 4, 6, 2)),
}
OTHERS = {
    "overlap": lambda: nn.Conv2d(4, 6, 3, 2),
    "padding": lambda: nn.Conv2d(4, 6, 4, 4, padding=2),
    "groups": lambda: nn.Conv2d(4, 4, 4, 4, groups=2),
    "dilation": lambda: nn.Conv2d(4, 6, 2, 2, dilation=2),
    "a rest": lambda: nn.Conv2d(4, 6, 5, 5),
    "one by one": lambda: nn.Conv2d(4, 6, 1),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 4, 4),
}


@pytest.fixture
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every kernel were large."""
    monkeypatch.setattr(importlib.import_module("pipeline.improvements.patch_embedding"), "LARGE", 2)


def test_small_kernels_stay() -> None:
    for size, count in ((4, 1), (8, 0)):
        program = decomposed(nn.Conv2d(4, 6, size, size), torch.randn(2, 4, 16, 16))
        assert targets(improved(program, "patch_embedding")).count("convolution.default") == count


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TILES)
def test_tiles_are_multiplied(name: str, dynamic: bool) -> None:
    make, x = TILES[name]
    shapes: Any = ({0: Dim("batch", max=8)},) if dynamic else None
    program = decomposed(make(), x, dynamic_shapes=shapes)
    after = improved(program, "patch_embedding")
    assert "convolution.default" not in targets(after) and targets(after).count("linear.default") == 1
    assert {r.parameters for r in after.constants.values()} <= {("weight",), ("bias",)}
    agree(program, after, x, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("name", ["square", "one dim", "three dims"])
def test_images_of_dynamic_sizes_are_multiplied(name: str) -> None:
    make, x = TILES[name]
    kernel, batch, size = make().kernel_size[0], Dim("batch", max=8), Dim("size", max=9)
    x = x if x.dim() == 3 else torch.randn(2, 4, *(2 * kernel,) * (x.dim() - 2))
    program = decomposed(make(), x, dynamic_shapes=({0: batch, **dict.fromkeys(range(2, x.dim()), kernel * size)},))
    after = improved(program, "patch_embedding")
    assert "convolution.default" not in targets(after) and targets(after).count("linear.default") == 1
    agree(program, after, x, rtol=1e-5, atol=1e-5)
    agree(program, after, torch.randn(3, 4, *(3 * kernel,) * (x.dim() - 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("any_kernel")
@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    program = decomposed(OTHERS[name](), X)
    assert str(improved(program, "patch_embedding")) == str(program)


class Real(nn.Module):
    """Leaves out images of zeros, as Idefics2 does: data says how many are left."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 6, 4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4, H, W] -> [as many as are none of zeros, 6, H / 4, W / 4]"""
        found: torch.Tensor = self.patches(x[(x == 0).sum((1, 2, 3)) != x[0].numel()])
        return found


@pytest.mark.usefixtures("any_kernel")
def test_as_many_images_as_data_says() -> None:
    program = decomposed(Real(), X)
    after = improved(program, "patch_embedding")
    assert targets(after) == targets(program)
    agree(program, after, torch.stack([X[0], torch.zeros_like(X[0])]))


@improvement
def asks(rewriting: Rewriting) -> None:
    """Turns one into a sigmoid, and asks what data knows for another."""
    first, second = rewriting.nodes(torch.ops.aten.relu.default)
    rewriting.offer(first, torch.ops.aten.sigmoid.default, first.args)
    rewriting.create(torch.ops.aten.neg.default, second.args, {}, second)
    raise GuardOnDataDependentSymNode(sympy.Symbol("u0") > 1, "asked")


def test_a_pass_ends_where_it_asks_what_data_knows() -> None:
    """What it has made for that node is taken back, and what it has done before stays."""
    program = decomposed(nn.Sequential(nn.ReLU(), nn.Linear(12, 12), nn.ReLU()), X)
    rewriting = Rewriting(program, DYNAMO_CONVERTERS)
    rewriting.run_keeping_users_calls(asks)
    assert targets(rewriting.changed_program()) == ["sigmoid.default", "linear.default", "relu.default"]
