"""Add collectives: layers that exchange tensors with the other ranks of the engine's communicator."""

from __future__ import annotations

from pipeline.impl.base import ITensor
from pipeline.impl.block_decorators import block
from pipeline.network.net import Net
from pipeline.trt import trt


@block
def collective(net: Net, x: ITensor, operation: str, reduction: str, ranks: int) -> ITensor:
    """Return the result of a `CollectiveOperation` and a `ReduceOperation`, given by name, over all ranks.

    The layer names no ranks: an engine gets the communicator of one process group, so that all ranks have equal plans.
    """
    kinds = trt.CollectiveOperation.__members__[operation], trt.ReduceOperation.__members__[reduction]
    layer = net.add("dist_collective", x, *kinds, -1, None)
    layer.metadata, layer.num_ranks = f"{operation} {reduction}", ranks
    return layer.get_output(0)
