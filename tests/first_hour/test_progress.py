"""Progress is drawn on a terminal by default, and not with ``progress=False``."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from torch import nn

import pipeline

X = torch.ones(2, 8)
NET = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "progress", "drawn"),
    [(Terminal, None, True), (Terminal, False, False), (io.StringIO, None, False), (io.StringIO, True, True)],
)
def test_who_draws(
    stream: type[io.StringIO], progress: bool | None, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", found := stream())
    compiled = pipeline.compile(NET, (X,), progress=progress)
    assert ("refit_map" in found.getvalue()) == drawn
    assert [entry.stage for entry in compiled.took][-1] == "choose"


def test_a_failed_run_gives_the_terminal_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    for _ in range(2):
        with pytest.raises(pipeline.UnsupportedOperatorException):
            pipeline.compile(nn.Identity(), (X,), require_full_compilation=True)
    monkeypatch.setattr(sys, "stderr", found := Terminal())
    pipeline.compile(NET, (X,), require_full_compilation=True)
    assert "refit_map" in found.getvalue()


def test_a_run_inside_of_a_stage_draws_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", found := Terminal())

    @pipeline.stage
    def compile_again(compiled: pipeline.Compiled) -> pipeline.Compiled:
        return pipeline.default()(compiled.program)

    (pipeline.default() | compile_again)(NET, (X,))
    assert "compile_again" in found.getvalue() and "failed at" not in found.getvalue()
