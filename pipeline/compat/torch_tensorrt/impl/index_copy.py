"""Rows written by index."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import of_one
from pipeline.compat.torch_tensorrt.calls import aten

index_copy_fallback = of_one(aten.index_copy.default, "input", "dim", "index", "src")
index_copy_kv = index_copy_fallback
