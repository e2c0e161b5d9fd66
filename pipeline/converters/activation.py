"""Activation functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.converters.results import as_result, declared_rows
from pipeline.impl import activation, elementwise
from pipeline.network.context import ConversionContext

aten = torch.ops.aten

TABLE: Mapping[Any, tuple[Any, ...]] = {
    aten.sigmoid.default: (activation.tailed, "SIGMOID"),
    aten.tanh.default: (activation.smooth, "TANH"),
    aten.relu.default: (activation.relu,),
    aten.relu6.default: (lambda ctx, name, x: elementwise.clamp(ctx, name, x, 0, 6),),
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

CONVERTERS = declared_rows(TABLE)


@dynamo_tensorrt_converter(aten.log_sigmoid_forward.default, supports_dynamic_shapes=True)
def log_sigmoid_forward(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer). The buffer is for the gradient."""
    return as_result(ctx, name, activation.log_sigmoid(ctx, name, args[0])), None
