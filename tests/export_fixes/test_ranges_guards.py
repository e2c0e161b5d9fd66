"""What torch.export decides on sizes while it traces, and what is left of a range then: as vision models have it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812

import pipeline
from tests.export_fixes.test_ranges import program, ranges
from tests.shapes.test_sizes import Calls


def batch() -> Any:
    return Dim("batch", min=1, max=4)


def test_a_bias_for_all_of_a_batch_says_nothing_of_a_batch_of_1() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(1, 2, 5, 5))

    assert ranges(program(attend, (torch.randn(2, 2, 5, 4),), [{0: batch()}])) == ["1..2..4"]


class Even(nn.Module):
    """A convolution whose input lies in memory as one of channels last does: torch.export asks if sizes are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=4, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, 8] -> [N, 4, 2, H/4]"""
        if x.shape[2] % 2 != 0:
            x = F.pad(x, (0, 0, 0, 1))
        return self.conv(F.layer_norm(x.permute(0, 2, 3, 1), (3,)).permute(0, 3, 1, 2)).mT


def test_a_relation_of_one_dim_leaves_the_range_of_another_as_it_is() -> None:
    dims = {"x": {0: batch(), 2: Dim("height", min=1, max=16)}}
    found = pipeline.capture(Even().eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=dims)
    assert ranges(found) == ["1..2..4", "2..8..16"]
    assert [str(r) for r in found.shapes.relations] == ["(x.shape[2] % 2) == 0"]


class Tokens(nn.Module):
    """Pixels as a sequence, normalised, and an image again: lengths are compared with 1 on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.same = nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 4, H/4, W/4]"""
        x = self.down(x)
        return self.same(F.layer_norm(x.flatten(2).mT, (4,)).mT.reshape(x.shape))


def test_dims_counted_in_steps_begin_where_they_were_said_to() -> None:
    height, width = (4 * Dim(name, min=1, max=4) for name in ("height", "width"))
    dims = {"x": {0: batch(), 2: height, 3: width}}
    found = pipeline.capture(Tokens().eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes=dims)
    assert ranges(found) == ["1..2..4", "4..8..16", "4..8..16"]


def positions(x: torch.Tensor) -> torch.Tensor:
    """[N, 4*H, 8] -> [N, H, 8], where H has to be 2."""
    table = torch.ones(1, 2, 8)
    x = x[:, ::4]
    return x + table if x.shape[1] ** 2 == 4 else x * F.interpolate(table.mT, x.shape[1]).mT


def test_a_range_that_the_model_makes_one_size_is_refused() -> None:
    height = 4 * Dim("height", min=1, max=4)
    with pytest.raises(
        pipeline.CaptureError, match=r"args_0.shape\[1\] can only be 8: the captured model requires .* == 4"
    ) as told:
        program(positions, (torch.randn(2, 8, 8),), [{0: batch(), 1: height}])
    assert "static" in str(told.value)


def test_a_program_whose_range_is_one_size_runs_at_that_size(caplog: pytest.LogCaptureFixture) -> None:
    height, x = 4 * Dim("height", min=1, max=4), torch.randn(2, 8, 8)
    exported = torch.export.export(Calls(positions), (x,), dynamic_shapes=(({0: batch(), 1: height},),), strict=False)
    with caplog.at_level(logging.WARNING):
        module = pipeline.default(min_block_size=1)(exported).module(executor="reference")
    assert "args_0.shape[1] can only range from 8 to 8, not 8 to 16" in caplog.text
    for n in (1, 2, 4):
        x = torch.randn(n, 8, 8)
        torch.testing.assert_close(module(x), positions(x))
    with pytest.raises(pipeline.ShapeError):
        module(torch.randn(2, 12, 8))


class Apart(nn.Module):
    """Needs a length that 4 divides, and lets nobody see that both inputs have it."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[S], [S] -> [4, S / 4], [S]"""
        return x.view(4, -1) + 1, y * 2


@pytest.mark.parametrize("times", [1, 3])
def test_one_dim_is_one_size_though_the_model_asks_for_more_than_its_range(times: int) -> None:
    s = Dim("s", min=1, max=64)
    shapes = ({0: s}, {0: times * s if times > 1 else s})
    program = pipeline.capture(Apart(), (torch.ones(8), torch.ones(8 * times)), dynamic_shapes=shapes)
    x, y = (port.shape[0] for port in program.inputs)
    assert y == times * x


def test_keys_and_values_are_of_one_length() -> None:
    class Attend(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """[N, H, S, D], [N, H, T, D] twice, [N, 1, S, T] -> [N, H, S, D]"""
            return F.scaled_dot_product_attention(q, k, v, mask)

    n, s = Dim.AUTO(min=1, max=8), Dim.AUTO(min=2, max=16)
    length, both = {0: n, 2: s}, {0: n, 2: s, 3: s}
    given = (*(torch.randn(2, 2, 5, 8) for _ in range(3)), torch.randn(2, 1, 5, 5))
    program = pipeline.capture(Attend(), given, dynamic_shapes=(length, length, length, both))
    _, k, v, _ = (port.shape[2] for port in program.inputs)
    assert k == v


class Attend(nn.Module):
    """Attention to keys and values, of which torch.export does not ask whether there are as many."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, H, Q, D], [N, H, K, D], [N, H, K, D], [N, 1, Q, K] -> [N, H, Q, D]"""
        return F.scaled_dot_product_attention(q, k, v, mask)


def test_there_is_a_value_for_each_key() -> None:
    """Lengths that torch.export keeps apart have to be equal; with one name for both the network builds."""
    q, k, v = (torch.randn(2, 2, n, 16, dtype=torch.float16) for n in (3, 5, 5))
    inputs = (q, k, v, torch.rand(2, 1, 3, 5) > 0.3)
    auto = Dim.AUTO
    exported = torch.export.export(
        Attend(), inputs, dynamic_shapes=({2: auto}, {2: auto}, {2: auto}, {2: auto, 3: auto})
    )
    compiled = pipeline.default(require_full_compilation=True)(exported)
    assert [str(r) for r in compiled.program.shapes.relations] == ["k.shape[2] == v.shape[2]"]
    names = {tensor.name: [name for name in tensor.dimension_names if name] for tensor in compiled.networks[0].inputs}
    assert names == {"q": ["q.2"], "k": ["k.2"], "v": ["k.2"], "mask": ["q.2", "k.2"]}
    run = compiled.module(executor="reference")
    torch.testing.assert_close(run(*inputs), Attend()(*inputs), rtol=1e-2, atol=2e-3)
    with pytest.raises(pipeline.ShapeError, match=r"k\.shape\[2\] == v\.shape\[2\]"):
        run(q, k, v[:, :, :4], inputs[3])


def test_a_mask_has_the_sizes_of_what_it_writes_to() -> None:
    """torch.export keeps them apart, and a network with a name for one of them only does not build."""

    def masked(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = x.flip(1)
        found[:, mask] = 2.0
        return found + y

    args = (torch.randn(2, 3), torch.randn(2, 3), torch.tensor([True, False, True]))
    n, m = Dim("n", min=2, max=6), Dim("m", min=2, max=6)
    compiled = pipeline.default()(Calls(masked), args, dynamic_shapes=[{1: n}, {1: n}, {0: m}])
    assert [str(r) for r in compiled.program.shapes.relations] == ["args_2.shape[0] == args_0.shape[1]"]
    run = compiled.module(executor="reference")
    torch.testing.assert_close(run(*args), masked(*args))
    with pytest.raises(pipeline.ShapeError, match=r"args_2\.shape\[0\] == args_0\.shape\[1\]"):
        run(*args[:2], torch.tensor([True, False]))


def test_sizes_of_one_name_may_be_computed() -> None:
    """``min(n, m)`` is a size of its own to torch.export, though a model says that it is ``m``."""

    def diagonal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + y) @ x.diagonal()

    dims = {0: Dim("n", min=2, max=9), 1: Dim("m", min=2, max=4)}
    compiled = pipeline.default(torch_executed_ops=["aten.diagonal.default"], min_block_size=1)(
        Calls(diagonal), (torch.randn(3, 2), torch.randn(3, 2)), dynamic_shapes=[dims, dims]
    )
    args = torch.randn(5, 3), torch.randn(5, 3)
    torch.testing.assert_close(compiled.module(executor="reference")(*args), diagonal(*args))


class Repeated(nn.Module):
    """A mask of texts, repeated for each head, where an image attends to them: as diffusers' transformers do."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, 2, L, 8], [N, 2, S, 8], [N, S] -> [N, 2, L, 8]"""
        bias = ((1 - mask) * -10000.0).unsqueeze(1).repeat_interleave(2, dim=0)
        return F.scaled_dot_product_attention(q, k, k, attn_mask=bias.view(k.shape[0], 2, -1, bias.shape[-1]))


def texts(batch: int, rows: int, words: int) -> tuple[torch.Tensor, ...]:
    mask = (torch.arange(words) < torch.randint(1, words, (batch, 1))).float()
    return torch.randn(batch, 2, rows, 8), torch.randn(batch, 2, words, 8), mask


def of_their_own() -> tuple[dict[int, Any], ...]:
    """Sizes of three inputs, of which the model needs some to be equal."""
    few, many = Dim.DYNAMIC(min=1, max=4), Dim.DYNAMIC(min=2, max=40)  # type: ignore[operator]
    return {0: few, 2: many}, {0: few, 2: many}, {0: few, 1: many}


TOLD = {"one dim": ({0: batch()},) * 3, "of their own": of_their_own()}


@pytest.mark.parametrize("dims", TOLD)
def test_a_question_about_batches_that_turn_out_to_be_one(dims: str) -> None:
    """Whether a batch divided by the other is 1, torch takes for undecided, before it finds both to be equal."""
    compiled = pipeline.default()(Repeated().eval(), texts(2, 24, 12), dynamic_shapes=TOLD[dims])
    for count, rows, words in ((1, 24, 12), (3, 24, 12), *([(4, 7, 30)] if dims == "of their own" else [])):
        given = texts(count, rows, words)
        torch.testing.assert_close(compiled.module("reference")(*given), Repeated()(*given))
    if dims == "of their own":
        with pytest.raises(pipeline.ShapeError):
            compiled(*texts(2, 24, 12)[:2], texts(3, 24, 12)[2])
