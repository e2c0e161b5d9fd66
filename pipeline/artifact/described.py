"""Describe a kept program by the records of its file alone: for what draws and compares programs.

No operator, recipe or graph of it runs, on fake tensors either, and its tensors are not mapped: they have shapes and no
values. Operators that this process does not have stay names. Of sizes the ranges are computed, whose cost is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from attrs import evolve

from pipeline.artifact import op_names
from pipeline.artifact.graphs import KeptGraph, KeptNode
from pipeline.artifact.hashing import THREADS
from pipeline.artifact.load import Loader
from pipeline.artifact.manifest import KeptSegment
from pipeline.artifact.manifest_file import opened
from pipeline.artifact.tensors import Kept, Source
from pipeline.compiled import Compiled
from pipeline.program import Program

Graph = TypeVar("Graph", KeptGraph, KeptSegment)


def described(path: Path) -> Compiled:
    """Return a kept program that prints, and does not run. Every byte is checked against its digest.

    Raises:
        FileNotFoundError: there is no such file.
        ArtifactError: it is not a kept program, was truncated or altered, or comes from a newer version.
    """
    with opened(path) as file, ThreadPoolExecutor(THREADS) as threads:
        return _Describer(file, path, threads, op_names.ANY).compiled()


class _Describer(Loader):
    """Makes a program that has no tensors, and calls nothing."""

    def tensors(self) -> Callable[[Kept], torch.Tensor]:
        for each in self.verified.values():
            each.result()
        self.missing = f"{self.path} was described, and not loaded"
        return Source()

    def check_recipes(self) -> None:
        """Evaluate nothing."""

    def decomposed(self, program: Program) -> Program | None:
        return None

    def module(self, rows: Sequence[KeptNode], segments: Sequence[KeptSegment]) -> torch.fx.GraphModule:
        made = super().module([_named(row) for row in rows], list(map(_of_names, segments)))
        for node, row in zip(made.graph.nodes, rows, strict=True):
            if row.calls and row.op == "call_function":
                node.target = op_names.known(row.target) or node.target
        return made


def _of_names(graph: Graph) -> Graph:
    """A graph whose nodes call nothing, with those inside it."""
    inner = tuple((path, _of_names(each)) for path, each in graph.graphs)
    return evolve(graph, nodes=tuple(map(_named, graph.nodes)), graphs=inner)


def _named(row: KeptNode) -> KeptNode:
    return evolve(row, calls=False)
