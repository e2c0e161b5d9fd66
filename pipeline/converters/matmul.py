"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import matmul as _matmul

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.linear.default, supports_dynamic_shapes=True)
def linear(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    return _matmul.linear(ctx, name, *bind(target, args, kwargs))
