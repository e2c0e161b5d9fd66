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
    """A network does something that TensorRT does not allow, or that the reference does not model; the message names
    the layer."""

    advice = "call the model with the same inputs; what PyTorch takes runs with torch_executed_ops naming its operator"
    named = False
