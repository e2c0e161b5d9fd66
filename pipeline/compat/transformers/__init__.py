"""Compile language models of transformers: their own ``generate`` runs TensorRT engines."""

from __future__ import annotations

from pipeline.errors import require_package

require_package("transformers", "transformers")

from pipeline.compat.transformers.compiled_model import CompiledGeneration
from pipeline.compat.transformers.generation import compile_for_generation

__all__ = ["CompiledGeneration", "compile_for_generation"]
