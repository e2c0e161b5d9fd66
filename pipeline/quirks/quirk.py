"""`Quirk`: a row of the table of kernel bugs.
Its analysis reads the nodes of a segment (`SegmentNodes`) and yields those that need a workaround (`AffectedNode`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

import torch
from attrs import define, field, frozen

from pipeline.network.marks import MarkKind
from pipeline.quirks.plan_detectors import KernelOffsets, Plan
from pipeline.shapes.environment import Symbols

AffectedNode: TypeAlias = tuple[MarkKind, str, tuple[str, ...]]
"""A node that needs a workaround: the kind of its mark, its name, and the names of inputs or sizes."""


@define(slots=False, eq=False)
class SegmentNodes:
    """The nodes of a segment in order, the names of its constants and outputs, and the ranges of its dynamic sizes."""

    nodes: tuple[torch.fx.Node, ...]
    constants: frozenset[str]
    outputs: frozenset[str]
    ranges: Symbols

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the segment's nodes."""
        return frozenset(node.name for node in self.nodes)


Version: TypeAlias = tuple[int, ...]
Analysis: TypeAlias = Callable[[SegmentNodes], Iterable[AffectedNode]]
"""A function that finds the nodes of a segment that need a workaround for one kernel bug."""
Detector: TypeAlias = Callable[[Plan, KernelOffsets], Iterable[str | tuple[str, str]]]
"""A function that finds the kernels with one bug in a plan: their names, or (name, result)."""


@frozen
class Quirk:
    """A bug in TensorRT's kernels, and how the compiler avoids it.

    id: the name of the bug, such as `padded-zeros`.
    fault: what TensorRT does wrong, and the size of the error.
    since, before: the versions of TensorRT-RTX with the bug, from `since` until (excluding) `before`; None: no limit.
    flavours: the libraries for which the compiler avoids the bug. All bugs were measured with TensorRT-RTX.
    gpus: the GPUs on which the bug was measured.
    capabilities: the compute capabilities of the GPUs with the bug; empty for all.
    trigger: what in a program triggers the bug.
    instead: what the compiler does instead, and in which part.
    analysis: finds the nodes that must be converted in another way (see `Mark`); None if there are no such nodes.
    seen: how the bug shows in a plan or when an engine is loaded; empty if it does not show.
    detector: finds the kernels with the bug in a plan; None if the plan does not show them.
    finding: the text of a warning of such a kernel, in which the name of the kernel's result replaces {}.
    dtype: if not empty, only networks with tensors of this dtype have the bug.
    test: the test that fails if the bug is not avoided.
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
    analysis: Analysis | None = field(default=None, repr=False)
    seen: str = ""
    detector: Detector | None = field(default=None, repr=False)
    finding: str = ""
    dtype: str = ""
    flavours: tuple[str, ...] = ("tensorrt_rtx",)

    @property
    def versions(self) -> str:
        """The versions with the bug as text: "1.6 and newer"."""
        first, end = (v and ".".join(map(str, v)) for v in (self.since, self.before))
        if first and end:
            return f"{first} to before {end}"
        return f"{first} and newer" if first else f"before {end}" if end else "all"

    def affects(self, flavour: str, version: Version) -> bool:
        """Return whether to avoid the bug in a library (``flavour``: TensorRT or TensorRT-RTX) of this version."""
        if flavour not in self.flavours:
            return False
        is_new_enough = self.since is None or version >= self.since
        return is_new_enough and (self.before is None or version < self.before)
