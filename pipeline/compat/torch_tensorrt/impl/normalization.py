"""Normalization, softmax and distances."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block, unless
from pipeline.compat.torch_tensorrt.calls import Argument, Expression, call

aten = torch.ops.aten


@block
def batch_norm(
    input: Argument,
    weight: Argument,
    bias: Argument,
    running_mean: Argument,
    running_var: Argument,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
    return_mean_rstd: bool = False,
) -> Expression:
    """aten.batch_norm.default with its running statistics -> tensor, or [tensor, None, None]"""
    unless(
        not training,
        "impl.normalization.batch_norm",
        "an engine infers, and keeps no statistics",
        "pass training=False",
    )
    known = (weight, bias, running_mean, running_var)
    made = call(aten.batch_norm.default, input, *known, training, momentum, eps, cudnn_enabled)
    return [made, None, None] if return_mean_rstd else made


@block
def native_layer_norm(
    input: Argument, normalized_shape: Sequence[int], weight: Argument, bias: Argument, eps: float
) -> Expression:
    """aten.layer_norm.default -> [tensor, None, None]"""
    return [call(aten.layer_norm.default, input, list(normalized_shape), weight, bias, eps), None, None]


@block
def layer_norm(
    input: Argument,
    normalized_shape: Sequence[int],
    weight: Argument,
    bias: Argument,
    eps: float,
    cudnn_enable: bool = False,
) -> Expression:
    """aten.layer_norm.default"""
    return call(aten.layer_norm.default, input, list(normalized_shape), weight, bias, eps)


@block
def native_group_norm(
    input: Argument,
    weight: Argument,
    bias: Argument,
    N: Argument,  # noqa: N803 - ATen's names
    C: int,  # noqa: N803 - ATen's names
    HxW: Argument,  # noqa: N803 - ATen's names
    group: int,
    eps: float,
) -> Expression:
    """aten.group_norm.default -> [tensor, None, None]; the sizes are those of ``input``"""
    return [call(aten.group_norm.default, input, group, weight, bias, eps), None, None]


@block
def group_norm(
    input: Argument, num_groups: int, weight: Argument, bias: Argument, eps: float, cudnn_enabled: bool = False
) -> Expression:
    """aten.group_norm.default"""
    return call(aten.group_norm.default, input, num_groups, weight, bias, eps)


@block
def softmax(input: Argument, dim: int, half_to_float: bool = False) -> Expression:
    """aten.softmax.int; ``half_to_float`` returns float32"""
    return call(aten.softmax.int, input, dim, torch.float32 if half_to_float else None)


@block
def pdist(input: Argument, p: float = 2) -> Expression:
    """aten._pdist_forward.default"""
    return call(aten._pdist_forward.default, input, float(p))


@block
def cdist_forward(x1: Argument, x2: Argument, p: float, compute_mode: int | None = None) -> Expression:
    """aten._cdist_forward.default"""
    return call(aten._cdist_forward.default, x1, x2, float(p), compute_mode)
