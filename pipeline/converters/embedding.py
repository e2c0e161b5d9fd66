"""Rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.converters.arguments import bind
from pipeline.converters.context import ConversionContext
from pipeline.converters.declare import dynamo_tensorrt_converter
from pipeline.impl import embedding as _embedding

aten = torch.ops.aten


@dynamo_tensorrt_converter(aten.embedding.default, supports_dynamic_shapes=True)
def embedding(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False)
    -> Tensor"""
    weight, indices, *_ = bind(target, args, kwargs)
    return _embedding.embedding(ctx, name, weight, indices)
