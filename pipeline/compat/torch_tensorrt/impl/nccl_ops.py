"""Refuse Torch-TensorRT's building blocks for NCCL: this package runs collectives in PyTorch, between engines."""

from pipeline.aten.types import Function
from pipeline.compat.torch_tensorrt.blocks import unsupported


def _raising_block(block_name: str) -> Function:
    """Create a function of this name in place of Torch-TensorRT's; it raises a `BlockError` that says what to do."""
    why = "collectives run between engines, in torch.distributed's process groups"
    instead = "leave the collective to PyTorch: an operator without a converter runs there"
    return unsupported(f"impl.nccl_ops.{block_name}", why, instead)


nccl_gather, nccl_gather_native = _raising_block("nccl_gather"), _raising_block("nccl_gather_native")
nccl_all_reduce, nccl_all_reduce_native = _raising_block("nccl_all_reduce"), _raising_block("nccl_all_reduce_native")
nccl_reduce_scatter = _raising_block("nccl_reduce_scatter")
nccl_reduce_scatter_native = _raising_block("nccl_reduce_scatter_native")
