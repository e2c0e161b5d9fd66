"""The building blocks of Torch-TensorRT beside the operators that they are tested against: how a call of an operator,
its arguments in the schema's order, is said with a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from pipeline.compat.torch_tensorrt import impl
from pipeline.compat.torch_tensorrt.impl.elementwise import TARGETS as ELEMENTWISE
from pipeline.compat.torch_tensorrt.impl.unary import TARGETS as UNARY
from pipeline.testing import Call
from pipeline.trt import trt

aten = torch.ops.aten

Says = Callable[..., Any]


@frozen
class Row:
    """A block, the operator that it is to compute, and the block's call (given ``b``, which has its first four
    arguments) for the operator's arguments."""

    block: str
    target: Any
    says: Says = lambda b, *args: b(*args)
    only: Callable[[Call], bool] = lambda call: True

    @property
    def function(self) -> Callable[..., Any]:
        """The block."""
        family, _, name = self.block.partition(".")
        found: Callable[..., Any] = getattr(getattr(impl, family), name)
        return found


def plain(call: Call) -> bool:
    """Whether a call leaves what has a keyword alone: a dtype, a factor."""
    return not call.kwargs


def same(family: str, **targets: Any) -> list[Row]:
    """Blocks that take an operator's arguments as they are, the operator's own defaults left out."""
    return [Row(f"{family}.{name}", target) for name, target in targets.items()]


def first(count: int, family: str, **targets: Any) -> list[Row]:
    """Blocks that take the first arguments of an operator, whose others have their defaults."""

    def says(b: Any, *args: Any) -> Any:
        return b(*args[:count])

    return [Row(f"{family}.{name}", target, says, plain) for name, target in targets.items()]


OVERLOADS = {
    name: getattr(aten, name).Tensor
    for name in ("eq", "ne", "gt", "ge", "lt", "le", "bitwise_and", "bitwise_or", "bitwise_xor", "fmod", "remainder")
}

ROWS: list[Row] = [
    *same("unary", **{t.__name__.partition(".")[0]: t for n, t in UNARY.items() if n not in ("RECIP", "NOT", "ROUND")}),
    *same("unary", recip=aten.reciprocal.default, logical_not=aten.logical_not.default, round=aten.round.default),
    *same("unary", expm1=aten.expm1.default, log10=aten.log10.default, log2=aten.log2.default),
    *same("unary", log1p=aten.log1p.default, trunc=aten.trunc.default, bitwise_not=aten.bitwise_not.default),
    *same("unary", sym_not=aten.logical_not.default),
    Row("unary.convert_unary", aten.exp.default, lambda b, x: b(trt.UnaryOperation.EXP, x)),
    *same("elementwise", **OVERLOADS, atan2=aten.atan2.default, rsqrt=aten.rsqrt.default),
    *first(2, "elementwise", add=aten.add.Tensor, sub=aten.sub.Tensor, mul=aten.mul.Tensor, div=aten.div.Tensor),
    *same("elementwise", pow=aten.pow.Tensor_Tensor, floor_divide=aten.floor_divide.default),
    *same("elementwise", max=aten.maximum.default, min=aten.minimum.default),
    *same("elementwise", **{n: getattr(aten, n).default for n in ("logical_and", "logical_or", "logical_xor")}),
    Row(
        "elementwise.trunc_div",
        aten.div.Tensor_mode,
        lambda b, x, y, mode: b(x, y),
        lambda call: call.kwargs["rounding_mode"] == "trunc",
    ),
    Row("elementwise.clamp", aten.clamp.Tensor, lambda b, x, low, high: b(x, min_val=low, max_val=high)),
    *(
        Row(
            "elementwise.convert_binary_elementwise",
            ELEMENTWISE[name],
            lambda b, x, y, *_, name=name: b(trt.ElementWiseOperation.__members__[name], x, y),
            plain,
        )
        for name in ("SUM", "GREATER")
    ),
    *same("activation", relu=aten.relu.default, sigmoid=aten.sigmoid.default, tanh=aten.tanh.default),
    *same("activation", leaky_relu=aten.leaky_relu.default, gelu=aten.gelu.default, hard_swish=aten.hardswish.default),
    *same("activation", hardshrink=aten.hardshrink.default, softshrink=aten.softshrink.default),
    Row("activation.prelu", aten._prelu_kernel.default),
    Row("prelu.prelu", aten._prelu_kernel.default),
    Row("activation.elu", aten.elu.default, lambda b, x, alpha, scale, _: b(x, alpha, scale)),
    Row("activation.softplus", aten.softplus.default, lambda b, x, beta, _: b(x, beta)),
    Row("activation.thresholded_relu", aten.relu.default, lambda b, x: b(x, 0.0)),
    Row(
        "activation.convert_activation",
        aten.leaky_relu.default,
        lambda b, x, slope: b(trt.ActivationType.LEAKY_RELU, x, alpha=slope),
    ),
    *same("reduce", amax=aten.amax.default, amin=aten.amin.default),
    Row("reduce.sum", aten.sum.dim_IntList, lambda b, x, dim, keep, _: b(x, dim, keep), plain),
    Row("reduce.mean", aten.mean.dim, lambda b, x, dim, keep, _: b(x, dim, keep), plain),
    Row("reduce.prod", aten.prod.dim_int, lambda b, x, dim, keep, _: b(x, dim, keep), plain),
    Row("reduce.max", aten.max.dim, lambda b, x, dim, keep: b(x, dim, keep, return_indices=True)),
    Row("reduce.min", aten.min.dim, lambda b, x, dim, keep: b(x, dim, keep, return_indices=True)),
    Row("reduce.max", aten.amax.default, lambda b, x, dim, keep: b(x, dim, keep, False)),
    Row("reduce.min", aten.amin.default, lambda b, x, dim, keep: b(x, dim, keep, False)),
    *same("reduce", any=aten.any.dims, all=aten.all.dims),
    *same("topk", argmax=aten.argmax.default, argmin=aten.argmin.default),
    *same("topk", sort=aten.sort.default, topk=aten.topk.default),
    Row(
        "topk.argmax_argmin",
        aten.argmax.default,
        lambda b, x, dim, keep: b(x, trt.TopKOperation.MAX, dim, keep_dim=keep),
    ),
    Row("slice.slice_op", aten.slice.Tensor),
    *first(2, "slice", expand=aten.expand.default, tile=aten.repeat.default, flip=aten.flip.default),
    Row("slice.cumsum", aten.cumsum.default, lambda b, x, dim, _: b(x, dim), plain),
    *same("slice", diagonal=aten.diagonal.default, as_strided=aten.as_strided.default),
    *same("select", select=aten.select.int, index_select=aten.index_select.default),
    Row("select.gather", aten.gather.default, lambda b, x, dim, index, _: b(x, dim, index)),
    *same("select", scatter=aten.scatter.src, scatter_add=aten.scatter_add.default, index=aten.index.Tensor),
    *same("select", index_put_converter=aten.index_put.default),
    Row("select.scatter", aten.scatter.value),
    *same("shuffle", reshape=aten.reshape.default),
    *same("permutation", permute=aten.permute.default, roll=aten.roll.default),
    *same("squeeze", squeeze=aten.squeeze.dims),
    *same("unsqueeze", unsqueeze=aten.unsqueeze.default),
    Row("split.split", aten.split_with_sizes.default),
    Row("cat.cat", aten.cat.default),
    Row("condition.where", aten.where.self, lambda b, condition, x, y: b(x, y, condition)),
    Row("condition.select", aten.where.self, lambda b, condition, x, y: b(x, y, condition)),
    Row("cast.to_copy", aten._to_copy.default, lambda b, x, dtype, *_: b(x, dtype)),
    Row("linear.linear", aten.linear.default),
    Row("matmul.matrix_multiply", aten.matmul.default),
    Row(
        "addmm.addmm",
        aten.addmm.default,
        lambda b, x, m1, m2, beta, alpha: b(x, m1, m2, beta=beta, alpha=alpha),
    ),
    Row("embedding.embedding", aten.embedding.default, lambda b, weight, index, *_: b(index, weight, False, False)),
    Row("normalization.softmax", aten._softmax.default),
    Row(
        "normalization.native_layer_norm",
        aten.layer_norm.default,
        lambda b, x, shape, weight, bias, eps, _: b(x, shape, weight, bias, eps)[0],
    ),
    Row("normalization.layer_norm", aten.layer_norm.default),
    Row(
        "normalization.native_group_norm",
        aten.group_norm.default,
        lambda b, x, groups, weight, bias, eps, _: b(x, weight, bias, None, x.shape[1], None, groups, eps)[0],
    ),
    Row("normalization.group_norm", aten.group_norm.default),
    Row("grid.grid", aten.grid_sampler_2d.default),
    *(Row("pad.constant_padNd", aten.constant_pad_nd.default) for _ in range(1)),
    *same("pad", reflection_padNd=aten.reflection_pad2d.default, replication_padNd=aten.replication_pad2d.default),
    Row("pad.pad", aten.pad.default),
    Row("pool.avg_poolNd", aten.avg_pool2d.default),
    Row("pool.max_poolNd", aten.max_pool2d.default),
    Row("pool.adaptive_avg_poolNd", aten._adaptive_avg_pool2d.default),
    Row("pool.adaptive_avg_pool1d", aten.adaptive_avg_pool1d.default),
    Row(
        "conv.convNd",
        aten.convolution.default,
        lambda b, x, w, bias, stride, pad, dilation, transposed, out, groups: b(
            len(w.shape) == 3, x, w, bias, stride, pad, dilation, groups
        ),
        lambda call: not call.args[6],
    ),
    Row(
        "deconv.deconvNd",
        aten.convolution.default,
        lambda b, x, w, bias, stride, pad, dilation, transposed, out, groups: b(
            len(w.shape) == 3, x, w, bias, stride, pad, dilation, groups, out
        ),
        lambda call: call.args[6] and call.specs[0].dtype == torch.float32,
    ),
    Row("slice_scatter.slice_scatter", aten.slice_scatter.default),
    *same("index_copy", index_copy_fallback=aten.index_copy.default, index_copy_kv=aten.index_copy.default),
    Row(
        "upsample.upsample", aten.upsample_nearest2d.vec, lambda b, x, size, scale: b(x, size, scale, "nearest", False)
    ),
    Row(
        "upsample.upsample",
        aten.upsample_bilinear2d.vec,
        lambda b, x, size, align, scale: b(x, size, scale, "bilinear", align),
    ),
]
