"""``Sharding``: the rank that a program is for, the groups of ranks that its collectives join, and its DTensors."""

from __future__ import annotations

from attrs import field, frozen

from pipeline.frozen import FrozenDict


@frozen
class Layout:
    """The layout of a DTensor on a mesh of ranks.

    ``ranks``: the mesh's ranks, in order; ``mesh``: its shape; ``names``: names of its dims, if any. ``placements``:
    for each dim of the mesh the dim of the tensor that is sharded over it, or None for a replicated tensor.
    """

    device: str
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    placements: tuple[int | None, ...]
    shape: tuple[int, ...] = ()


@frozen
class Sharding:
    """The part of a sharded model that a program is: the ranks of each group of its collectives, by the name that its
    graph has, and the layouts of inputs and outputs that are DTensors, by position."""

    rank: int
    ranks: int
    groups: FrozenDict[str, tuple[int, ...]] = field(factory=FrozenDict)
    inputs: tuple[tuple[int, Layout], ...] = ()
    outputs: tuple[tuple[int, Layout], ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}"


@frozen
class Alone(Sharding):
    """The part of a rank that is measured without the others: its collectives return what it has itself."""
