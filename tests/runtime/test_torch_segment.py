"""Torch segments: control flow, numbers from data, order of random draws, and what they keep in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.while_loop import while_loop

import pipeline
from benchmarks.partitions import unbuilt
from pipeline.aten.interpreter import Interpreter
from pipeline.improvements import Rewriting, improvement
from pipeline.runtime.torch_segment import torch_segment
from pipeline.stages.improve import Improve

X = torch.randn(3, 4)
DIMS = ({0: torch.export.Dim("n", min=1, max=9)},)
KEPT = {"aten.erfinv.default", torch.cond, "higher_order.map_impl"}
"""What runs in PyTorch here, though engines could take it."""


def compiled(model: nn.Module, *args: Any, dims: Any = DIMS, **settings: Any) -> pipeline.Compiled:
    compile = pipeline.default(**{"min_block_size": 1, "torch_executed_ops": KEPT, **settings}).replace(
        "build", unbuilt
    )
    result: pipeline.Compiled = compile(model.eval(), args=args, dynamic_shapes=dims)
    return result


class Flow(nn.Module):
    """Control flow between two products, over weights of its own."""

    def __init__(self, flow: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.flow = flow
        self.first, self.inner, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return self.last(self.flow(self, self.first(x) * 2)).softmax(-1) @ self.first.weight


def chosen(m: Flow, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.sum() > 0, lambda a: torch.relu(m.inner(a)), lambda a: a - m.shift, (y,))


def nested(m: Flow, y: torch.Tensor) -> torch.Tensor:
    def inner(a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.mean() > 1, lambda b: m.inner(b), lambda b: b * 2, (a,))

    return torch.cond(y.sum() > 0, inner, lambda a: m.inner(a) + torch.ones(4), (y,))


def by_size(m: Flow, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(y.shape[0] > 4, lambda a: a + y.shape[0], lambda a: a * m.shift, (y,))


def several(m: Flow, y: torch.Tensor) -> torch.Tensor:
    a, b = torch.cond(y.sum() > 0, lambda a: (a + 1, a.sum(0)), lambda a: (m.inner(a), a.mean(0)), (y,))
    return a * b


def repeated(m: Flow, y: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda a: a.sum() < 100, lambda a: (m.inner(a).abs() + a.abs() + 1,), (y,))[0]  # type: ignore[no-any-return]


def mapped(m: Flow, y: torch.Tensor) -> torch.Tensor:
    return map_over(lambda row: torch.relu(m.inner(row)), y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("flow", [chosen, nested, by_size, several, repeated, mapped], ids=lambda f: f.__name__)
def test_control_flow_runs_in_pytorch_between_engines(flow: Callable[..., torch.Tensor]) -> None:
    model = Flow(flow)
    result = compiled(model, X)
    [fallback] = [f for f in result.coverage.fallback if "higher_order" in f.target]
    assert any(why in fallback.reason for why in ("control flow: which of its", "torch_executed_ops keeps"))
    assert fallback.where.startswith("test_torch_segment.py:")
    assert [s.kind for s in result.partitioned.segments] == ["engine", "torch", "engine"]
    run = result.module("reference")
    for x in (X, X + 100, X - 100, torch.randn(8, 4), torch.randn(1, 4)):
        torch.testing.assert_close(run(x), model(x))


def test_control_flow_is_named_where_full_compilation_is_required() -> None:
    with pytest.raises(pipeline.UnsupportedOperatorException, match="control flow"):
        compiled(Flow(repeated), X, require_full_compilation=True)


def test_control_flow_sees_mutated_buffers() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 4] -> [N, 4]"""
            self.n.add_(1)
            return torch.cond(self.n > 2, lambda a: a + self.n, lambda a: a - 1, (x,))

    model = Counts()
    run = compiled(model, X).module("reference")
    for _ in range(4):
        torch.testing.assert_close(run(X), model(X))


class Numbers(nn.Module):
    """Numbers that data decides, and arithmetic on them."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        """[6], [] -> [...]"""
        return self.function(x, i)


NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "a size times two": lambda x, i: torch.zeros(checked(i.item()) * 2) + 1,
    "a size beside one of the input": lambda x, i: torch.zeros(checked(i.item()) + x.shape[0]).sum() + x,
    "found, then doubled": lambda x, i: torch.cat([(x > 0).nonzero()] * 2).float() * 2 + 1,
    "found, then reshaped": lambda x, i: (x > 0).nonzero().float().expand(-1, 3).reshape(-1) + 1,
    "selected, and its number": lambda x, i: ((s := x[x > 0]) * 2, s.shape[0]),
    "a float returned": lambda x, i: (x * 2, (f := x.sum().item()), f * 2 + 1),
    "a number in two segments": lambda x, i: torch.erfinv((x * (f := i.item())).tanh() + 1).nan_to_num() * f,
}


def checked(n: Any) -> Any:
    torch._check(n >= 0)
    torch._check(n <= 8)
    return n


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_from_data_reach_every_segment(name: str) -> None:
    model, x = Numbers(NUMBERS[name]), torch.tensor([1.0, -2.0, 3.0, 0.5, -1.0, 2.0])
    result = compiled(model, x, torch.tensor(3), dims=None)
    run = result.module("reference")
    for given in (x, -x, x + 9):
        torch.testing.assert_close(run(given, torch.tensor(2)), model(given, torch.tensor(2)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_a_bool_from_data_is_no_result(dtype: torch.dtype) -> None:
    model = Numbers(lambda x, i: (x, i.item() if dtype == torch.bool else i.item() > 1))
    with pytest.raises(pipeline.CaptureError, match=r"returns a data-dependent Python bool.*test_torch_segment"):
        pipeline.capture(model, (torch.ones(6), torch.tensor(3).to(dtype)))


def test_random_numbers_are_drawn_in_the_order_of_eager() -> None:
    class Draws(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """[N, 4] -> [N, 4], [N, 4]"""
            late = torch.rand_like(torch.softmax(x, -1) @ x.new_ones(4, 4))
            return late + 1, torch.rand_like(x) * 2

    model = Draws()
    run = compiled(model, X).module("reference")
    torch.manual_seed(7)
    ours = run(X)
    torch.manual_seed(7)
    torch.testing.assert_close(ours, model(X))


class Weighted(nn.Module):
    """A large weight for the engine, a small one for PyTorch, and one for both."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Parameter(torch.randn(4, 4))
        self.small = nn.Parameter(torch.randn(4))
        self.both = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return torch.erfinv((x @ self.large + self.both).tanh() * self.small) + torch.erfinv((self.both * x).tanh())


OPS = {"aten.mul.Tensor", "aten.erfinv.default"}


def held(run: Any) -> list[Any]:
    """The constants that a segment's function holds, and the graphs that its control flow runs."""
    cells = [cell.cell_contents for cell in run.__closure__]
    steps = next((value for value in cells if isinstance(value, Interpreter)), None)
    return [v for v in steps.template if isinstance(v, torch.Tensor | Interpreter)] if steps is not None else []


def test_a_torch_segment_holds_only_what_it_reads() -> None:
    partitioned = compiled(Weighted(), X, torch_executed_ops=OPS).partitioned
    program = partitioned.program
    made: dict[str, torch.Tensor] = {}

    def constant(name: str) -> torch.Tensor:
        made[name] = program.constants[name].evaluate(program.parameters)
        return made[name]

    for segment in partitioned.segments:
        if segment.kind == "torch":
            run = torch_segment(program, segment, constant, torch.device("cpu"))
            assert [*map(id, held(run))] == [id(made[name]) for name in segment.constants]
    assert "p_large" not in made
    assert {"p_small", "p_both"} <= set(made)


def test_a_torch_segment_holds_only_the_branches_it_runs() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 4] -> [N, 4]"""
            y = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))
            y = (y @ x.new_ones(4, 4)).softmax(-1) @ x.new_ones(4, 4)
            return torch.cond(y.sum() > 0, lambda a: a * 2, lambda a: a / 2, (y,))

    partitioned = compiled(Twice(), X).partitioned
    segments = [s for s in partitioned.segments if s.kind == "torch"]
    runs = [held(torch_segment(partitioned.program, s, lambda name: X, torch.device("cpu"))) for s in segments]
    assert [sum(isinstance(value, Interpreter) for value in values) for values in runs] == [2, 2]


def test_a_module_lets_go_of_the_models_weights() -> None:
    model = Weighted()
    watched = {name: weakref.ref(p) for name, p in model.named_parameters()}
    result = compiled(model, X, torch_executed_ops=OPS)
    run, expected = result.module("reference"), model(X).detach()
    del model, result
    gc.collect()
    assert [name for name, reference in watched.items() if reference() is not None] == []
    torch.testing.assert_close(run(X), expected, equal_nan=True)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("model", [Weighted(), Flow(nested)], ids=["weights", "branches"])
def test_constants_are_freed_with_the_module(model: nn.Module) -> None:
    run = compiled(model, X, torch_executed_ops={*OPS, *KEPT}).module("reference")
    watched = [weakref.ref(part) for segment in run._parts for part in held(segment)]
    assert watched
    del run
    assert [part() for part in watched if part() is not None] == []


def test_segments_share_the_constants_they_read() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 4] -> [N, 4]"""
            y = x * self.scale
            return (y @ y.mT).softmax(-1) @ y * self.scale

    result = compiled(Tied(), X, torch_executed_ops=OPS)
    scales = [value for run in result.module("reference")._parts for value in held(run)]
    assert len(scales) == 2 and len({scale.data_ptr() for scale in scales}) == 1


@improvement
def uncopied(rewriting: Rewriting) -> None:
    """A pass that drops copies."""
    for node in rewriting.nodes(torch.ops.aten.clone.default):
        assert rewriting.replace(node, node.args[0])  # type: ignore[arg-type]


def test_results_share_no_memory_though_a_pass_dropped_the_copy() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            """[N, 4] -> [N, 4], [N * 4]"""
            y = torch.erfinv(x)
            return y, y.clone().view(-1)

    compile = pipeline.default(min_block_size=1, torch_executed_ops={"aten.erfinv.default"})
    compile = compile.replace("improve", Improve(passes=(uncopied,))).replace("build", unbuilt)
    result = compile(Twice().eval(), args=(X / 9,))
    assert result.partitioned.engine_segments == ()
    one, other = result.module("reference")(X / 9)
    assert torch.equal(one.view(-1), other) and one.data_ptr() != other.data_ptr()
