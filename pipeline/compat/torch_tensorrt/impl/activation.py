"""Activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from pipeline.compat.torch_tensorrt.blocks import block, of_one, unless
from pipeline.compat.torch_tensorrt.calls import Argument, Call, Expression, call
from pipeline.compat.torch_tensorrt.impl.prelu import prelu as prelu

aten = torch.ops.aten


def _scaled(x: Argument, scale: Argument, shift: Argument = 0.0) -> Call:
    return call(aten.add.Tensor, call(aten.mul.Tensor, x, scale), shift)


def _leaky(x: Argument, alpha: Argument, beta: Argument) -> Call:
    return call(aten.leaky_relu.default, x, alpha)


def _elu(x: Argument, alpha: Argument, beta: Argument) -> Call:
    return call(aten.elu.default, x, alpha, 1.0 if beta is None else beta)


def _softplus(x: Argument, alpha: Argument, beta: Argument) -> Call:
    """alpha * log(1 + exp(beta * x)); ATen's alpha is 1 / beta."""
    plain = call(aten.softplus.default, x, beta)
    return plain if alpha is None or alpha * beta == 1 else call(aten.mul.Tensor, plain, alpha * beta)


def _hard_sigmoid(x: Argument, alpha: Argument, beta: Argument) -> Call:
    return call(aten.clamp.default, _scaled(x, alpha, beta), 0, 1)


def _scaled_tanh(x: Argument, alpha: Argument, beta: Argument) -> Call:
    return call(aten.mul.Tensor, call(aten.tanh.default, call(aten.mul.Tensor, x, beta)), alpha)


def _thresholded(x: Argument, alpha: Argument, beta: Argument) -> Call:
    """aten.threshold"""
    return call(aten.threshold.default, x, alpha, 0)


def _softsign(x: Argument, alpha: Argument, beta: Argument) -> Call:
    return call(aten.div.Tensor, x, call(aten.add.Tensor, call(aten.abs.default, x), 1))


TARGETS: Final[dict[str, Callable[[Argument, Argument, Argument], Call]]] = {
    "RELU": lambda x, alpha, beta: call(aten.relu.default, x),
    "SIGMOID": lambda x, alpha, beta: call(aten.sigmoid.default, x),
    "TANH": lambda x, alpha, beta: call(aten.tanh.default, x),
    "SELU": lambda x, alpha, beta: call(aten.elu.default, x, 1.6732632423543772, 1.0507009873554805),
    "GELU_ERF": lambda x, alpha, beta: call(aten.gelu.default, x),
    "GELU_TANH": lambda x, alpha, beta: call(aten.gelu.default, x, approximate="tanh"),
    "CLIP": lambda x, alpha, beta: call(aten.clamp.default, x, alpha, beta),
    "LEAKY_RELU": _leaky,
    "ELU": _elu,
    "SOFTPLUS": _softplus,
    "SOFTSIGN": _softsign,
    "HARD_SIGMOID": _hard_sigmoid,
    "SCALED_TANH": _scaled_tanh,
    "THRESHOLDED_RELU": _thresholded,
}
"""TensorRT's activations, by name, of a tensor, alpha and beta."""

relu, sigmoid, tanh = (of_one(op.default, "input_val") for op in (aten.relu, aten.sigmoid, aten.tanh))
hard_swish = of_one(aten.hardswish.default, "input_val")


@block
def convert_activation(
    operation_type: Argument,
    input_val: Argument,
    alpha: Argument = None,
    beta: Argument = None,
    dyn_range_fn: Argument = None,
) -> Expression:
    """The layer of a ``trt.ActivationType``. Networks are strongly typed, so dynamic ranges have no effect."""
    return TARGETS[operation_type.name](input_val, alpha, beta)


@block
def leaky_relu(input_val: Argument, alpha: float = 0.01) -> Expression:
    """aten.leaky_relu.default"""
    return _leaky(input_val, alpha, None)


@block
def elu(input_val: Argument, alpha: float = 1.0, beta: float | None = None) -> Expression:
    """aten.elu.default, ``beta`` times"""
    return _elu(input_val, alpha, beta)


@block
def selu(input_val: Argument) -> Expression:
    """aten.elu.default with the two numbers of selu"""
    return TARGETS["SELU"](input_val, None, None)


@block
def softsign(input_val: Argument) -> Expression:
    """x / (1 + abs(x))"""
    return _softsign(input_val, None, None)


@block
def softplus(input_val: Argument, beta: float = 1) -> Expression:
    """aten.softplus.default"""
    return _softplus(input_val, None, beta)


@block
def hard_sigmoid(input_val: Argument, alpha: float, beta: float) -> Expression:
    """alpha * x + beta between 0 and 1"""
    return _hard_sigmoid(input_val, alpha, beta)


@block
def scaled_tanh(input_val: Argument, alpha: float, beta: float) -> Expression:
    """alpha * tanh(beta * x)"""
    return _scaled_tanh(input_val, alpha, beta)


@block
def thresholded_relu(input_val: Argument, alpha: float) -> Expression:
    """x where it is larger than alpha, else 0"""
    return _thresholded(input_val, alpha, None)


@block
def gelu(input_val: Argument, approximate: str) -> Expression:
    """aten.gelu.default"""
    unless(
        approximate in ("none", "tanh"), "impl.activation.gelu", f"approximate is {approximate!r}", "'none' or 'tanh'"
    )
    return call(aten.gelu.default, input_val, approximate=approximate)


@block
def hardshrink(input_val: Argument, lambd: float = 0.5) -> Expression:
    """aten.hardshrink.default"""
    return call(aten.hardshrink.default, input_val, lambd)


@block
def softshrink(input_val: Argument, lambd: float = 0.5) -> Expression:
    """aten.softshrink.default"""
    return call(aten.softshrink.default, input_val, lambd)


@block
def tanhshrink(input_val: Argument) -> Expression:
    """x - tanh(x)"""
    return call(aten.sub.Tensor, input_val, call(aten.tanh.default, input_val))
