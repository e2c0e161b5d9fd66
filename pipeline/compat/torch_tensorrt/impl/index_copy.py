"""The building block that writes rows of a tensor by index (``index_copy``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, op_block

index_copy_fallback = op_block(aten.index_copy.default, "input", "dim", "index", "src")
index_copy_kv = index_copy_fallback
