"""Rows written by index."""

from __future__ import annotations

import torch

from pipeline.compat.torch_tensorrt.blocks import of_one

index_copy_fallback = of_one(torch.ops.aten.index_copy.default, "input", "dim", "index", "src")
index_copy_kv = index_copy_fallback
