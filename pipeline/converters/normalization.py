"""Normalisation: of layers, groups, instances and batches, and by the root mean square."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline.aten.arguments import argument, bind
from pipeline.converters.declare import Rejection, dynamo_tensorrt_converter
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl import normalization as impl
from pipeline.network.context import ConversionContext
from pipeline.settings import CompilationSettings

aten = torch.ops.aten
Tensor = torch.Tensor


def _statistics(ctx: ConversionContext, name: str, x: Any, axes: Sequence[int], eps: float, keepdim: bool) -> Any:
    """The mean and rstd that the operator gives beside its result, if anything reads them."""
    assert ctx.node is not None
    if all(u.target is operator.getitem and u.args[1] == 0 for u in ctx.node.users):
        return None, None
    dtype = base.network_dtype(ctx.node.meta["val"][1].dtype)
    values = impl.statistics(ctx, name, x, axes, eps, keepdim=keepdim)
    return tuple(base.cast(ctx, name, value, dtype) for value in values)


@dynamo_tensorrt_converter(aten.layer_norm.default, supports_dynamic_shapes=True)
def layer_norm(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05,
    bool cudnn_enable=True) -> Tensor"""
    x, normalized_shape, weight, bias, eps, _ = bind(target, args, kwargs)
    return impl.layer_norm(ctx, name, base.tensor(ctx, name, x), len(normalized_shape), weight, bias, eps)


@dynamo_tensorrt_converter(aten.native_layer_norm.default, supports_dynamic_shapes=True)
def native_layer_norm(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)
    -> (Tensor, Tensor, Tensor)"""
    x, normalized_shape, weight, bias, eps = bind(target, args, kwargs)
    x, count = base.tensor(ctx, name, x), len(normalized_shape)
    axes = range(base.rank(x) - count, base.rank(x))
    result = impl.layer_norm(ctx, name, x, count, weight, bias, eps)
    return result, *_statistics(ctx, name, x, axes, eps, True)


def channels_are_static(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """Each channel has a weight of its own, so that their number is known when the engine is built."""
    channels = argument(node, "input").meta["val"].shape[1]
    return not isinstance(channels, torch.SymInt) or Rejection(f"dim 1 of its input, the channels, is {channels}")


@dynamo_tensorrt_converter(
    aten.group_norm.default, capability_validator=channels_are_static, supports_dynamic_shapes=True
)
def group_norm(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05,
    bool cudnn_enabled=True) -> Tensor"""
    x, groups, weight, bias, eps, _ = bind(target, args, kwargs)
    return impl.group_norm(ctx, name, base.tensor(ctx, name, x), groups, weight, bias, eps)


@dynamo_tensorrt_converter(
    aten.native_group_norm.default, capability_validator=channels_are_static, supports_dynamic_shapes=True
)
def native_group_norm(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group,
    float eps) -> (Tensor, Tensor, Tensor)"""
    x, weight, bias, _, _, _, groups, eps = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x)
    result = impl.group_norm(ctx, name, x, groups, weight, bias, eps)
    return result, *_statistics(ctx, name, impl.by_group(ctx, name, x, groups), [2], eps, False)


@dynamo_tensorrt_converter(
    aten._native_batch_norm_legit.no_stats, capability_validator=channels_are_static, supports_dynamic_shapes=True
)
def batch_norm_of_the_batch(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum,
    float eps) -> (Tensor, Tensor, Tensor)"""
    x, weight, bias, _, _, eps = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x)
    axes = [0, *range(2, base.rank(x))]
    result = impl.channel_norm(ctx, name, x, axes, weight, bias, eps)
    return result, *_statistics(ctx, name, x, axes, eps, False)


def of_its_own_statistics(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """With running statistics it is a batch norm, and taken apart as one."""
    if argument(node, "use_input_stats"):
        return channels_are_static(node, settings)
    return Rejection("it uses running statistics")


@dynamo_tensorrt_converter(
    aten.instance_norm.default, capability_validator=of_its_own_statistics, supports_dynamic_shapes=True
)
def instance_norm(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
    bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor"""
    x, weight, bias, _, _, _, _, eps, _ = bind(target, args, kwargs)
    x = base.tensor(ctx, name, x)
    return impl.channel_norm(ctx, name, x, range(2, base.rank(x)), weight, bias, eps)


@dynamo_tensorrt_converter(aten.rms_norm.default, supports_dynamic_shapes=True)
def rms_norm(ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor"""
    x, normalized_shape, weight, eps = bind(target, args, kwargs)
    assert ctx.node is not None
    wide = torch.promote_types(ctx.node.meta["val"].dtype, torch.float32)
    eps = torch.finfo(wide).eps if eps is None else eps
    return impl.rms_norm(ctx, name, base.tensor(ctx, name, x), len(normalized_shape), weight, eps)


def _inference(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """``x * scale + shift``: both depend on parameters alone, so that they are folded, in float32 for halves."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    shape = [-1] + [1] * (x.dim() - 2)
    scale = (var.to(dtype) + eps).rsqrt()
    scale = scale if weight is None else weight * scale
    shift = -mean * scale if bias is None else bias - mean * scale
    return (x.to(dtype) * scale.view(shape) + shift.view(shape)).to(x.dtype)


Statistics = tuple[Tensor, Tensor, Tensor]


@register_torch_trt_decomposition(aten.batch_norm.default)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor:
    """batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training,
    float momentum, float eps, bool cudnn_enabled) -> Tensor"""
    if training or running_mean is None or running_var is None:
        return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]
    return _inference(x, weight, bias, running_mean, running_var, eps)


@register_torch_trt_decomposition(aten.native_batch_norm.default)
@register_torch_trt_decomposition(aten._native_batch_norm_legit.default)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Statistics:
    """native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
    bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    if training or running_mean is None or running_var is None:
        result: Statistics = aten._native_batch_norm_legit.no_stats(x, weight, bias, True, momentum, eps)
        return result
    return _inference(x, weight, bias, running_mean, running_var, eps), *_kept(x, running_mean, running_var, eps)


def _kept(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The statistics beside a result that running ones made: nothing on the CPU, the running ones on a GPU."""
    if x.device.type == "cpu":
        return x.new_zeros((0,)), x.new_zeros((0,))
    dtype = torch.promote_types(x.dtype, torch.float32)
    return mean.to(dtype, copy=True), (var.to(dtype) + eps).rsqrt()


@register_torch_trt_decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Statistics:
    """_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
    Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)"""
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


@register_torch_trt_decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean,
    Tensor running_var, bool training, float momentum, float eps)
    -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)"""
    results = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if not training:
        return *results, running_mean, running_var
    var = x.to(running_var.dtype).var([0, *range(2, x.dim())], correction=1)
    mean = results[1].to(running_mean.dtype)
    return *results, running_mean + momentum * (mean - running_mean), running_var + momentum * (var - running_var)
