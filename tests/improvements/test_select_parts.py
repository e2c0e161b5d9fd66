"""select_parts: the equal parts of a projection are selected from one view, where profiles share its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Program
from pipeline.stages.improve import Improve
from tests.improvements.programs import agree, improved, targets

X = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
FEW = [({1: 1},), ({1: Dim("rows", min=2, max=16)},)]


class Gated(nn.Module):
    """A projection [..., 8] -> [..., width], cut into parts that are multiplied."""

    def __init__(self, cut: Callable[[torch.Tensor], Any], width: int = 24) -> None:
        super().__init__()
        self.projection, self.cut = nn.Linear(8, width), cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., 8] -> [..., a part's width]"""
        gate, up = self.cut(self.projection(x))
        return nn.functional.silu(gate) * up


def sliced(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[..., :12], x[..., 12:]


def program_of(model: nn.Module, profiles: Any = FEW, x: torch.Tensor = X) -> Program:
    decompose = pipeline.default().until("decompose")
    program: Program = decompose(model.eval(), args=(x,), profiles=profiles)
    return program


@pytest.mark.parametrize(
    "cut", [sliced, lambda x: x.chunk(2, -1), lambda x: x.split(12, -1), lambda x: x.split([12, 12], -1)]
)
def test_halves_are_selected(cut: Callable[[torch.Tensor], Any]) -> None:
    before = program_of(Gated(cut))
    after = improved(before, "select_parts")
    assert targets(after)[:4] == ["linear.default", "unflatten.int", "select.int", "select.int"]
    assert not any("split" in name or "slice" in name for name in targets(after))
    for rows in (1, 5):
        agree(before, after, torch.randn(1, rows, 8))


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: (x[..., :11], x[..., 12:23]),
        lambda x: (x[..., :12], x[..., 6:18]),
        lambda x: (x[..., :8], x[..., 8:16]),
        lambda x: (x[..., 12:], x.sum(-1, keepdim=True)),
        lambda x: (x[..., :12], x[..., 12:] + x[..., 11:23]),
        lambda x: (x[:, :1], x[:, 1:2]),
    ],
)
def test_what_is_not_all_of_equal_parts_stays(cut: Callable[[torch.Tensor], Any]) -> None:
    fixed = [({0: 1},), ({0: Dim("batch", min=2, max=16)},)]
    before = program_of(Gated(cut), fixed)
    assert targets(improved(before, "select_parts")) == targets(before)


def test_one_profile_has_its_own_weights_in_any_case() -> None:
    before = program_of(Gated(sliced), profiles=None)
    assert targets(improved(before, "select_parts")) == targets(before)


def test_an_output_is_no_view_of_another() -> None:
    class Both(Gated):
        def forward(self, x: torch.Tensor) -> Any:
            """[..., 8] -> [..., 12] twice"""
            return self.cut(self.projection(x))

    before = program_of(Both(sliced))
    agree(before, improved(before, "select_parts"), X)


class Mlp(nn.Module):
    """A gated layer as language models have it."""

    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(inner, width, bias=False) for _ in range(2))
        self.down = nn.Linear(width, inner, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, rows, inner] -> the same"""
        result: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return result


def test_an_engine_has_its_weights_once() -> None:
    """Of 6.3 MB of weights, 4.2 are those of the gate. The rest of a plan is kernels: the same for prompts alone, whose
    product would be split."""
    model = Mlp(512, 2048).half().eval()
    compile = pipeline.default(require_full_compilation=True)

    def size(profiles: Any, *without: str) -> int:
        improve = Improve().without("split_products", *without)
        x = torch.randn(1, 1 if profiles == FEW[:1] else 3, 512).half()
        made = compile.replace("improve", improve)(model, args=(x,), profiles=profiles)
        return sum(len(engine.plan) for engine in made.engines)

    gate = model.gate.weight.nbytes + model.up.weight.nbytes
    alone = max(size([each]) for each in FEW)
    assert size(FEW, "select_parts") > alone + gate, "the library no longer copies them: leave the pass out"
    assert size(FEW) < alone + gate / 2
