"""What torch logs and prints while a model is captured stays with us, whether it is captured or not."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import pipeline


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def until(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 3:
        x = x + 1
    return x


CAPTURED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a size that is data": lambda x: x[: int(x.abs().sum())],
    "a random tensor of a size that is data": lambda x: torch.randn(int(x.abs().sum()), 2),
}
REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a loop": until,
    "a branch in vmap": lambda x: torch.func.vmap(lambda row: row.sum() if row[0] > 0 else row[0])(x),
    "parts of a size that is data": lambda x: x.split(int(x.abs().sum()))[0],
    "sizes that do not fit": lambda x: x @ x,
    "a size that torch takes for a constant": lambda x: x * torch.fft.fftfreq(x.shape[0])[:, None],
}


@pytest.fixture(autouse=True)
def stderr(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr() == ("", "")


DYNAMIC = ({0: torch.export.Dim("n", min=2, max=30)},)


@pytest.mark.parametrize("dims", [None, DYNAMIC], ids=["fixed", "varying"])
@pytest.mark.parametrize("name", CAPTURED)
def test_a_capture_is_quiet(name: str, dims: object) -> None:
    pipeline.capture(Calls(CAPTURED[name]).eval(), (torch.randn(3, 12),), None, dims)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_quiet(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """What torch logged can be had from our logger."""
    caplog.set_level(logging.DEBUG, "pipeline.torch")
    with pytest.raises(pipeline.CaptureError):
        pipeline.capture(Calls(REFUSED[name]).eval(), (torch.randn(3, 12),), None, DYNAMIC)
    assert any(record.name == "pipeline.torch" for record in caplog.records)


def test_torchs_own_exports_are_not() -> None:
    with pytest.raises(Exception, match="data-dependent"), contextlib.redirect_stderr(io.StringIO()) as text:
        torch.export.export(Calls(REFUSED["a branch"]).eval(), (torch.randn(3, 12),), strict=True)
    assert "GraphModule" in text.getvalue()


@pytest.mark.parametrize("value", ["", "dynamic"])
def test_who_sets_torch_logs_gets_them(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_LOGS", value)
    with pytest.raises(pipeline.CaptureError):
        pipeline.capture(Calls(REFUSED["sizes that do not fit"]).eval(), (torch.randn(3, 12),))
    assert ("failed while attempting" in caplog.text) == bool(value)
    capfd.readouterr()
