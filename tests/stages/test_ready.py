"""What a compilation checks before it captures anything: that this TensorRT's engines load on this GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from attrs import evolve

import pipeline
from pipeline.compose.pipelines import FunctionStage
from pipeline.records import library_support
from pipeline.records.library_support import TABLE, TENSORRT_RTX
from pipeline.stages import load
from pipeline.stages.unbuilt import unbuilt

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Timed:
    """A user's stage around another."""

    function: Any
    calls: list[str] = attrs.field(factory=list, eq=False)
    name: str = "timed"

    def __call__(self, compiled: pipeline.Compiled) -> pipeline.Compiled:
        """Return what the inner stage returns."""
        self.calls.append(self.name)
        return self.function(compiled)  # type: ignore[no-any-return]


def test_a_stage_around_another_is_called() -> None:
    timed = Timed(pipeline.verify(executor="reference"))
    compile = pipeline.default().replace("build", unbuilt) | timed
    assert compile(torch.nn.ReLU(), (torch.ones(2),)).agreement.holds
    assert timed.calls == ["timed"]


class Called(torch.nn.Module):
    """A model that counts how often it was traced."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x.sin()


def _pretend(monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], capability: tuple[int, int]) -> None:
    """Let the machine have this version of TensorRT-RTX and a GPU of this compute capability."""
    named = ".".join(map(str, version))
    there = evolve(library_support.CAPABILITIES, flavour="tensorrt_rtx", version=named, version_tuple=version)
    monkeypatch.setattr(library_support, "CAPABILITIES", there)
    monkeypatch.setattr(library_support, "LIBRARY", f"tensorrt_rtx {named}")
    monkeypatch.setattr(load, "has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")


@pytest.mark.parametrize("form", ["module", "program", "renamed"])
def test_a_release_that_loads_no_engine_here_is_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    model, x = Called(), torch.randn(4)
    program = pipeline.capture(model, (x,)) if form == "program" else None
    model.calls = 0
    _pretend(monkeypatch, (1, 7, 1, 116), (9, 0))
    message = r"tensorrt_rtx 1\.7\.1\.116 loads no engine on this GPU \(NVIDIA H200, compute capability 9\.0\)"
    with warnings.catch_warnings(), pytest.raises(pipeline.ExecutionError, match=message) as caught:
        warnings.simplefilter("ignore", pipeline.VersionWarning)
        compile = pipeline.default()
        compile = compile.replace("load", FunctionStage(load.Load(), "mine")) if form == "renamed" else compile
        compile(program) if program else compile(model, (x,))
    assert f'pip install "{TENSORRT_RTX}"' in str(caught.value) and model.calls == 0


@pytest.mark.parametrize(
    ("version", "capability", "fields"),
    [
        ((1, 6, 1, 120), (9, 0), {}),
        ((1, 7, 1, 116), (8, 9), {}),
        ((1, 7, 1, 116), (9, 0), {"compute_capabilities": ("8.9",)}),
        ((1, 7, 1, 116), (9, 0), {"load_built_engines": False}),
    ],
)
def test_other_releases_gpus_and_targets_are_compiled_for(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], capability: tuple[int, int], fields: dict[str, object]
) -> None:
    _pretend(monkeypatch, version, capability)
    stages = pipeline.default(**fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pipeline.VersionWarning)
        load.Load().check_ready(stages.settings)


def test_gpus_are_those_of_the_page() -> None:
    assert TENSORRT_RTX in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert all(f"| {row.gpus} | {row.capability} |" in (ROOT / "docs/versions.md").read_text("utf-8") for row in TABLE)
