"""Segments under torch.compile: the same values, once a program; what cannot be compiled runs operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import pipeline
from pipeline.aten.graphs import copy_graph
from pipeline.compiled import Compiled
from pipeline.converters.declare import Rejection
from pipeline.runtime.compiled_segment import compile_obstacle
from pipeline.runtime.torch_segment import torch_segment
from pipeline.verification import engines_in_torch
from pipeline.verification.engines_in_torch import captured_program_in_torch
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


class Filling(nn.Module):
    """Results in new memory, as rotary embeddings and mixtures of experts make them; some of it is never written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 16]"""
        new = torch.empty_like(x), torch.empty(x.shape, device=x.device), x.new_empty(x.shape)
        for y in new:
            y[:, ::2] = x[:, 1::2]
        return torch.cat([*new, torch.empty(x.shape, memory_format=torch.contiguous_format, device=x.device)], -1)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)).tanh()


def in_torch(model: nn.Module, **how: Any) -> Compiled:
    compile = pipeline.default(min_block_size=1).replace("build", noted)
    return captured_program_in_torch(compile(model.eval(), (X,), **how), Rejection("it is a test"))


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
def test_new_memory_is_zero_as_in_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **how: real(module, backend="eager", fullgraph=True))
    [found] = runner(in_torch(Filling()))([X])
    expected = torch.zeros(3, 16)
    expected[:, 0:12:2] = X[:, 1::2].repeat(1, 3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


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
        (Filling(), {}, ""),
        (Branching(), {}, "it has control flow"),
    ],
)
def test_what_is_not_compiled(model: nn.Module, how: dict[str, Any], why: str, tmp_path: Path) -> None:
    made = in_torch(model, **how)
    assert compile_obstacle(made.program, made.partitioned.segments[0]) == why
    if not why:
        made.save(tmp_path / "p.trtp")
        with pytest.warns(pipeline.ArtifactWarning):
            loaded = pipeline.load(tmp_path / "p.trtp")
        assert "loaded from a file" in compile_obstacle(loaded.program, loaded.partitioned.segments[0])


def test_numbers_that_nothing_reads_are_not_drawn() -> None:
    """torch 2.11 and 2.12 keep the draws of layer dropout in an export."""
    made = pipeline.default(min_block_size=1).replace("build", noted)(Sorted().eval(), (X,))
    source = made.program.source
    graph = copy_graph(source.graph)
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "call_function")):
        graph.call_function(torch.ops.aten.rand.default, ([],)).meta["val"] = torch.empty(())
    drawing = evolve(made.partitioned, program=evolve(made.program, source=source.with_graph(graph)))
    found = captured_program_in_torch(evolve(made, partitioned=drawing), Rejection("it is a test"))
    assert compile_obstacle(found.program, found.partitioned.segments[0]) == ""
    assert len(graph.nodes) == len(found.program.graph.nodes) + 1, "the captured program itself is not changed"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)
        self.register_buffer("keys", torch.zeros(1, 1, 16, 8))

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """[1, L, 8] -> [1, L, 8]"""
        y = self.linear(x)[:, None]
        self.keys.index_copy_(2, torch.arange(x.shape[1], device=x.device) + start, y)
        return x + ((y @ self.keys.mT / x.shape[1]).softmax(-1) @ self.keys)[:, 0]


class Layers(nn.Module):
    """Layers that differ only in names, with a cache each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(), Layer(), Layer()])

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """[1, L, 8] -> [1, L, 8]"""
        for layer in self.layers:
            x = layer(x, start)
        return x


@torch.no_grad()
def test_equal_layers_of_a_profile_are_compiled_once_and_update_caches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, real = list[object](), torch.compile

    def traced(module: nn.Module, **how: Any) -> Any:
        asked.append(how["dynamic"])
        return real(module, backend="aot_eager", dynamic=how["dynamic"], fullgraph=how["fullgraph"])

    monkeypatch.setattr(torch, "compile", traced)
    compile = pipeline.default(min_block_size=1).replace("partition", pipeline.in_pieces(between="layers.*"))
    compile = compile.insert(pipeline.engine_per_profile(), after="partition").replace("build", noted)
    compile = compile.insert(pipeline.shared_weights(64), after="partition")
    profiles = [{"x": {1: 1}}, {"x": {1: torch.export.Dim("rows", min=2, max=8)}}]
    made = compile(Layers().eval(), (torch.rand(1, 4, 8), torch.tensor(0)), profiles=profiles)
    names = [segment.name for segment in made.partitioned.segments]
    found = engines_in_torch.replace_engines(made, dict.fromkeys(names, Rejection("it is a test")))
    monkeypatch.setattr(
        "pipeline.runtime.module.torch_segment",
        lambda program, segment, constant, device, _, **__: torch_segment(program, segment, constant, device, MODE),
    )
    module, model = found.module("reference"), Layers().eval()
    caches = [buffer.data_ptr() for buffer in module.buffers()]
    for start, rows in ((0, 5), (5, 1), (6, 1), (7, 3)):
        given = torch.rand(1, rows, 8), torch.tensor(start)
        torch.testing.assert_close(module(*given), model(*given))
        torch.testing.assert_close(dict(module.named_buffers()), dict(model.named_buffers()))
    assert caches == [buffer.data_ptr() for buffer in module.buffers()]
    assert len(names) == 8 and len(asked) == 6 and {*asked} == {None}, "the first layer, the others, a check; twice"
    assert "torch.compile failed" not in caplog.text
