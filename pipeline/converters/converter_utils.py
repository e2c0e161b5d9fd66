"""Provide the helper functions that Torch-TensorRT's converters import, under the same names.

A converter from Torch-TensorRT that adds layers to ``ctx.net`` needs only another import line (docs/migrating.md). In
new converters use ``pipeline.impl.base``; these helpers are aliases for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.aten.arguments import bind
from pipeline.converters.types import TRTTensor, enforce_tensor_types
from pipeline.impl import base
from pipeline.network.context import ConversionContext
from pipeline.recipes import qualified_name
from pipeline.trt import layer_kind, to_torch, trt

__all__ = [
    "TRTTensor",
    "args_bounds_check",
    "bind",
    "cast_trt_tensor",
    "enforce_tensor_types",
    "get_positive_dim",
    "get_trt_tensor",
    "set_layer_name",
]


def args_bounds_check(args: Sequence[Any], i: int, replacement: Any = None) -> Any:
    """Return the argument at index ``i``, or ``replacement`` if the argument is absent or None."""
    return args[i] if len(args) > i and args[i] is not None else replacement


def get_trt_tensor(
    ctx: ConversionContext, input_val: Any, name: str, dtype: Any = None, min_rank: int = 0
) -> trt.ITensor:
    """Convert any argument to an ``ITensor``: a layer's output is unchanged, a constant or a number becomes a constant
    layer, a size known at run time an int64 tensor.

    Args:
        ctx: the conversion.
        input_val: an ``ITensor``, ``torch.Tensor``, ``np.ndarray``, number or symbolic size.
        name: the name of new layers.
        dtype: a dtype of torch, TensorRT or numpy to cast to; None for no cast (numbers: int64 or float32).
        min_rank: the least rank of the result; leading dims of size 1 are added.
    """
    if isinstance(dtype, trt.DataType):
        dtype = to_torch(dtype)
    elif dtype is not None and not isinstance(dtype, torch.dtype):
        dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    return base.tensor(ctx, name, input_val, dtype, rank=min_rank)


def cast_trt_tensor(ctx: ConversionContext, input_val: Any, dtype: Any, name: str, *_: Any) -> trt.ITensor:
    """Convert an argument to an ``ITensor``, and cast it to a dtype of torch, TensorRT or numpy if necessary."""
    return get_trt_tensor(ctx, input_val, name, dtype)


def set_layer_name(layer: trt.ILayer, target: Any, name: str, *_: Any) -> None:
    """Name a layer ``[KIND]-[target]-[name]``."""
    layer.name = f"[{layer_kind(layer)}]-[{target if isinstance(target, str) else qualified_name(target)}]-[{name}]"


def get_positive_dim(dim: int | Sequence[int], dim_size: int) -> int | tuple[int, ...]:
    """Convert negative dims to the equivalent non-negative dims of a tensor of rank ``dim_size``."""
    return base.axis(dim, dim_size) if isinstance(dim, int) else tuple(base.axis(d, dim_size) for d in dim)
