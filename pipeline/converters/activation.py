"""Convert activation functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pipeline.converters.binding import converts
from pipeline.converters.result_types import as_result, by_row
from pipeline.impl import activation, elementwise
from pipeline.impl.base import ITensor, Value
from pipeline.network.net import Net

aten = torch.ops.aten

TABLE: Mapping[Any, tuple[Any, ...]] = {
    aten.sigmoid.default: (activation.tailed, "SIGMOID"),
    aten.tanh.default: (activation.tanh,),
    aten.relu.default: (activation.relu,),
    aten.relu6.default: (lambda net, x: elementwise.clamp(net, x, 0, 6),),
    aten.hardtanh.default: (elementwise.clamp,),
    aten.gelu.default: (activation.gelu,),
    aten.silu.default: (activation.silu,),
    aten.leaky_relu.default: (activation.leaky_relu,),
    aten._prelu_kernel.default: (activation.prelu,),
    aten.elu.default: (activation.elu,),
    aten.hardsigmoid.default: (activation.hard_sigmoid,),
    aten.hardswish.default: (activation.hard_swish,),
    aten.softplus.default: (activation.softplus,),
    aten.mish.default: (activation.mish,),
    aten.softshrink.default: (activation.soft_shrink,),
}


@converts(TABLE)
def activated(net: Net, row: tuple[Any, ...], *operands: Value) -> ITensor:
    """Call an activation function with the operator's arguments."""
    return by_row(net, row, operands)


@converts(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(net: Net, input: Value) -> tuple[ITensor | None, ...]:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer). The buffer is for the gradient."""
    return as_result(net, activation.log_sigmoid(net, input)), None
