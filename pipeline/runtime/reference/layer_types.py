"""The types of arguments and results of the functions for layer kinds."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from pipeline.errors import ExecutionError
from pipeline.network.description import Layer

Inputs: TypeAlias = Sequence[torch.Tensor | None]
Roles: TypeAlias = Mapping[str, torch.Tensor]
Outputs: TypeAlias = tuple[torch.Tensor, ...]
Kind: TypeAlias = Callable[[Layer, Inputs, Roles], Outputs]


class LayerError(ExecutionError):
    """A layer breaks a rule of TensorRT, or the reference does not model it; the message names the layer."""

    advice = "if the original model takes these inputs, name the layer's operator in torch_executed_ops"
    named = False
