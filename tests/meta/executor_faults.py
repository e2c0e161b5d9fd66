"""Faults to plant in the reference executor: a layer that is off by a factor, swaps its operands, ignores an attribute,
or is wrong for one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs
import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference import executor
from pipeline.runtime.reference.kinds import KINDS

Kind = Callable[..., tuple[torch.Tensor, ...]]
Wrong = Callable[[Kind, Layer, list[Any], Mapping[str, Any]], tuple[torch.Tensor, ...]]


def _scaled(value: torch.Tensor) -> torch.Tensor:
    """Off by one per cent; integers by one, bools all of them."""
    if value.dtype == torch.bool:
        return ~value
    return value * 1.01 if value.is_floating_point() else value + 1


def factor(kind: Kind, layer: Layer, inputs: list[Any], weights: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    return tuple(map(_scaled, kind(layer, inputs, weights)))


def swapped(kind: Kind, layer: Layer, inputs: list[Any], weights: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """The last two operands are exchanged."""
    *first, a, b = inputs
    return kind(layer, [*first, b, a], weights)


def one_size(kind: Kind, layer: Layer, inputs: list[Any], weights: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """Wrong at the largest batch alone."""
    results = kind(layer, inputs, weights)
    return tuple(map(_scaled, results)) if results[0].dim() and results[0].shape[0] == 5 else results


def ignored(name: str, value: Any) -> Wrong:
    """An attribute has always this value."""

    def wrong(kind: Kind, layer: Layer, inputs: list[Any], weights: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        attributes = tuple((k, value if k == name else v) for k, v in layer.attributes)
        return kind(attrs.evolve(layer, attributes=attributes), inputs, weights)

    return wrong


def half_sums(kind: Kind, layer: Layer, inputs: list[Any], weights: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """A matmul that sums in float16: exact over 16 terms, then rounded."""
    (result,) = kind(layer, inputs, weights)
    a, b = (x.mT if layer.attribute(f"op{i}") == "TRANSPOSE" else x for i, x in enumerate(inputs[:2]))
    total = torch.zeros_like(result, dtype=torch.float16)
    for x, y in zip(a.split(16, -1), b.split(16, -2), strict=True):
        total = (total + x.float() @ y.float()).half()
    return (total.to(result.dtype),)


@contextmanager
def planted(wrong: Wrong, kind: str, layers: frozenset[str] | None = None) -> Iterator[None]:
    """While it lasts, layers of a kind are wrong: those of these names, or all."""
    right = KINDS[kind]

    def run(layer: Layer, inputs: Any, weights: Any) -> Any:
        if layers is not None and layer.name not in layers:
            return right(layer, inputs, weights)
        return wrong(right, layer, list(inputs), weights)

    with patch.object(executor, "KINDS", {**KINDS, kind: run}):
        yield


ROWS: tuple[tuple[str, str, str, Wrong], ...] = (
    ("images", "first/convolution_default", "CONVOLUTION", factor),
    ("images", "first/convolution_default", "CONVOLUTION", one_size),
    ("images", "leaky_relu", "ACTIVATION", factor),
    ("images", "leaky_relu", "ACTIVATION", one_size),
    ("images", "leaky_relu", "ACTIVATION", ignored("alpha", 0.01)),
    ("images", "avg_pool2d", "POOLING", factor),
    ("images", "avg_pool2d", "POOLING", one_size),
    ("images", "max_pool2d:pooling_nd", "POOLING", factor),
    ("images", "max_pool2d:pooling_nd", "POOLING", one_size),
    ("images", "max_pool2d:pooling_nd", "POOLING", ignored("type", "AVERAGE")),
    ("images", "add", "ELEMENTWISE", factor),
    ("images", "add", "ELEMENTWISE", one_size),
    ("images", "pad", "SLICE", factor),
    ("images", "pad", "SLICE", one_size),
    ("images", "second/convolution_default_1", "CONVOLUTION", factor),
    ("images", "second/convolution_default_1", "CONVOLUTION", one_size),
    ("images", "slice_1", "SLICE", factor),
    ("images", "slice_1", "SLICE", one_size),
    ("images", "slice_1", "SLICE", ignored("start", (0,))),
    ("images", "elu:constant", "CONSTANT", factor),
    ("images", "elu:elementwise", "ELEMENTWISE", factor),
    ("images", "elu:elementwise", "ELEMENTWISE", one_size),
    ("images", "elu:elementwise", "ELEMENTWISE", ignored("op", "SUM")),
    ("images", "elu:unary", "UNARY", factor),
    ("images", "elu:unary", "UNARY", one_size),
    ("images", "elu:unary", "UNARY", ignored("op", "SIN")),
    ("images", "elu:unary.1", "UNARY", factor),
    ("images", "elu:unary.1", "UNARY", one_size),
    ("images", "elu:elementwise.3", "ELEMENTWISE", swapped),
    ("images", "elu:select", "SELECT", factor),
    ("images", "elu:select", "SELECT", one_size),
    ("images", "elu:elementwise.5", "ELEMENTWISE", swapped),
    ("images", "elu", "SELECT", factor),
    ("images", "elu", "SELECT", one_size),
    ("images", "elu", "SELECT", swapped),
    ("images", "norm/group_norm", "NORMALIZATION", factor),
    ("images", "norm/group_norm", "NORMALIZATION", one_size),
    ("images", "norm/group_norm", "NORMALIZATION", ignored("epsilon", 0.1)),
    ("images", "upsample_bilinear2d", "RESIZE", factor),
    ("images", "upsample_bilinear2d", "RESIZE", one_size),
    ("images", "upsample_bilinear2d", "RESIZE", ignored("coordinate_transformation", "ALIGN_CORNERS")),
    ("images", "upsample_bilinear2d", "RESIZE", ignored("resize_mode", "NEAREST")),
    ("images", "slice_4", "SLICE", ignored("stride", (1,))),
    ("images", "cat", "CONCATENATION", factor),
    ("images", "cat", "CONCATENATION", one_size),
    ("images", "cat", "CONCATENATION", swapped),
    ("tokens", "norm/layer_norm", "NORMALIZATION", factor),
    ("tokens", "norm/layer_norm", "NORMALIZATION", one_size),
    ("tokens", "query/linear_default:matrix_multiply", "MATRIX_MULTIPLY", factor),
    ("tokens", "query/linear_default:matrix_multiply", "MATRIX_MULTIPLY", one_size),
    ("tokens", "tanh", "ACTIVATION", factor),
    ("tokens", "tanh", "ACTIVATION", one_size),
    ("tokens", "mean", "REDUCE", factor),
    ("tokens", "mean", "REDUCE", one_size),
    ("tokens", "mean", "REDUCE", ignored("op", "SUM")),
    ("tokens", "transpose", "SHUFFLE", factor),
    ("tokens", "transpose", "SHUFFLE", one_size),
    ("tokens", "matmul", "MATRIX_MULTIPLY", factor),
    ("tokens", "matmul", "MATRIX_MULTIPLY", one_size),
    ("tokens", "unsqueeze", "UNSQUEEZE", factor),
    ("tokens", "unsqueeze", "UNSQUEEZE", one_size),
    ("tokens", "where_self", "SELECT", swapped),
    ("tokens", "sum_1", "REDUCE", factor),
    ("tokens", "sum_1", "REDUCE", one_size),
    ("tokens", "softmax", "SOFTMAX", factor),
    ("tokens", "softmax", "SOFTMAX", one_size),
    ("tokens", "softmax", "SOFTMAX", ignored("axes", (1,))),
    ("tokens", "sum_2", "REDUCE", ignored("axes", (0,))),
    ("choices", "topk:topk", "TOPK", ignored("op", "MIN")),
    ("choices", "topk:gather_v2", "GATHER", factor),
    ("choices", "topk:gather_v2", "GATHER", one_size),
    ("choices", "cumsum", "CUMULATIVE", factor),
    ("choices", "cumsum", "CUMULATIVE", one_size),
    ("choices", "cumsum", "CUMULATIVE", ignored("reverse", True)),
    ("choices", "cumsum", "CUMULATIVE", ignored("exclusive", True)),
    ("choices", "amax:cast", "CAST", factor),
    ("choices", "amax:cast", "CAST", one_size),
    ("choices", "unsqueeze", "UNSQUEEZE", factor),
    ("choices", "unsqueeze", "UNSQUEEZE", one_size),
)
"""The toy, the layer and its kind, and what is wrong with it."""
