"""Rows written by index."""

from pipeline.compat.torch_tensorrt.blocks import aten, of_one

index_copy_fallback = of_one(aten.index_copy.default, "input", "dim", "index", "src")
index_copy_kv = index_copy_fallback
