"""The types of arguments and results of the functions for layer kinds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from pipeline.errors import ExecutionError
from pipeline.network.description import Layer

Maybe: TypeAlias = torch.Tensor | None
Outputs: TypeAlias = tuple[torch.Tensor, ...]
Kind: TypeAlias = Callable[[Layer, Sequence[Maybe], Mapping[str, torch.Tensor]], Outputs]
"""Returns the outputs of a layer for its inputs and its weights by role."""


class LayerError(ExecutionError):
    """A layer breaks a rule of TensorRT, or the reference does not model it; the message names the layer."""

    advice = "if the original model takes these inputs, name the layer's operator in torch_executed_ops"
    named = False
