"""decompose: what it rewrites means the same, what it folds has a recipe, and what it may not touch stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline import Program

DECOMPOSE = pipeline.default(registry=pipeline.ConverterRegistry()).until("decompose")


def targets(program: Program) -> list[str]:
    """The operators left, in order."""
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def run(program: Program, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The program's graph in eager PyTorch, its constants made by their recipes."""
    given = {p.name: value for p, value in zip(program.inputs, inputs, strict=True)}
    constants = {name: recipe.evaluate(program.parameters) for name, recipe in program.constants.items()}
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    module = torch.fx.GraphModule(program.graph_module, program.graph)
    with torch.no_grad():
        return module(*((given | constants)[name] for name in names))


class TwoAttentions(nn.Module):
    """The second attention's arguments come out of one template, and are told apart all the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 4, 6, 8] -> [2, 4, 6, 8]"""
        attend = nn.functional.scaled_dot_product_attention
        q, k, v = (nn.functional.silu(x * i) for i in (1.0, 2.0, 3.0))
        return attend(attend(x, x, x), q, k) + attend(q, k, v)


def test_values_that_share_a_template_are_told_apart() -> None:
    x = torch.randn(2, 4, 6, 8)
    torch.testing.assert_close(run(DECOMPOSE(TwoAttentions().eval(), args=(x,)), x)[0], TwoAttentions()(x))


def test_what_depends_on_parameters_alone_is_a_recipe() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x * (a + b)"""
            return x * (self.a.exp() + self.b)

    model, x = Scaled().eval(), torch.randn(4)
    program = DECOMPOSE(model, args=(x,))
    (recipe,) = program.constants.values()
    assert recipe.parameters == ("a", "b")
    assert targets(program) == ["aten.mul.Tensor"]
    new = {"a": torch.randn(4), "b": torch.randn(4)}
    torch.testing.assert_close(recipe.evaluate(new), new["a"].exp() + new["b"])
    torch.testing.assert_close(run(program, x)[0], model(x))


CONVOLUTIONS = [
    getattr(nn, f"{kind}{dims}d")(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, bias=dims != 2, **extra)
    for dims in (1, 2, 3)
    for kind, extra in (("Conv", {}), ("ConvTranspose", {"output_padding": 1}))
]


@pytest.mark.parametrize("model", CONVOLUTIONS, ids=str)
def test_convolutions_are_renamed_without_a_trace(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pipeline.decomposition.templates._trace_decomposition")
    x = torch.randn(2, 4, *[9] * (model.weight.dim() - 2))
    program = DECOMPOSE(model.eval(), args=(x,))
    assert targets(program) == ["aten.convolution.default"]
    torch.testing.assert_close(run(program, x)[0], model(x))


def test_a_convolution_without_a_batch_is_traced() -> None:
    model, x = nn.Conv2d(4, 6, 3).eval(), torch.randn(4, 9, 9)
    program = DECOMPOSE(model, args=(x,))
    assert "aten.convolution.default" in targets(program)
    torch.testing.assert_close(run(program, x)[0], model(x))


def test_python_code_is_written_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    recompile = torch.fx.GraphModule.recompile
    monkeypatch.setattr(torch.fx.GraphModule, "recompile", lambda self: [written.append(self), recompile(self)][1])
    exported = torch.export.export(nn.BatchNorm1d(4).eval().half(), (torch.randn(2, 4).half(),))
    module = DECOMPOSE(exported).graph_module
    before = len(written)
    assert all(each is not module for each in written)
    assert "aten.mul" in module.code and len(written) == before + 1 and written[-1] is module


def test_a_large_expansion_is_left_to_the_engine() -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = nn.Parameter(torch.randn(512))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x + a row expanded to [512, 512]"""
            return x + self.row.expand(512, 512)

    program = DECOMPOSE(Expanded().eval(), args=(torch.randn(512, 512),))
    assert targets(program) == ["aten.expand.default", "aten.add.Tensor"]


@pytest.mark.parametrize("in_place", [True, False])
def test_in_place_operators_on_fresh_values_are_rewritten_one_for_one(in_place: bool) -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """a chain of in-place operators"""
            y = x * 2
            z = y + 1
            y += x
            if in_place:
                y.relu_()
            return y * z

    x = torch.randn(5)
    program = DECOMPOSE(InPlace().eval(), args=(x,))
    assert not any(t.split(".")[1].endswith("_") for t in targets(program))
    torch.testing.assert_close(run(program, x)[0], InPlace()(x.clone()))


def test_random_operators_are_not_frozen() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x + noise"""
            return x + torch.rand(3)

    program = DECOMPOSE(Noise().eval(), args=(torch.zeros(3),))
    assert not program.constants
    assert any("rand" in t for t in targets(program))


def test_executed_in_torch_means_not_taken_apart_either() -> None:
    compile = pipeline.default(torch_executed_ops={"aten.layer_norm.default"}).until("decompose")
    program = compile(nn.LayerNorm(4).eval(), args=(torch.randn(2, 4),))
    assert targets(program) == ["aten.layer_norm.default"]


def test_the_graph_that_came_in_is_not_changed() -> None:
    program = pipeline.capture(nn.LayerNorm(4).eval(), (torch.randn(2, 4),))
    before = str(program)
    decomposed = DECOMPOSE(program)
    assert str(program) == before
    assert decomposed.digest != program.digest
    assert DECOMPOSE(program).digest == decomposed.digest


def test_steps_of_recipes_are_not_taken_for_parameters() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mul, self.exp = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Steps that would be called as the parameters are."""
            return x + self.exp.exp() * self.mul * self.exp

    model, x = Named().eval(), torch.randn(4)
    program = DECOMPOSE(model, args=(x,))
    torch.testing.assert_close(run(program, x)[0], model(x))
    assert len({recipe.name for recipe in program.constants.values()}) == len(program.constants)


PICKED = (torch.tensor([0, 1, 5]), torch.tensor([True, False, True]))
MASKED = {
    "read": lambda x, at, mask: torch.ops.aten._unsafe_masked_index(x, mask[:, None], [at, None], 0.5),
    "read, by constants": lambda x, at, mask: torch.ops.aten._unsafe_masked_index(
        x, torch.tensor([[True], [False]]), [None, torch.tensor([[0, 3], [9, 1]])], 0.5
    ),
    "written": lambda x, at, mask: torch.ops.aten._unsafe_masked_index_put_accumulate(
        x, mask[:, None], [at, None], x.new_ones(3, 4)
    ),
}


@pytest.mark.parametrize("function", MASKED.values(), ids=MASKED)
def test_a_decomposition_may_write_to_its_lists(function: Any) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, at: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """Positions out of range, which a mask hides."""
            return function(x, at, mask)

    inputs = torch.randn(2, 4), *PICKED
    compiled = pipeline.default()(Masked().eval(), inputs)
    torch.testing.assert_close(compiled.module(executor="reference")(*inputs), function(*inputs))
