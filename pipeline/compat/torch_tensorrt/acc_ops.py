"""The operators of Torch-TensorRT's FX frontend (``acc_ops``): each name is the equivalent ATen operator.

``acc_ops.linear`` is ``torch.ops.aten.linear.default``. A converter reads its arguments by FX's argument names, such
as ``kwargs["input"]``; `named_arguments` provides these. This list of operators is complete: it will not grow.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from pipeline.aten.arguments import bind
from pipeline.aten.types import Argument, Operator, Target, aten
from pipeline.frozen import FrozenDict

_DEFAULTS: Final = """
    abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d any argmax argmin as_strided asin asinh
    atan atanh avg_pool1d avg_pool2d avg_pool3d batch_norm bitwise_not bmm cat ceil chunk clamp conv1d conv2d conv3d
    conv_transpose1d cos cosh cumsum elu embedding erf exp expand flip floor gather gelu group_norm hardsigmoid
    hardswish hardtanh index_select isinf layer_norm leaky_relu linear log logical_and logical_not logical_or
    logical_xor matmul max_pool1d max_pool2d max_pool3d maximum minimum neg pad permute prelu reciprocal relu reshape
    roll round selu sigmoid sign sin sinh softplus sqrt stack tan tanh tile topk trunc unsqueeze
"""
"""Names of FX operators whose ATen equivalent has the same name, and the overload ``default``."""

_OVERLOADS: Final = """
    add.Tensor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor conv_transpose2d.input conv_transpose3d.input
    dequantize.self div.Tensor eq.Tensor flatten.using_ints fmod.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor
    masked_fill.Scalar mean.dim mul.Tensor ne.Tensor pow.Tensor_Scalar prod.dim_int repeat_interleave.self_int
    softmax.int split.Tensor squeeze.dim sub.Tensor sum.dim_IntList transpose.int unbind.int where.self
"""
"""Names of FX operators whose ATen equivalent has the same name, but another overload than ``default``."""

OPERATORS: Final[FrozenDict[str, Operator]] = FrozenDict(
    {
        **{name: getattr(aten, name).default for name in _DEFAULTS.split()},
        **{name: getattr(getattr(aten, name), own) for name, own in (each.split(".") for each in _OVERLOADS.split())},
        "floor_div": aten.floor_divide.default,
        "logsoftmax": aten.log_softmax.int,
        "max_dim_reduce": aten.max.dim,
        "max_full_reduce": aten.max.default,
        "min_dim_reduce": aten.min.dim,
        "min_full_reduce": aten.min.default,
        "slice_tensor": aten.slice.Tensor,
        "to_dtype": aten.to.dtype,
    }
)
"""The equivalent ATen operator of each FX operator, by FX's name."""

FX_NAMES: Final[FrozenDict[Operator, FrozenDict[str, str]]] = FrozenDict(
    {
        aten.embedding.default: FrozenDict({"indices": "input"}),
        aten.expand.default: FrozenDict({"size": "sizes"}),
        aten.permute.default: FrozenDict({"dims": "permutation"}),
        aten.slice.Tensor: FrozenDict({"end": "stop"}),
        aten.where.self: FrozenDict({"self": "x", "other": "y"}),
    }
)
"""FX's names of an operator's arguments, where they differ from ATen's (and from ``input`` for ``self``)."""


def named_arguments(target: Target, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return a call's arguments and defaults by ``acc_ops`` names; if ``target`` has no schema, return ``kwargs``."""
    if not isinstance(target, torch._ops.OpOverload):
        return dict(kwargs)
    names = [argument.name for argument in target._schema.arguments]
    renamed = FX_NAMES.get(target, FrozenDict())
    fxs = {name: renamed.get(name, "input" if name == "self" else name) for name in names}
    given = {name: kwargs[key] for name, fx in fxs.items() for key in (fx, name) if key in kwargs}
    return dict(zip(fxs.values(), bind(target, args, given), strict=True))


def __getattr__(name: str) -> Operator:
    if name in OPERATORS:
        return OPERATORS[name]
    near = ", ".join(difflib.get_close_matches(name, OPERATORS, 3)) or "acc_ops.linear"
    raise AttributeError(
        f"acc_ops has no {name!r} (similar: {near}): declare the converter for an ATen operator, torch.ops.aten.…"
    )


def __dir__() -> list[str]:
    return sorted([*globals(), *OPERATORS])
