"""What random programs found, each as small as it was shrunk: they compile, and are as in eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.errors import CaptureError
from pipeline.testing import TensorSpec, check_model
from tests.fuzz.captured import capture_model

SIZES = {"n": (2, 3, 7)}


class Changed(nn.Module):
    """Returns the input that it changed, and a value of it that is no longer the input."""

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> [N, 4], twice"""
        before = x + 0
        x.fill_(1)
        return {"x": x, "copy": x.clone(), "before": before}


def test_a_changed_input_that_is_returned_is_the_input() -> None:
    check_model(Changed, (TensorSpec(("n", 4)),), sizes=SIZES)


class Copied(nn.Module):
    """Returns what it wrote to the input, which is not the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = x * 2
        x.copy_(y)
        return y


@pytest.mark.parametrize("entry", ["dims", "exported"])
def test_what_was_written_to_an_input_is_not_the_input(entry: Any) -> None:
    check_model(Copied, (TensorSpec(("n", 4)),), sizes=SIZES, entry=entry)


class Broadcast(nn.Module):
    """A buffer overwritten by what has another shape and dtype, then read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(3, 4))
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("row", torch.tensor([0.5, 1.0, -1.0, 2.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """[N, 4], int64 [2] -> [3, N], [2]"""
        self.rows.copy_(self.row)
        self.count.copy_(y)
        return self.rows @ x.mT, self.count / 2, self.count


def test_what_is_copied_into_a_buffer_has_its_shape_and_dtype() -> None:
    check_model(Broadcast, (TensorSpec(("n", 4)), TensorSpec((2,), torch.int64)), sizes=SIZES, min_block_size=1)


class Masked(nn.Module):
    """Writes a value for each element that a mask chooses, which may be none."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[N, 4], [N, 4] -> [N, 4]"""
        x[y != y] *= 2
        return x + 1


@pytest.mark.parametrize("refused", ["aten.mul.Tensor", "aten.index_put.default"])
def test_a_mask_may_choose_nothing(refused: str) -> None:
    args = TensorSpec(("n", 4)), TensorSpec(("n", 4))
    check_model(Masked, args, sizes=SIZES, min_block_size=1, torch_executed_ops=[refused])


class Repeated(nn.Module):
    """Repeats rows: a view of a copy of an expanded tensor; the copy is left out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [2 N, 4]"""
        return torch.repeat_interleave(x, 2, dim=0)


class Returned(nn.Module):
    """Copies and the like of inputs and of one another."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """[N, 4], [N, 4] -> copies"""
        z = torch.tanh(y)
        return x.clone(), z, z.clone(), y + 0, x.expand(2, -1, -1).contiguous(), x.to(torch.float64).float()


class ViewsOfCopies(nn.Module):
    """Copies that are seen through views only, of an input that is changed afterwards and of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> views"""
        before, other, total = x.clone().view(-1), x.clone().mT, self.total.clone().view(2, 2)
        x.add_(1)
        self.total.add_(x[0])
        return before, torch.tanh(before), other, total, self.total[1:]


@pytest.mark.parametrize("refused", [[], ["aten.unsqueeze.default"], [lambda path: True]], ids=["none", "one", "all"])
def test_what_lies_in_memory_otherwise_than_in_the_example(refused: Any) -> None:
    options = {"sizes": SIZES, "torch_executed_ops": refused, "strided": True}
    check_model(Repeated, (TensorSpec(("n", 4)),), **options)
    check_model(Returned, (TensorSpec(("n", 4)), TensorSpec(("n", 4))), **options)
    check_model(ViewsOfCopies, (TensorSpec(("n", 4)),), **options)


class Flattened(nn.Module):
    """Flattens a transpose of what was written to since: a view of a copy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [4 N]"""
        turned = x.T
        x.clamp_(-1, 1)
        return turned.flatten(0, 1)


class Twice(nn.Module):
    """A buffer and a result, each returned twice."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(10, 4))

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> twice [10, 4], twice [N, 4]"""
        self.cache[: self.cache.shape[0]] = self.cache
        y = torch.tanh(x)
        return {"cache": self.cache, "more": (self.cache, [y, y])}


class Beside(nn.Module):
    """Returns a buffer, and what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(10, 4))

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> [10, 4], twice [10, 4]"""
        before = self.cache.clone()
        self.cache[: before.shape[0]] = before
        return before, [self.cache, self.cache], x.sum()


@pytest.mark.parametrize("refused", [[], [lambda path: True]], ids=["none", "all"])
def test_a_result_that_is_returned_twice_is_one(refused: Any) -> None:
    for model in (Flattened, Twice, Beside):
        check_model(model, (TensorSpec(("n", 4)),), sizes=SIZES, torch_executed_ops=refused, min_block_size=1)


class Tail(nn.Module):
    """The last two rows, changed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [2, 4]"""
        tail = x[-2:]
        tail.neg_()
        return tail * 2


@pytest.mark.parametrize(("entry", "least"), [("dims", 1), ("exported", 2)])
def test_sizes_that_a_slice_rules_out_are_said_to_be(entry: Any, least: int, caplog: pytest.LogCaptureFixture) -> None:
    compiled = check_model(Tail, (TensorSpec(("n", 4)),), sizes={"n": (1, 4, 4)}, entry=entry)
    assert [(r.min, r.max) for r in compiled.program.shapes.values()] == [(least, 4)]
    assert ("x.shape[0] can only range from 2 to 4, not 1 to 4" in caplog.text) == (least == 2)


class Flat(nn.Module):
    """Gives back what it is given, in functions that have nothing to do."""

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> the same"""
        y = torch.tanh(x)
        return x.flatten(1), torch.dropout(y, 0.5, False), y, y.to(torch.float32), x, y


def test_functions_that_have_nothing_to_do() -> None:
    check_model(Flat, (TensorSpec(("n", 4)),), sizes=SIZES, min_block_size=1)


class Columns(nn.Module):
    """Writes to all columns but the first: with two of them, to one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, N] -> [3, N]"""
        y = x * 2
        y[:, 1:] *= 0.5
        return y


def test_a_size_that_torch_export_makes_one_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"to those of the example: n is 2"):
        check_model(Columns, (TensorSpec((3, "n")),), sizes={"n": (2, 2, 4)})
    check_model(Columns, (TensorSpec((3, "n")),), sizes={"n": (3, 4, 6)})


def test_a_range_that_torch_export_makes_smaller_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Writing to columns asks whether one is left; the program is right if so."""
    check_model(Columns, (TensorSpec((3, "n")),), sizes={"n": (2, 3, 4)})
    assert "can only range" not in caplog.text


class Emptied(nn.Module):
    """Nothing, repeated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, N, 4] -> [0, N, 4]"""
        return torch.tanh(x[1:]).repeat(2, 1, 1)


def test_nothing_of_dynamic_size_is_repeated() -> None:
    check_model(Emptied, (TensorSpec((1, "n", 4)),), sizes=SIZES, min_block_size=1)


class Written(nn.Module):
    """Writes through a view that no rule of ours knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = torch.tanh(x)
        y.as_strided((4,), (1,)).fill_(0.5)
        return y


def test_what_torch_export_cannot_make_functional_is_an_error_of_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Subtraction, the `-` operator, with two bool tensors is not supported")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fails)
    with pytest.raises(CaptureError, match="cannot functionalize the in-place operators of the model: Subtraction"):
        check_model(Written, (TensorSpec(("n", 4)),), sizes=SIZES)


class Shuffled(nn.Module):
    """Channels in another order: its decomposition reads two sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, 2, H, W] -> [1, 2, H, W]"""
        return nn.functional.channel_shuffle(x, 2)


def test_sizes_are_read_in_the_same_order_in_each_compilation() -> None:
    """The first compilation read the width first, later ones the height."""
    spec, sizes = TensorSpec((1, 2, "h", "w")), {"h": (8, 8, 11), "w": (8, 9, 11)}
    program = capture_model(Shuffled, (spec,), sizes=sizes)
    decompose = pipeline.default().until("decompose")
    assert str(decompose(program)) == str(decompose(program))
