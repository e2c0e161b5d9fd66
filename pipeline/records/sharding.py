"""``Sharding``: the rank that a program runs on, the process groups of its collectives, and its DTensors."""

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
    """Which part of a sharded model a program is: its rank, the ranks of each process group by the name in its graph,
    and the layouts of the inputs and outputs that are DTensors, by index."""

    rank: int
    ranks: int
    groups: FrozenDict[str, tuple[int, ...]] = field(factory=FrozenDict)
    inputs: tuple[tuple[int, Layout], ...] = ()
    outputs: tuple[tuple[int, Layout], ...] = ()

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}"


@frozen
class Alone(Sharding):
    """The sharding of a program that is measured without other ranks: its collectives use only this rank's data."""
