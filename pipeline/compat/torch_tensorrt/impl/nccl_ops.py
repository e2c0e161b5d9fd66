"""Collectives, refused: they run between engines."""

from __future__ import annotations

from typing import Final

from pipeline.compat.torch_tensorrt.blocks import Block, refused

WHY: Final = "collectives run between engines, in torch.distributed's process groups"
INSTEAD: Final = "leave the collective to PyTorch: an operator without a converter runs there"


def _collective(name: str) -> Block:
    return refused(f"impl.nccl_ops.{name}", WHY, INSTEAD)


nccl_gather, nccl_reduce_scatter = _collective("nccl_gather"), _collective("nccl_reduce_scatter")
nccl_all_reduce = _collective("nccl_all_reduce")
nccl_gather_native, nccl_reduce_scatter_native = (
    _collective("nccl_gather_native"),
    _collective("nccl_reduce_scatter_native"),
)
nccl_all_reduce_native = _collective("nccl_all_reduce_native")
