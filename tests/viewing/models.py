"""Programs to look at: small ones, one with ten fallbacks, one of five thousand nodes; compiled once a process."""

from __future__ import annotations

from functools import cache

import torch

import pipeline
from examples.models import Case, small
from pipeline import Compiled
from pipeline.viewing.records import ModuleView, NodeView, ProgramView, SegmentView, Value


class Fallbacks(torch.nn.Module):
    """Ten operators that TensorRT does not run, between others that it does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
            x = x + torch.linalg.svdvals(x).sum()
        return x


@cache
def fallbacks() -> Compiled:
    """A program with ten operators in PyTorch, for 1 to 9 rows."""
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(9, 8))
    compiled: Compiled = pipeline.default(min_block_size=1)(Fallbacks().eval(), args=(rows,))
    return compiled


@cache
def architecture(name: str) -> Compiled:
    """A small model of a public architecture."""
    case: Case = small(name)
    compiled: Compiled = pipeline.default()(case.model, kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    return compiled


def large(count: int = 5000, width: int = 10) -> ProgramView:
    """A view of many nodes, in modules of modules: each reads the one before it, and one a module ago."""
    nodes = [NodeView("x", "input", "placeholder", values=(Value("float32", ("4", "8"), ((4, 4, 4), (8, 8, 8)), 128),))]
    modules = {"": "tests.Large"}
    for i in range(count):
        block, layer = divmod(i // width, width)
        path = f"blocks.{block}.layers.{layer}"
        modules |= {f"blocks.{block}": "tests.Block", path: "tests.Layer"}
        inputs = (nodes[-1].name, nodes[max(0, i - width)].name) if i % 7 == 0 and i else (nodes[-1].name,)
        outside = i % 50 == 49
        nodes.append(
            NodeView(
                f"node_{i}",
                "operator",
                "aten.relu.default",
                "pytorch" if outside else "tensorrt",
                "torch_1" if outside else "engine_0",
                path,
                f"model.py:{i}, return x.relu()",
                inputs=tuple(dict.fromkeys(inputs)),
                values=nodes[0].values,
                reason="it is kept in PyTorch" if outside else "",
            )
        )
    segments = (SegmentView("engine_0", "tensorrt", count), SegmentView("torch_1", "pytorch", count // 50))
    return ProgramView("Large", tuple(nodes), tuple(ModuleView(*row) for row in modules.items()), segments)
