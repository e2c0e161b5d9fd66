"""simplify_masks: open masks are dropped, causal ones become is_causal, finite ones say so; others stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim

from pipeline.converters.attention import promises_key_in_row
from tests.improvements.programs import agree, decomposed, improved, targets

Mask = Callable[[torch.Tensor], torch.Tensor]


class Masked(nn.Module):
    """Self-attention with a mask made of the input's sizes."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, H, S, D] -> [B, H, S, D]"""
        return nn.functional.scaled_dot_product_attention(x, x, x, self.mask(x))


def count(x: torch.Tensor, start: int = 0) -> torch.Tensor:
    return torch.arange(x.shape[2]) + start


def whole(x: torch.Tensor) -> torch.Tensor:
    """Every position counts, said in a roundabout way."""
    return (count(x, 0)[None, None, :, None] >= 0).expand(x.shape[0], 1, x.shape[2], x.shape[2])


def future(x: torch.Tensor) -> torch.Tensor:
    return count(x)[None, :] <= count(x)[:, None]


NOTHING: dict[str, Mask] = {
    "counted": whole,
    "all ones": lambda x: torch.ones(x.shape[2], x.shape[2], dtype=torch.bool),
    "zeros": lambda x: torch.zeros(x.shape[2], x.shape[2], dtype=x.dtype),
    "selected": lambda x: torch.where(whole(x), 0.0, -1e4).to(x.dtype),
    "tensors": lambda x: torch.where(whole(x), torch.tensor(0.0), torch.tensor(-1e4)).to(x.dtype),
    "both": lambda x: whole(x) & torch.ones((), dtype=torch.bool),
}
CAUSAL: dict[str, Mask] = {
    "le": future,
    "ge": lambda x: count(x)[:, None] >= count(x)[None, :],
    "same start": lambda x: count(x, 3)[:, None] >= count(x, 3)[None, :],
    "tril": lambda x: torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril(),
    "expanded": lambda x: (future(x) & torch.ones((), dtype=torch.bool))[None, None].expand(x.shape[0], 1, -1, -1),
    "one sequence": lambda x: future(x) & (x.new_zeros(x.shape[2], 1) == x.new_zeros(x.shape[2])),
}
OTHERS: dict[str, Mask] = {
    "no sequence": lambda x: future(x) & (x.new_zeros(x.shape[2], 1) == x.new_ones(x.shape[2])),
    "later too": lambda x: count(x)[:, None] + 1 >= count(x)[None, :],
    "tril and one more": lambda x: torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).tril(1),
    "tril of others": lambda x: whole(x)[0, 0].logical_not().tril(),
    "the past": lambda x: count(x)[:, None] <= count(x)[None, :],
    "other starts": lambda x: count(x, 1)[:, None] >= count(x)[None, :],
    "not all": lambda x: (count(x) >= 1)[:, None].expand(-1, x.shape[2]).contiguous(),
    "ones to add": lambda x: torch.arange(x.shape[2]).to(x.dtype) * x.new_ones((x.shape[2], 1)),
}


def seen(x: torch.Tensor) -> torch.Tensor:
    """Which keys count: for the last of the batch none."""
    last = torch.arange(x.shape[0]) == x.shape[0] - 1
    return (x[:, :1, None, :, 0] > 0) & ~last[:, None, None, None]


FINITE: dict[str, Mask] = {
    "selected": lambda x: torch.where(seen(x), 0.0, torch.finfo(x.dtype).min),
    "the other way": lambda x: torch.where(~seen(x), torch.tensor(-1e4), torch.tensor(1.0)).to(x.dtype),
    "filled in": lambda x: x.new_zeros((x.shape[0], 1, 1, x.shape[2])).masked_fill(~seen(x), -1e4),
    "twice": lambda x: torch.where(seen(x), torch.where(future(x), 0.0, -2.0), -1e4).to(x.dtype),
    "expanded": lambda x: torch.where(seen(x), 0.0, -1e4).to(x.dtype).expand(-1, 1, x.shape[2], -1).contiguous(),
    "turned around": lambda x: torch.where(seen(x), 0.0, -1e4).to(x.dtype).flip(-1).roll(1, -1),
    "of bools": lambda x: seen(x).to(x.dtype),
}
INFINITE: dict[str, Mask] = {
    "bools": seen,
    "selected": lambda x: torch.where(seen(x), 0.0, -torch.inf).to(x.dtype),
    "filled in": lambda x: x.new_zeros((x.shape[0], 1, 1, x.shape[2])).masked_fill(~seen(x), -torch.inf),
    "too large for halves": lambda x: torch.where(seen(x), 0.0, -1e5).half().to(x.dtype),
    "added twice": lambda x: 2 * torch.where(seen(x), 0.0, torch.finfo(x.dtype).min),
    "no number": lambda x: torch.where(seen(x), torch.tensor([0.0, torch.nan] * 3), -1e4).to(x.dtype),
    "a sum": lambda x: x[:, :1, :, :1] + torch.where(seen(x), 0.0, -1e4),
}
SIZES = {"static": None, "dynamic": ({0: Dim("batch", max=8), 2: Dim("length", min=2, max=32)},)}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    ("mask", "causal"),
    [*((m, False) for m in NOTHING.values()), *((m, True) for m in CAUSAL.values())],
    ids=[*NOTHING, *CAUSAL],
)
def test_masks_that_are_known(mask: Mask, causal: bool, sizes: str) -> None:
    x = torch.randn(2, 3, 6, 8)
    program = decomposed(Masked(mask), x, dynamic_shapes=SIZES[sizes])
    after = improved(program, "simplify_masks")
    [node] = [n for n in after.graph.nodes if "scaled_dot" in str(n.target)]
    assert node.args[3] is None
    assert (len(node.args) > 5 and node.args[5]) is causal
    agree(program, after, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_stay(name: str, sizes: str) -> None:
    program = decomposed(Masked(OTHERS[name]), torch.randn(2, 3, 6, 8), dynamic_shapes=SIZES[sizes])
    assert str(improved(program, "simplify_masks")) == str(program)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FINITE)
def test_masks_without_infinity_say_so(name: str, sizes: str) -> None:
    x = torch.randn(2, 3, 6, 8)
    program = decomposed(Masked(FINITE[name]), x, dynamic_shapes=SIZES[sizes])
    after = improved(program, "simplify_masks")
    [node] = [n for n in after.graph.nodes if "scaled_dot" in str(n.target)]
    assert promises_key_in_row(node.args[3])
    agree(program, after, x)


@pytest.mark.parametrize("name", INFINITE)
def test_masks_that_may_be_infinite_stay(name: str) -> None:
    program = decomposed(Masked(INFINITE[name]), torch.randn(2, 3, 6, 8))
    assert str(improved(program, "simplify_masks")) == str(program)


def test_a_mask_of_several_layers_says_once_that_it_is_finite() -> None:
    class Layers(Masked):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = self.mask(x)
            first = nn.functional.scaled_dot_product_attention(x, x, x, mask)
            return nn.functional.scaled_dot_product_attention(first, x, x, mask)

    program = decomposed(Layers(FINITE["selected"]), torch.randn(2, 3, 6, 8))
    assert targets(improved(program, "simplify_masks")).count("pipeline.open_mask.default") == 1


@pytest.mark.parametrize("name", ["le", "tril"])
def test_long_masks_are_known_too(name: str) -> None:
    """The first is folded, the second is too large for that."""
    for length in (1024, 1500):
        program = decomposed(Masked(CAUSAL[name]), torch.randn(1, 1, length, 8))
        [node] = [n for n in improved(program, "simplify_masks").graph.nodes if "scaled_dot" in str(n.target)]
        assert node.args[3:6] == (None, 0.0, True)
