"""Language models of transformers that generate: their own ``generate`` over engines of ours."""

from __future__ import annotations

from pipeline.compat.transformers.generation import CompiledGeneration, compile_for_generation

__all__ = ["CompiledGeneration", "compile_for_generation"]
