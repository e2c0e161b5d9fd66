"""Segments under torch.compile: the same values, once a program; what cannot be compiled runs operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.compiled import Compiled
from pipeline.converters.declare import Rejection
from pipeline.runtime.compiled_segment import obstacle
from pipeline.runtime.torch_segment import torch_segment
from pipeline.verification.engines_in_torch import captured_in_torch
from tests.verification.test_loading import noted

X = torch.randn(3, 4)
MODE = "max-autotune-no-cudagraphs"
CPU = torch.device("cpu")


class Sorted(nn.Module):
    """Constants, two results of an operator, a view, a new tensor, and an input that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[N, 4] -> [N, 4], [4, N], [4], [N, 4]"""
        values, places = torch.sort(self.layer(x).view(-1, 4).softmax(-1))
        return values + places, x.T, torch.ones(4, device=x.device), x


class Drawing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return x + torch.rand_like(x)


class Attending(nn.Module):
    """Operators that draw nothing without a dropout."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [1, N, 4]"""
        x = nn.functional.dropout(x[None], training=self.training)
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)).tanh()


def in_torch(model: nn.Module, **how: Any) -> Compiled:
    compile = pipeline.default(min_block_size=1).replace("build", noted)
    return captured_in_torch(compile(model.eval(), (X,), **how), Rejection("it is a test"))


def runner(compiled: Compiled) -> Callable[[list[Any]], Any]:
    [segment], program = compiled.partitioned.segments, compiled.program
    return torch_segment(program, segment, lambda name: program.constants[name].evaluate(program.parameters), CPU, MODE)


@torch.no_grad()
def test_a_segment_is_compiled_once_and_returns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = list[dict[str, Any]](), torch.compile

    def traced(module: nn.Module, **how: Any) -> Any:
        asked.append(how)
        return real(module, backend="eager", dynamic=how["dynamic"], fullgraph=how["fullgraph"])

    monkeypatch.setattr(torch, "compile", traced)
    model = Sorted()
    made = in_torch(model)
    for program in (made, pipeline.refit_module_weights(made, model := Sorted())):
        expected = model(X) if program is not made else None
        found = runner(program)([X])
        if expected is not None:
            torch.testing.assert_close(found, list(expected[:3]), rtol=0, atol=0)
        assert found[1].data_ptr() != X.data_ptr(), "results are the caller's own"
    assert asked == [{"mode": MODE, "dynamic": False, "fullgraph": True}]


@torch.no_grad()
def test_where_torch_compile_fails_operators_are_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = list[int]()

    def broken(module: nn.Module, **how: Any) -> Any:
        def run(*inputs: torch.Tensor) -> Any:
            calls.append(len(inputs))
            raise RuntimeError("Failed to find C compiler")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    model = Sorted()
    run = runner(in_torch(model))
    for _ in range(2):
        torch.testing.assert_close(run([X]), list(model(X)[:3]), rtol=0, atol=0)
    assert calls == [3] and caplog.text.count("Failed to find C compiler") == 1


@pytest.mark.parametrize(
    ("model", "how", "why"),
    [
        (Sorted(), {}, ""),
        (Sorted(), {"dynamic_shapes": ({0: torch.export.Dim("n", min=1, max=9)},)}, "sizes vary"),
        (Drawing(), {}, "it draws random numbers"),
        (Attending(), {}, ""),
        (Branching(), {}, "it has control flow"),
    ],
)
def test_what_is_not_compiled(model: nn.Module, how: dict[str, Any], why: str, tmp_path: Path) -> None:
    made = in_torch(model, **how)
    assert obstacle(made.program, made.partitioned.segments[0]) == why
    if not why:
        made.save(tmp_path / "p.trtp")
        with pytest.warns(pipeline.ArtifactWarning):
            loaded = pipeline.load(tmp_path / "p.trtp")
        assert "loaded from a file" in obstacle(loaded.program, loaded.partitioned.segments[0])
