"""``Sharding``: the rank that a program is for, the groups of ranks that its collectives join, and its DTensors."""

from __future__ import annotations

from attrs import field, frozen

from pipeline.frozen import FrozenDict


@frozen
class Layout:
    """How a DTensor lies on a mesh of ranks.

    ``ranks`` are the mesh's, in order, in the shape ``mesh``; ``names`` are those of its dims, or none. ``placements``
    has for each dim of the mesh the dim that is sharded over it, or None: all ranks have the whole.
    """

    device: str
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    placements: tuple[int | None, ...]
    shape: tuple[int, ...] = ()


@frozen
class Sharding:
    """The part of a sharded model that a program is.

    ``groups`` has the ranks of each group of its collectives, by the name that its graph has. ``inputs`` and
    ``outputs`` are the layouts of those that are DTensors, by position.
    """

    rank: int
    ranks: int
    groups: FrozenDict[str, tuple[int, ...]] = field(factory=FrozenDict)
    inputs: tuple[tuple[int, Layout], ...] = ()
    outputs: tuple[tuple[int, Layout], ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}"
