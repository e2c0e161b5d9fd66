"""No stage recurses over the nodes of a graph: chains of operators are longer than Python's stack is deep."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import pipeline
from pipeline.aten.graphs import Steps, evaluate_recursively
from pipeline.stages.unbuilt import unbuilt

LONG = 160
"""Operators of each chain."""
FRAMES = 150
"""Frames that a stage may use: fewer than a chain has operators."""


class Chains(torch.nn.Module):
    """A chain of operators before each thing that stages look for along the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(1, 6, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores, mask, moved, rows, counted = x @ x.mT, torch.zeros(4, 4).to(x), x.to(torch.float8_e4m3fn), at, at
        given = x
        for _ in range(LONG):
            given = torch.relu(given)  # a linear layer asks whether its input is constant
            scores = scores * 0.5  # a softmax looks for the product
            mask = torch.where(x > 0, mask, -1.0)  # an attention asks for the bounds of its mask
            moved = moved.mT  # a cast to E4M3 looks for casts back
            rows = rows.to(torch.int32).to(torch.int64)  # a write to a cache looks for its first position
            counted = counted + 1  # an attention asks whether its mask is causal
        attended = torch.softmax(scores, -1) @ x
        masked = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)
        causal = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=at <= counted[:, None])
        self.cache.index_copy_(1, rows, x)
        return self.linear(given), attended, masked, causal, moved.to(x.dtype), self.cache.sum()


@contextmanager
def shallow(frames: int) -> Iterator[None]:
    """Python's stack has room for so many frames more."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def test_chains_are_longer_than_the_stack_is_deep() -> None:
    x, at = torch.rand(1, 4, 4).half(), torch.arange(4)
    program = pipeline.capture(Chains().eval().half(), (x, at))
    with shallow(FRAMES):
        compiled = pipeline.default().replace("build", unbuilt)(program)
        assert str(compiled.coverage)
    inside = {node for segment in compiled.partitioned.engine_segments for node in segment.nodes}
    assert len(inside) > 5 * LONG


def test_a_rule_is_asked_once_for_the_same_arguments() -> None:
    asked = list[int]()

    def fibonacci(n: int) -> Steps[int]:
        asked.append(n)
        return n if n < 2 else (yield fibonacci, n - 1) + (yield fibonacci, n - 2)

    with shallow(60):
        assert evaluate_recursively(fibonacci, 100) == 354224848179261915075
    assert sorted(asked) == list(range(101))
