"""What to use in place of the methods of ``nn.Module`` that a compiled program does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CALL = "it is for inference, and is called as it is: compiled(x)"
_MOVE = (
    "engines run on the current GPU and take inputs from any device: compiled.module() is an nn.Module there, "
    'compiled.module("reference") one on the CPU'
)
_CAST = 'dtypes are fixed when compiling: compile the model in others, or with precision="float16"'
_WEIGHTS = (
    "compiled.program.parameters has the weights, compiled.module().state_dict() the buffers, and "
    "pipeline.refit_module_weights replaces weights"
)
_GENERATE = "pipeline.compat.transformers.compile_for_generation(model, …) returns an object with generate"

INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("eval", "train", "forward", "requires_grad_", "zero_grad"), _CALL),
    **dict.fromkeys(("to", "cuda", "cpu", "device"), _MOVE),
    **dict.fromkeys(("half", "float", "double", "bfloat16", "type", "dtype"), _CAST),
    **dict.fromkeys(("parameters", "named_parameters", "buffers", "state_dict", "load_state_dict"), _WEIGHTS),
    "generate": _GENERATE,
}
"""Advice by the method's name."""
