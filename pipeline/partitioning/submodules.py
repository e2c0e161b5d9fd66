"""Whole submodules: which submodule an operator belongs to, and the runs of operators that each is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby

from attrs import frozen

from pipeline.naming import module_path
from pipeline.partitioning.flow import Flow, Node


@frozen
class Submodules:
    """The submodules that stay whole: those ``depth`` names deep (``encoder.layer.0`` is 3), or less deep if they have
    no such submodule; or those whose path matches ``pattern`` (``encoder.layer.?``), the outermost first."""

    depth: int = 1
    pattern: str | None = None

    def of(self, node: Node) -> str | None:
        """The path of the submodule that a node belongs to; None if it belongs to none."""
        names = module_path(node).split(".")
        prefixes = [".".join(names[: i + 1]) for i in range(len(names))]
        if self.pattern is None:
            return prefixes[min(self.depth, len(names)) - 1] or None
        return next((p for p in prefixes if p and fnmatchcase(p, self.pattern)), None)


def runs(keys: Sequence[str | None]) -> Iterator[tuple[int, ...]]:
    """Operators of one submodule with no other between them."""
    for key, inside in groupby(range(len(keys)), keys.__getitem__):
        if key is not None:
            yield tuple(inside)


def whole(flow: Flow, keys: Sequence[str | None], refused: Mapping[int, str]) -> dict[int, str]:
    """What has to run in PyTorch because something of its submodule does."""
    culprits = {keys[i]: i for i in sorted(refused, reverse=True) if keys[i] is not None}
    return {
        i: f"{key} stays whole, and {flow.nodes[culprits[key]].name} runs in PyTorch"
        for i, key in enumerate(keys)
        if key in culprits and i not in refused
    }
