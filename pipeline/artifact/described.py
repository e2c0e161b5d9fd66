"""Read a saved program without running any of it, for reports and comparisons.

None of its operators, recipes or graphs runs, not even on fake tensors. Its tensors have shapes and no values.
Operators that this process lacks are names. Only ranges of sizes are computed, at a bounded cost.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from attrs import evolve

from pipeline.artifact import op_names
from pipeline.artifact.graphs import SavedGraph
from pipeline.artifact.hashing import THREADS
from pipeline.artifact.load import Loader
from pipeline.artifact.manifest_file import opened
from pipeline.artifact.tensors import SavedTensor, Source
from pipeline.compiled import Compiled
from pipeline.program import Program


def described(path: Path) -> Compiled:
    """Return a saved program that prints and does not run. Every byte is checked against its digest; errors are those
    of `load`."""
    with opened(path) as file, ThreadPoolExecutor(THREADS) as threads:
        return _Describer(file, path, threads, op_names.ANY).compiled()


class _Describer(Loader):
    """A loader whose program has no tensors and calls nothing."""

    def tensors(self) -> Callable[[SavedTensor], torch.Tensor]:
        for each in self.verified.values():
            each.result()
        self.missing = f"{self.path} was described, not loaded"
        return Source()

    def check_recipes(self) -> None:
        """Evaluate nothing."""

    def decomposed(self, program: Program) -> Program | None:
        return None

    def module(self, graph: SavedGraph) -> torch.fx.GraphModule:
        module = super().module(_without_calls(graph))
        for node, row in zip(module.graph.nodes, graph.nodes, strict=True):
            if row.calls and row.op == "call_function":
                node.target = op_names.known(row.target) or node.target
        return module


def _without_calls(graph: SavedGraph) -> SavedGraph:
    inner = tuple((path, _without_calls(each)) for path, each in graph.graphs)
    return evolve(graph, nodes=tuple(evolve(row, calls=False) for row in graph.nodes), graphs=inner)
