"""partition: segments are acyclic, complete, and cut where a reason says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipeline
from pipeline.program import is_operator


class Program(nn.Module):
    """A random straight-line program of additions and multiplications over three inputs."""

    def __init__(self, steps: list[tuple[bool, int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """three tensors of one shape -> the last three values"""
        values = [a, b, c]
        for multiply, i, j in self.steps:
            x, y = values[i % len(values)], values[j % len(values)]
            values.append(x * y if multiply else x + y)
        return tuple(values[-3:])


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=12)


@given(STEPS, st.integers(1, 4))
def test_random_programs_are_cut_rightly(steps: list[tuple[bool, int, int]], block: int) -> None:
    model, inputs = Program(steps).eval(), tuple(torch.randint(-3, 4, (2,)).float() for _ in range(3))
    compile = pipeline.default(torch_executed_ops={"aten.mul.Tensor"}, min_block_size=block).until("partition")
    partitioned = compile(model, args=inputs)
    graph = {n.name: n for n in partitioned.program.graph.nodes}
    placed = [name for s in partitioned.segments for name in s.nodes]
    assert sorted(placed) == sorted(n.name for n in graph.values() if is_operator(n))
    known = {p.name for p in partitioned.program.inputs}
    for segment in partitioned.segments:
        assert {p.name for p in segment.inputs} <= known, "a segment reads what is not made yet"
        known |= {p.name for p in segment.outputs}
        if segment.kind == "engine" and partitioned.fallbacks:
            assert len(segment.nodes) >= block
    assert all(f.reason for f in partitioned.fallbacks)


def test_small_segments_run_in_pytorch_and_say_so() -> None:
    model = Program([(False, 0, 1), (True, 3, 2), (False, 4, 0)]).eval()
    x = tuple(torch.ones(2) for _ in range(3))
    partitioned = pipeline.default(torch_executed_ops={"aten.mul.Tensor"}).until("partition")(model, args=x)
    assert [s.kind for s in partitioned.segments] == ["torch"]
    reasons = [f.reason for f in partitioned.fallbacks]
    assert "its engine would have only 1 operator, fewer than min_block_size=5" in reasons
    whole = pipeline.default().until("partition")(model, args=x)
    assert [s.kind for s in whole.segments] == ["engine"]


def test_parallel_branches_share_a_segment() -> None:
    model = Program([(False, 0, 1), (False, 1, 2), (True, 3, 4), (False, 5, 3), (False, 5, 4)]).eval()
    compile = pipeline.default(torch_executed_ops={"aten.mul.Tensor"}, min_block_size=1).until("partition")
    partitioned = compile.without("improve")(model, args=(torch.ones(2),) * 3)
    assert [(s.kind, len(s.nodes)) for s in partitioned.segments] == [("engine", 2), ("torch", 1), ("engine", 2)]


@pytest.mark.parametrize("seed", range(3))
def test_ports_have_ranges(seed: int) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            """[N, 3] -> [N, 3]"""
            return (x + x) * 2 + x

    shapes = ({0: torch.export.Dim("n", min=1, max=6)},)
    compile = pipeline.default(torch_executed_ops={"aten.mul.Tensor"}, min_block_size=1).until("partition")
    first, _, last = compile(Twice().eval(), args=(torch.ones(seed + 2, 3),), dynamic_shapes=shapes).segments
    for port in (*first.inputs, *first.outputs, *last.inputs, *last.outputs):
        assert (port.ranges[0].min, port.ranges[0].max) == (1, 6)
        assert port.ranges[0].opt == seed + 2
        assert port.shape[1] == 3


def test_no_more_engines_than_asked_for() -> None:
    add, mul = False, True
    steps = [(add, 0, 1), (add, 3, 1), (add, 4, 3), (mul, 5, 2), (add, 6, 0), (add, 7, 1), (add, 8, 0)]
    steps += [(mul, 9, 1), (add, 10, 0), (add, 11, 1), (add, 12, 11), (add, 13, 12)]
    model, x = Program(steps).eval(), tuple(torch.randn(2) for _ in range(3))
    options = {"torch_executed_ops": {"aten.mul.Tensor"}, "min_block_size": 1}
    assert len(pipeline.default(**options).until("partition")(model, args=x).engine_segments) == 3
    compiled = pipeline.default(**options, max_engines=2)(model, args=x)
    assert len(compiled.engines) == 2
    reasons = [f.reason for f in compiled.coverage.fallback]
    assert "it is in the smallest of 3 engines, max_engines is 2" in reasons
    torch.testing.assert_close(compiled.module(executor="reference")(*x), model(*x))
