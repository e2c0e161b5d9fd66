"""Determine which kernel bugs to avoid, and mark the nodes of a segment that need a workaround.
The bugs are those of the installed TensorRT, unless an `Experiment` changes that."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Final

import torch

from pipeline.network.marks import Mark
from pipeline.quirks.quirk import SegmentNodes
from pipeline.quirks.table import QUIRKS
from pipeline.shapes.environment import Symbols
from pipeline.trt import CAPABILITIES, has_gpu

_BY_ID: Final = {quirk.id: quirk for quirk in QUIRKS}
_assumed: Final = ContextVar("assumed faults", default=frozenset[str]())
_ignored: Final = ContextVar("ignored faults", default=frozenset[str]())


class Experiment(ContextDecorator):
    """A context manager or decorator for compilations that ignore some kernel bugs (`without`), or avoid bugs that the
    installed TensorRT does not have (`assume`)."""

    def __init__(self, variable: ContextVar[frozenset[str]], ids: frozenset[str]) -> None:
        self._variable, self._ids = variable, ids
        self._tokens: list[Token[frozenset[str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(self._variable.set(self._variable.get() | self._ids))

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())


def is_avoided(bug_id: str) -> bool:
    """Return whether to avoid a kernel bug: the installed TensorRT has the bug, and no `Experiment` ignores it."""
    return has_bug(bug_id) and bug_id not in _ignored.get()


def has_bug(bug_id: str) -> bool:
    """Return whether the installed TensorRT has a kernel bug, and the bug affects the current GPU."""
    quirk = _BY_ID[bug_id]
    here = bug_id in _assumed.get() or quirk.affects(CAPABILITIES.flavour, CAPABILITIES.version_tuple)
    return here and (not quirk.capabilities or current_compute_capability() in quirk.capabilities)


def current_compute_capability() -> str:
    """Return the compute capability of the current GPU ("9.0"); empty if there is no GPU."""
    return ".".join(map(str, torch.cuda.get_device_capability())) if has_gpu() else ""


def without(*ids: str) -> Experiment:
    """Compile without avoiding these bugs: ``with quirks.without("padded-zeros"): compile(model, args)``.

    The stage `build` still warns of kernels that have such a bug.

    Raises:
        ValueError: an id is not in the table of kernel bugs.
    """
    return Experiment(_ignored, _check_ids(ids))


def assume(*ids: str) -> Experiment:
    """Compile as if the installed TensorRT had these bugs: ``with quirks.assume("padded-zeros"): …``.

    Raises:
        ValueError: an id is not in the table of kernel bugs.
    """
    return Experiment(_assumed, _check_ids(ids))


def _check_ids(ids: tuple[str, ...]) -> frozenset[str]:
    """Return the ids of kernel bugs as a set; raise `ValueError` if the table of bugs lacks one."""
    if unknown := sorted(set(ids) - _BY_ID.keys()):
        raise ValueError(f"unknown ids of kernel bugs: {', '.join(unknown)}; known ids: {', '.join(_BY_ID)}")
    return frozenset(ids)


def find_marks(
    nodes: Iterable[torch.fx.Node], ranges: Symbols, constants: Iterable[str] = (), outputs: Iterable[str] = ()
) -> tuple[Mark, ...]:
    """Return a `Mark` for each change to a network that avoids a kernel bug: which node changes, and how. ``ranges``:
    of the dynamic sizes. ``constants``, ``outputs``: the names of the segment's constants and outputs."""
    segment = SegmentNodes(tuple(nodes), frozenset(constants), frozenset(outputs), ranges)
    return tuple(
        Mark(quirk.id, *affected)
        for quirk in QUIRKS
        if quirk.analysis is not None and is_avoided(quirk.id)
        for affected in quirk.analysis(segment)
    )
