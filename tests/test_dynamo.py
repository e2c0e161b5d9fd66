"""``torch.compile`` with our backend: what Dynamo hands over is compiled, guarded and kept up to date."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import pipeline


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Dynamo without what other tests compiled, and calls as inference makes them."""
    torch.compiler.reset()
    with torch.no_grad():
        yield
    torch.compiler.reset()


class Counted:
    """A backend that remembers what it compiled."""

    def __init__(self, **fields: Any) -> None:
        self.made: list[pipeline.Compiled] = []

        @pipeline.stage
        def remember(compiled: pipeline.Compiled) -> pipeline.Compiled:
            self.made.append(compiled)
            return compiled

        compile = pipeline.default(min_block_size=1, **fields) | remember
        self.backend = pipeline.backend(compile, executor="reference")

    def __call__(self, model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The model under torch.compile."""
        return torch.compile(model, backend=self.backend, **options)


def agrees(compiled: Callable[..., Any], model: Callable[..., Any], *args: Any) -> None:
    """The same structure and values."""
    torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-5, atol=1e-5)


class Net(nn.Module):
    """A layer, a norm with floats of its own, and a number that is multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, times: float = 2) -> dict[str, Any]:
        """[N, 4] -> y: [N, 4]"""
        return {"y": self.norm(self.linear(x)) * times, "n": x.shape[0]}


def test_a_size_that_changes_is_compiled_once_more_and_then_not() -> None:
    counted, model = Counted(require_full_compilation=True), Net().eval()
    compiled = counted(model)
    for size, times in ((2, 1), (5, 2), (16, 2), (20, 2), (21, 3), (1, 4)):
        agrees(compiled, model, torch.randn(size, 4))
        assert len(counted.made) == times, size
    assert [len(made.engines) for made in counted.made] == [1] * 4
    [bounds] = counted.made[1].program.shapes.values()
    assert (bounds.min, bounds.opt, bounds.max) == (2, 5, 20)


def test_weights_are_in_the_engine() -> None:
    counted, model = Counted(), Net().eval()
    counted(model)(torch.randn(2, 4))
    [made] = counted.made
    assert len(made.program.inputs) == 1
    assert len(made.refit_map) >= 2


def test_ranges_that_dynamo_was_told() -> None:
    counted, model, x = Counted(), Net().eval(), torch.randn(3, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    compiled = counted(model)
    agrees(compiled, model, x)
    agrees(compiled, model, torch.randn(8, 4))
    [bounds] = counted.made[0].program.shapes.values()
    assert (bounds.min, bounds.max) == (2, 8)
    agrees(compiled, model, torch.randn(9, 4))
    assert len(counted.made) == 2


def test_what_the_program_asks_of_sizes_is_guarded() -> None:
    """`view` wants a multiple of 4: another size would be an error of the engine's, and here is Dynamo's to decide."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4, x.shape[1]).sum(1)

    counted = Counted()
    compiled = counted(model, dynamic=True)
    for size in (8, 12):
        agrees(compiled, model, torch.randn(size, 4))
    assert len(counted.made) == 1
    with pytest.raises(Exception, match=r"view|size"):
        compiled(torch.randn(7, 3))


def test_sizes_that_several_inputs_share() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ y.mT, x], 1).view(-1)

    counted = Counted()
    compiled = counted(model, dynamic=True)
    for n, m in ((3, 5), (6, 2), (4, 4)):
        agrees(compiled, model, torch.randn(n, 4), torch.randn(m, 4))
    assert len(counted.made) == 1


@pytest.mark.parametrize(
    ("numbers", "times"), [((7, 9, 2), 2), ((0.5, 1.5, 0.5), 2), ((-3, -4), 2)], ids=["whole", "float", "negative"]
)
def test_numbers(numbers: tuple[float, ...], times: int) -> None:
    counted, model = Counted(), Net().eval()
    compiled = counted(model)
    for number in numbers:
        agrees(compiled, model, torch.randn(3, 4), number)
    assert len(counted.made) == times


def test_everything_dynamic_leaves_the_modules_own_floats_constant() -> None:
    counted, model = Counted(require_full_compilation=True), Net().eval()
    compiled = counted(model, dynamic=True)
    for size in (3, 5):
        agrees(compiled, model, torch.randn(size, 4), 2.5)
    assert len(counted.made) == 1


def test_weights_that_change_are_refitted() -> None:
    counted, model, x = Counted(), Net().eval(), torch.randn(3, 4)
    compiled = counted(model)
    agrees(compiled, model, x)
    model.linear.weight.mul_(2)
    agrees(compiled, model, x)
    model.linear.weight = nn.Parameter(torch.randn(4, 4))
    agrees(compiled, model, x)
    model.load_state_dict(Net().state_dict())
    agrees(compiled, model, x)
    assert len(counted.made) == 1


class Cache(nn.Module):
    """A buffer that every call adds to, and one that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("sum", torch.zeros(4))
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        self.sum.add_(x.sum(0))
        return self.linear(x) + self.sum * self.scale


def test_buffers_that_the_model_writes_to() -> None:
    model = Cache().eval()
    eager, counted = copy.deepcopy(model), Counted()
    compiled = counted(model)
    for _ in range(3):
        agrees(compiled, eager, torch.randn(3, 4))
        torch.testing.assert_close(model.sum, eager.sum)
    assert len(counted.made) == 1


def test_inputs_that_the_model_writes_to() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    x = torch.randn(3, 4)
    mine = x.clone()
    torch.testing.assert_close(Counted()(model)(mine), model(x))
    torch.testing.assert_close(mine, x)


def test_graph_breaks_make_several_programs() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def model(x: torch.Tensor) -> torch.Tensor:
        y = first(x)
        torch._dynamo.graph_break()
        return second(torch.relu(y))

    counted = Counted()
    agrees(counted(model), model, torch.randn(2, 4))
    assert len(counted.made) == 2


class Weights(nn.Module):
    """What is made of weights alone, and then more in a second graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4] -> [4]"""
        scale = torch.exp(self.weight) * 2
        self.count.add_(1)
        torch._dynamo.graph_break()
        return x * scale + self.count


def test_a_graph_of_weights_alone() -> None:
    model = Weights()
    counted, other = Counted(), copy.deepcopy(model)
    compiled = counted(other)
    for _ in range(3):
        agrees(compiled, model, torch.randn(4))
        with torch.no_grad():
            model.weight.mul_(2)
            other.weight.mul_(2)
    assert [len(made.program.inputs) for made in counted.made[:2]] == [1, 2]
    torch.testing.assert_close(other.count, model.count)


NO_INPUTS: dict[str, Callable[[], Any]] = {
    "constants": lambda: torch.ones(3) * 2 + 1,
    "several": lambda: {"a": torch.arange(4), "b": (torch.zeros(2), 3, None)},
    "empty": lambda: torch.zeros(0, 3),
    "an engine without inputs": lambda: torch.ones(1100, 1000) * 2 + 1,
}


@pytest.mark.parametrize("name", NO_INPUTS)
def test_no_inputs(name: str) -> None:
    function, counted = NO_INPUTS[name], Counted()
    compiled = counted(function)
    agrees(compiled, function)
    agrees(compiled, function)
    module = pipeline.default()(Given(function), args=()).module(executor="reference")
    torch.testing.assert_close(module(), function())


class Given(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Whatever the function gives."""
        return self.function(*args)


@pytest.mark.parametrize("numbers", [(3, 4, 5), (3.0, 4.0, 5.0)], ids=["whole", "floats"])
def test_no_input_but_a_number(numbers: tuple[float, ...]) -> None:
    def function(n: float) -> torch.Tensor:
        return torch.ones(n) * 2 if isinstance(n, int) else torch.ones(3) * n

    compiled = Counted()(function)
    for n in numbers:
        agrees(compiled, function, n)


def test_random_numbers_without_inputs_stay_random() -> None:
    compiled = Counted()(lambda: torch.rand(64))
    assert not torch.equal(compiled(), compiled())


def view_of_input(x: torch.Tensor) -> Any:
    flat, double = x.view(-1), x * 2
    torch._dynamo.graph_break()
    flat.add_(1)
    return x, double


def views_of_result(x: torch.Tensor) -> Any:
    y = x * 2
    first, second = y.chunk(2, 0)
    torch._dynamo.graph_break()
    first.add_(1)
    return y, second


def in_place(x: torch.Tensor) -> Any:
    y = torch.relu_(x * 2).t().contiguous()
    row, turned = y[0], y.T
    torch._dynamo.graph_break()
    turned.mul_(3)
    return y, row, y.reshape(x.shape[0] * 3)


def written_twice(x: torch.Tensor) -> Any:
    part = x[1:]
    x.add_(1)
    torch._dynamo.graph_break()
    part.mul_(2)
    return part, x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [view_of_input, views_of_result, in_place, written_twice])
def test_what_is_written_to_a_view_after_a_graph_break(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = Counted()(function, dynamic=dynamic)
    for _ in range(2):
        x = torch.randn(4, 3)
        mine = x.clone()
        torch.testing.assert_close(compiled(mine), function(x))
        torch.testing.assert_close(mine, x)


def test_a_view_that_the_caller_gets_is_one() -> None:
    compiled, x = Counted()(lambda x: (x.view(-1), x[0], x * 1)), torch.zeros(2, 3)
    flat, row, copy = compiled(x)
    flat.add_(1)
    assert x.sum() == 6
    assert row.sum() == 3
    assert copy.sum() == 0


def test_a_buffer_is_written_through_a_view() -> None:
    class Through(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            view, y = self.state.view(-1), x + 1
            torch._dynamo.graph_break()
            view.add_(1)
            return y + self.state

    model, other, x = Through(), Through(), torch.randn(2, 3)
    compiled = Counted()(other)
    for _ in range(3):
        agrees(compiled, model, x)
    torch.testing.assert_close(other.state, model.state)


def test_what_runs_in_pytorch_is_as_ever() -> None:
    counted, model = Counted(torch_executed_ops={"aten.softmax.int", "aten._softmax.default"}), nn.Softmax(-1)
    agrees(counted(model), model, torch.randn(2, 4))
    assert counted.made[0].coverage.fallback


def test_refusals_reach_the_user() -> None:
    counted = Counted(require_full_compilation=True, torch_executed_ops={torch.ops.aten.tanh})
    with pytest.raises(Exception, match=r"torch_executed_ops keeps aten\.tanh\.default in PyTorch"):
        counted(torch.tanh)(torch.randn(2, 4))


def test_options_are_settings() -> None:
    counted, x = Counted(), torch.randn(2, 4)
    agrees(counted(torch.tanh, options={"optimization_level": 1}), torch.tanh, x)
    assert counted.made[0].settings == pipeline.CompilationSettings(min_block_size=1, optimization_level=1)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"enabled_precisions.*strongly typed"):
        counted(torch.tanh, options={"enabled_precisions": {torch.float16}})(x)


def test_a_pipeline_that_ends_early_is_none_for_a_backend() -> None:
    with pytest.raises(TypeError, match="takes a Program and returns a Compiled"):
        pipeline.backend(pipeline.default().until("convert"))
    with pytest.raises(TypeError, match="takes a Program and returns a Compiled"):
        pipeline.backend(pipeline.default().without("decompose").without("improve").without("validate"))


def test_an_own_stage_and_an_observer_are_part_of_it(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    compile = pipeline.default(min_block_size=1).observed_by(lambda event: seen.append(event.stage))
    with caplog.at_level(logging.WARNING):
        agrees(
            torch.compile(torch.tanh, backend=pipeline.backend(compile, executor="reference")),
            torch.tanh,
            torch.randn(2, 4),
        )
    assert "convert" in seen
    assert not [record for record in caplog.records if record.name.startswith("pipeline")]
