"""`Quirk`: a row of the table of kernel faults; and the input and output of an analysis for one: a segment, and
places in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

import torch
from attrs import define, field, frozen

from pipeline.network.marks import Form
from pipeline.quirks.plan_detectors import Plan, Sources
from pipeline.shapes.environment import Symbols

Place: TypeAlias = tuple[Form, str, tuple[str, ...]]
"""A mark without its fault's id: its form, the node, and names of inputs or sizes."""


@define(slots=False, eq=False)
class Part:
    """The nodes of a segment, in order; the names of those that are its outputs, and of the placeholders that are its
    constants; and the ranges of its symbols."""

    nodes: tuple[torch.fx.Node, ...]
    constants: frozenset[str]
    outputs: frozenset[str]
    ranges: Symbols

    @cached_property
    def inside(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(node.name for node in self.nodes)


Version: TypeAlias = tuple[int, ...]
Analysis: TypeAlias = Callable[[Part], Iterable[Place]]
"""Finds the places in a segment where a fault is avoided."""
Detector: TypeAlias = Callable[[Plan, Sources], Iterable[str | tuple[str, str]]]
"""Finds a fault's kernels in a plan: their names, or (name, result)."""


@frozen
class Quirk:
    """A kernel fault.

    id: its name.
    fault: what TensorRT does wrong, and the size of the error.
    since, before: the versions of TensorRT-RTX that have it: from `since` to before `before`; None is unbounded.
    flavours: the libraries in which it is avoided. All faults were measured with TensorRT-RTX.
    gpus: the GPUs on which it was measured.
    capabilities: the compute capabilities of the GPUs that have it; empty for all.
    trigger: what in a program triggers it.
    instead: what the compiler does instead, and which part of it.
    places: finds the places to mark in a segment; None if no mark is needed.
    seen: how it shows in a plan or when an engine is loaded; empty if it does not.
    detector: finds its kernels in a plan, if they show there.
    finding: describes such a kernel in a warning; {} is a result of it.
    dtype: only networks with tensors of this dtype have it.
    test: the test that fails if it is not avoided.
    evidence: the note with the measurements.
    """

    id: str
    fault: str
    gpus: str
    trigger: str
    instead: str
    test: str
    evidence: str = "docs/notes/2026-11-29-kernel-faults.md"
    capabilities: tuple[str, ...] = ()
    since: Version | None = None
    before: Version | None = None
    places: Analysis | None = field(default=None, repr=False)
    seen: str = ""
    detector: Detector | None = field(default=None, repr=False)
    finding: str = ""
    dtype: str = ""
    flavours: tuple[str, ...] = ("tensorrt_rtx",)

    @property
    def versions(self) -> str:
        """The versions as text: "1.6 and newer"."""
        first, end = (v and ".".join(map(str, v)) for v in (self.since, self.before))
        if first and end:
            return f"{first} to before {end}"
        return f"{first} and newer" if first else f"before {end}" if end else "all"

    def is_in(self, flavour: str, version: Version) -> bool:
        if flavour not in self.flavours:
            return False
        is_new_enough = self.since is None or version >= self.since
        return is_new_enough and (self.before is None or version < self.before)
