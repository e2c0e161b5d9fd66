"""``as_strided`` reads what lies in memory: of views, in engines and in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import pipeline

SQUARE: Final = (4, 5)


class Strided(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def chunks(x: Tensor) -> Tensor:
    """Chunks of a sequence that overlap by half, as Longformer has them: [6, 2, 8] -> [4, 2, 3, 4]"""
    heads = x.view(6, 2, 2, 4).transpose(0, 1).transpose(1, 2).reshape(4, 6, 4)
    return heads.as_strided((4, 2, 3, 4), (4, 16, 16, 1))


FORMS: Final[dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]]] = {
    "of a transpose": (lambda x: (x + 1).mT.as_strided((2, 2), (2, 1)), SQUARE),
    "of a transposed input": (lambda x: x.mT.as_strided((2, 2), (2, 1)), SQUARE),
    "of a part": (lambda x: (x * 2)[1:, 1:].as_strided((2, 2), (5, 1)), SQUARE),
    "of what a part is of": (lambda x: (x * 2)[1:, 1:].as_strided((2, 2), (5, 1), 0), SQUARE),
    "of a part without gaps": (lambda x: (x * 2)[1:3].as_strided((3, 5), (5, 1), 5), SQUARE),
    "of what is expanded": (lambda x: (x * 2).unsqueeze(0).expand(3, -1, -1).as_strided((2, 2), (5, 1), 1), SQUARE),
    "of a size of 1": (lambda x: (x * 2)[:, None].mT.as_strided((2, 2), (2, 1), 1), SQUARE),
    "of channels last": (
        lambda x: (x * 2).to(memory_format=torch.channels_last).as_strided((2, 9), (3, 1)),
        (2, 3, 4, 5),
    ),
    "of a convolution's": (
        lambda x: (
            functional.conv2d(x, torch.ones(3, 3, 1, 1, device=x.device, dtype=x.dtype))
            .permute(0, 2, 3, 1)
            .as_strided((2, 9), (3, 1))
        ),
        (2, 3, 4, 5),
    ),
    "of bits": (lambda x: (x * 2).view(torch.int32).mT.as_strided((2, 2), (2, 1), 1), SQUARE),
    "scattered": (lambda x: (x * 2).mT.as_strided_scatter(x[:2, :2], (2, 2), (2, 1)), SQUARE),
    "scattered to channels last": (
        lambda x: (x * 2).to(memory_format=torch.channels_last).as_strided_scatter(x[0, 0, :2, :2], (2, 2), (2, 1), 3),
        (2, 3, 4, 5),
    ),
}
TORCH: Final = ["aten.as_strided.default", "aten.as_strided_scatter.default"]


@pytest.mark.parametrize("executed", [[], TORCH], ids=["engine", "PyTorch"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["one size", "any size"])
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_read(form: str, dynamic: bool, executed: list[str]) -> None:
    function, sizes = FORMS[form]
    dims = [{0: Dim("n", min=2, max=9)}] if dynamic else None
    compile = pipeline.default(min_block_size=1, torch_executed_ops=executed)
    compiled = compile(Strided(function).eval(), (torch.randn(sizes),), dynamic_shapes=dims)
    x = torch.randn(7, *sizes[1:]) if dynamic else torch.randn(sizes)
    assert torch.equal(compiled.module(executor="reference")(x), function(x))


@pytest.mark.parametrize("executed", [[], TORCH], ids=["engine", "PyTorch"])
def test_windows_overlap(executed: list[str]) -> None:
    """What the engine before gives does not lie in memory as the example's did."""
    model = nn.Sequential(nn.Linear(8, 8), Strided(chunks)).eval()
    x = torch.randn(6, 2, 8)
    compiled = pipeline.default(min_block_size=1, torch_executed_ops=executed)(model, (x,))
    torch.testing.assert_close(compiled.module(executor="reference")(x), model(x))


class Weights(nn.Module):
    """A weight that lies in memory in its own way."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight.as_strided((4, 5), (1, 2), 3)


def test_a_weight_has_its_memory() -> None:
    x = torch.randn(SQUARE)
    model = Weights(torch.randn(5, 4).mT).eval()
    compiled = pipeline.default(min_block_size=1)(model, (x,))
    torch.testing.assert_close(compiled.module(executor="reference")(x), model(x))


def test_a_weight_that_is_a_part_of_another_is_refused() -> None:
    """A program has the weight alone."""
    with pytest.raises(
        pipeline.CaptureError, match=r"(?s)at test_as_strided.py:\d+ reads memory whose contents .*unfold"
    ):
        pipeline.capture(Weights(torch.randn(5, 6)[1:, 1:]).eval(), (torch.randn(SQUARE),))


def written(x: Tensor) -> Tensor:
    whole = x * 2
    part = whole[1:, 1:]
    part.mul_(3)
    return part.as_strided((4, 4), (5, 1), 0)


def first_of_several(x: Tensor) -> Tensor:
    return (x * 2)[x.shape[0] - 1 :].as_strided((2, 2), (2, 1))


def test_memory_that_was_written_is_read() -> None:
    x, dims = torch.randn(SQUARE), [{0: Dim("n", min=4, max=9)}]
    compiled = pipeline.default(min_block_size=1)(Strided(written).eval(), (x,), dynamic_shapes=dims)
    assert torch.equal(compiled.module(executor="reference")(x), written(x))


def test_an_offset_that_varies_is_refused() -> None:
    dims = [{0: Dim("n", min=4, max=9)}]
    with pytest.raises(pipeline.CaptureError, match="reads memory whose contents"):
        pipeline.capture(Strided(first_of_several).eval(), (torch.randn(SQUARE),), dynamic_shapes=dims)


@pytest.mark.parametrize("read", [lambda x: x, lambda x: x.mT, lambda x: x[1:]], ids=["itself", "transposed", "a part"])
def test_an_offset_in_the_memory_of_a_part_is_refused(read: Callable[[Tensor], Tensor]) -> None:
    """torch counts from the memory's start, and a program has the elements of its inputs alone."""
    x = torch.arange(30.0)[5:25].view(SQUARE)
    with pytest.raises(pipeline.CaptureError, match="reads memory whose contents"):
        pipeline.capture(Strided(lambda x: read(x).as_strided((2, 2), (1, 2), 0)).eval(), (x,))
    program = pipeline.capture(Strided(lambda x: x.mT.as_strided((2, 2), (1, 2))).eval(), (x,))
    assert torch.equal(pipeline.default()(program).module("reference")(x), x.mT.as_strided((2, 2), (1, 2)))
