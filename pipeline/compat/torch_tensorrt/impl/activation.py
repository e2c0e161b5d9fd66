"""Building blocks for activation functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipeline.compat.torch_tensorrt.blocks import Argument, Call, Expression, aten, block, call, op_block, require
from pipeline.compat.torch_tensorrt.impl.prelu import prelu as prelu


def _softplus(x: Argument, alpha: Argument, beta: Argument) -> Call:
    """Return TensorRT's softplus, alpha * log(1 + exp(beta * x)), as ATen calls. ATen's has 1 / beta for alpha."""
    plain = call(aten.softplus.default, x, beta)
    return plain if alpha is None or alpha * beta == 1 else call(aten.mul.Tensor, plain, alpha * beta)


def _scaled_tanh(x: Argument, alpha: Argument, beta: Argument) -> Call:
    """Return alpha * tanh(beta * x) as ATen calls."""
    return call(aten.mul.Tensor, call(aten.tanh.default, call(aten.mul.Tensor, x, beta)), alpha)


def _hard_sigmoid(x: Argument, alpha: Argument, beta: Argument) -> Call:
    """Return alpha * x + beta, clamped to the range from 0 to 1, as ATen calls."""
    return call(aten.clamp.default, call(aten.add.Tensor, call(aten.mul.Tensor, x, alpha), beta), 0, 1)


TARGETS: Final[dict[str, Callable[[Argument, Argument, Argument], Call]]] = {
    "RELU": lambda x, alpha, beta: call(aten.relu.default, x),
    "SIGMOID": lambda x, alpha, beta: call(aten.sigmoid.default, x),
    "TANH": lambda x, alpha, beta: call(aten.tanh.default, x),
    "SELU": lambda x, alpha, beta: call(aten.elu.default, x, 1.6732632423543772, 1.0507009873554805),
    "GELU_ERF": lambda x, alpha, beta: call(aten.gelu.default, x),
    "GELU_TANH": lambda x, alpha, beta: call(aten.gelu.default, x, approximate="tanh"),
    "CLIP": lambda x, alpha, beta: call(aten.clamp.default, x, alpha, beta),
    "LEAKY_RELU": lambda x, alpha, beta: call(aten.leaky_relu.default, x, alpha),
    "ELU": lambda x, alpha, beta: call(aten.elu.default, x, alpha, 1.0 if beta is None else beta),
    "SOFTPLUS": _softplus,
    "SOFTSIGN": lambda x, alpha, beta: call(aten.div.Tensor, x, call(aten.add.Tensor, call(aten.abs.default, x), 1)),
    "HARD_SIGMOID": _hard_sigmoid,
    "SCALED_TANH": _scaled_tanh,
    "THRESHOLDED_RELU": lambda x, alpha, beta: call(aten.threshold.default, x, alpha, 0),
}
"""The ATen equivalent of each TensorRT activation, by its name: a function of a tensor, alpha and beta."""

relu, sigmoid, tanh = (op_block(op.default, "input_val") for op in (aten.relu, aten.sigmoid, aten.tanh))
hard_swish = op_block(aten.hardswish.default, "input_val")
leaky_relu = op_block(aten.leaky_relu.default, "input_val", alpha=0.01)
hardshrink = op_block(aten.hardshrink.default, "input_val", lambd=0.5)
softshrink = op_block(aten.softshrink.default, "input_val", lambd=0.5)
tanhshrink = block(
    lambda input_val: call(aten.sub.Tensor, input_val, call(aten.tanh.default, input_val)), "x - tanh(x)"
)
convert_activation = block(
    lambda operation_type, input_val, alpha=None, beta=None, dyn_range_fn=None: TARGETS[operation_type.name](
        input_val, alpha, beta
    ),
    "The layer of a ``trt.ActivationType``. Networks are strongly typed, so dynamic ranges have no effect.",
)
elu = block(
    lambda input_val, alpha=1.0, beta=None: TARGETS["ELU"](input_val, alpha, beta), "aten.elu.default, ``beta`` times"
)
selu = block(lambda input_val: TARGETS["SELU"](input_val, None, None), "aten.elu.default with the two numbers of selu")
softsign = block(lambda input_val: TARGETS["SOFTSIGN"](input_val, None, None), "x / (1 + abs(x))")
softplus = block(lambda input_val, beta=1: _softplus(input_val, None, beta), "aten.softplus.default")
hard_sigmoid = block(
    lambda input_val, alpha, beta: _hard_sigmoid(input_val, alpha, beta), "alpha * x + beta between 0 and 1"
)
scaled_tanh = block(lambda input_val, alpha, beta: _scaled_tanh(input_val, alpha, beta), "alpha * tanh(beta * x)")
thresholded_relu = block(
    lambda input_val, alpha: TARGETS["THRESHOLDED_RELU"](input_val, alpha, None),
    "x where it is larger than alpha, else 0",
)


@block
def gelu(input_val: Argument, approximate: str) -> Expression:
    """Add the layers of aten.gelu.default."""
    known = approximate in ("none", "tanh")
    require(known, "impl.activation.gelu", f"approximate is {approximate!r}", "pass 'none' or 'tanh'")
    return call(aten.gelu.default, input_val, approximate=approximate)
