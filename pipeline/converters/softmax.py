"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import base
from pipeline.impl.softmax import log_softmax, softmax

aten = torch.ops.aten

SOFTMAX = {
    aten._softmax.default: softmax,
    aten.softmax.int: softmax,
    aten._log_softmax.default: log_softmax,
    aten.log_softmax.int: log_softmax,
}


def _softmax(target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
        """softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor;
        _softmax(Tensor self, int dim, bool half_to_float) -> Tensor"""
        x, dim, option = bind(target, args, kwargs)
        dtype = {True: torch.float32, False: None}.get(option, option)
        if dtype == torch.float64:
            dtype = torch.float32
        return function(ctx, name, base.tensor(ctx, name, x, dtype), dim)

    return convert


CONVERTERS = [_softmax(target, function) for target, function in SOFTMAX.items()]
