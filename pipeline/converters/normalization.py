"""Convert layer, group, instance, batch and RMS normalization."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pipeline.aten.types import Argument, aten
from pipeline.converters.binding import CompilationSettings, Rejection, argument, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl import normalization as impl
from pipeline.impl.base import ITensor, Net, Value

Opt: TypeAlias = torch.Tensor | None


def _statistics_if_read(net: Net, x: Any, axes: Sequence[int], eps: float, keepdim: bool) -> Any:
    """Return the mean and reciprocal standard deviation if a node reads these results; else None for both."""
    if all(u.target is operator.getitem and u.args[1] == 0 for u in net.node.users):
        return None, None
    dtype = base.network_dtype(net.node.meta["val"][1].dtype)
    values = impl.statistics(net, x, axes, eps, keepdim=keepdim)
    return tuple(base.cast(net, value, dtype) for value in values)


@converts(aten.layer_norm.default, aten.native_layer_norm.default)
def layer_norm(
    net: Net, input: Value, normalized_shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> ITensor | tuple[ITensor | None, ...]:
    """layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05,
    bool cudnn_enable=True) -> Tensor; native_layer_norm(…) -> (Tensor, Tensor, Tensor)"""
    input, count = base.tensor(net, input), len(normalized_shape)
    result = impl.layer_norm(net, input, count, weight, bias, eps)
    if isinstance(net.node.meta["val"], torch.Tensor):
        return result
    return result, *_statistics_if_read(net, input, range(base.rank(input) - count, base.rank(input)), eps, True)


def check_channels(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The number of channels must be static, since each channel has its own weight."""
    channels = argument(node, "input").meta["val"].shape[1]
    reason = f"dim 1 of the input, the channels, is dynamic ({channels}); normalization needs static channels"
    return not isinstance(channels, torch.SymInt) or Rejection(reason)


@converts(aten.group_norm.default, aten.native_group_norm.default, validator=check_channels)
def group_norm(
    net: Net, input: Value, weight: Value | None, bias: Value | None, eps: float, num_groups: int = 0, group: int = 0
) -> ITensor | tuple[ITensor | None, ...]:
    """group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05,
    bool cudnn_enabled=True) -> Tensor; native_group_norm(…, int group, float eps) -> (Tensor, Tensor, Tensor)"""
    input, groups = base.tensor(net, input), num_groups or group
    result = impl.group_norm(net, input, groups, weight, bias, eps)
    if isinstance(net.node.meta["val"], torch.Tensor):
        return result
    return result, *_statistics_if_read(net, impl.split_groups(net, input, groups), [2], eps, False)


@converts(aten._native_batch_norm_legit.no_stats, validator=check_channels)
def batch_norm_without_running_statistics(
    net: Net, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[ITensor | None, ...]:
    """_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, …) -> (Tensor, Tensor, Tensor)"""
    input = base.tensor(net, input)
    axes = [0, *range(2, base.rank(input))]
    result = impl.channel_norm(net, input, axes, weight, bias, eps)
    return result, *_statistics_if_read(net, input, axes, eps, False)


def check_statistics(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Only the input's statistics are supported; with running statistics, the node is decomposed to a batch norm."""
    if argument(node, "use_input_stats"):
        return check_channels(node, settings)
    return Rejection("use_input_stats is False: an instance norm with running statistics is decomposed to a batch norm")


@converts(aten.instance_norm.default, validator=check_statistics)
def instance_norm(net: Net, input: Value, weight: Value | None, bias: Value | None, eps: float) -> ITensor:
    """instance_norm(Tensor input, Tensor? weight, Tensor? bias, …) -> Tensor"""
    input = base.tensor(net, input)
    return impl.channel_norm(net, input, range(2, base.rank(input)), weight, bias, eps)


@converts(aten.rms_norm.default)
def rms_norm(
    net: Net, input: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None
) -> ITensor:
    """rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"""
    wide = torch.promote_types(net.node.meta["val"].dtype, torch.float32)
    eps = torch.finfo(wide).eps if eps is None else eps
    return impl.rms_norm(net, base.tensor(net, input), len(normalized_shape), weight, eps)


def _scale_and_shift(x: Tensor, weight: Opt, bias: Opt, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """Apply a batch norm as ``x * scale + shift``, in float32 for half precision; scale and shift are constant."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    shape = [-1] + [1] * (x.dim() - 2)
    weight, bias, mean, var = (_flatten_parameter(each) for each in (weight, bias, mean, var))
    scale = (var.to(dtype) + eps).rsqrt()
    scale = scale if weight is None else weight * scale
    shift = -mean * scale if bias is None else bias - mean * scale
    return (x.to(dtype) * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _flatten_parameter(parameter: Argument) -> Argument:
    """Flatten a parameter to rank 1; eager accepts any shape with one element per channel."""
    return parameter if parameter is None or parameter.dim() == 1 else parameter.reshape(-1)


Statistics = tuple[Tensor, Tensor, Tensor]


@register_torch_trt_decomposition(aten.batch_norm.default)
def batch_norm(
    x: Tensor,
    weight: Opt,
    bias: Opt,
    running_mean: Opt,
    running_var: Opt,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return _scale_and_shift(x, weight, bias, running_mean, running_var, eps)


@register_torch_trt_decomposition(aten.native_batch_norm.default)
@register_torch_trt_decomposition(aten._native_batch_norm_legit.default)
def native_batch_norm(
    x: Tensor, weight: Opt, bias: Opt, running_mean: Opt, running_var: Opt, training: bool, momentum: float, eps: float
) -> Statistics:
    if training or running_mean is None or running_var is None:
        affine = _flatten_parameter(weight), _flatten_parameter(bias)
        result: Statistics = aten._native_batch_norm_legit.no_stats(x, *affine, True, momentum, eps)
        return result
    return _scale_and_shift(x, weight, bias, running_mean, running_var, eps), *_saved_statistics(
        x, running_mean, running_var, eps
    )


def _saved_statistics(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return a batch norm's saved mean and 1 / deviation in evaluation: empty on the CPU, the running ones on a GPU."""
    if x.device.type == "cpu":
        return x.new_zeros((0,)), x.new_zeros((0,))
    dtype = torch.promote_types(x.dtype, torch.float32)
    return mean.to(dtype, copy=True), (var.to(dtype) + eps).rsqrt()


@register_torch_trt_decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Tensor, weight: Opt, bias: Opt, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> Statistics:
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


@register_torch_trt_decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    x: Tensor,
    weight: Opt,
    bias: Opt,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    results = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    dtype = torch.promote_types(x.dtype, torch.float32)
    mean, running_mean, running_var = (each.to(dtype) for each in (results[1], running_mean, running_var))
    if not training:
        return *results, running_mean, running_var
    var = x.to(dtype).var([0, *range(2, x.dim())], correction=1)
    return *results, running_mean + momentum * (mean - running_mean), running_var + momentum * (var - running_var)
