"""FX's helpers that add layers, with its signatures: the building blocks, with arguments in another order."""

from __future__ import annotations

from typing import Final

from pipeline.aten.types import Argument, Target
from pipeline.compat.torch_tensorrt.blocks import refused
from pipeline.compat.torch_tensorrt.impl import activation, cast, elementwise, matmul, unary
from pipeline.compat.torch_tensorrt.source_ir import SourceIR
from pipeline.compat.torch_tensorrt.values import Conversion
from pipeline.trt import trt

ACC = SourceIR.ACC


def add_activation_layer(
    network: Conversion,
    input_val: Argument,
    operation_type: trt.ActivationType,
    target: Target,
    name: str,
    alpha: float | None = None,
    beta: float | None = None,
    dyn_range_fn: Argument = None,
) -> trt.ITensor:
    """`impl.activation.convert_activation`"""
    return activation.convert_activation(network, target, ACC, name, operation_type, input_val, alpha, beta)


def add_unary_layer(
    network: Conversion, input_val: Argument, operation_type: trt.UnaryOperation, target: Target, name: str
) -> trt.ITensor:
    """`impl.unary.convert_unary`"""
    return unary.convert_unary(network, target, ACC, name, operation_type, input_val)


def add_binary_elementwise_layer(
    network: Conversion,
    lhs_val: Argument,
    rhs_val: Argument,
    op_type: trt.ElementWiseOperation,
    target: Target,
    name: str,
) -> trt.ITensor:
    """`impl.elementwise.convert_binary_elementwise`"""
    return elementwise.convert_binary_elementwise(network, target, ACC, name, op_type, lhs_val, rhs_val)


def add_matrix_multiply_layer(
    network: Conversion,
    input_val: Argument,
    other_val: Argument,
    target: Target,
    name: str,
    transpose_other: bool = False,
) -> trt.ITensor:
    """`impl.matmul.matrix_multiply`"""
    operation = trt.MatrixOperation.TRANSPOSE if transpose_other else trt.MatrixOperation.NONE
    return matmul.matrix_multiply(network, target, ACC, name, input_val, other_val, other_matrix_op=operation)


def type_cast(network: Conversion, target: Target, name: str, input: Argument, cast_type: Argument) -> trt.ITensor:
    """`impl.cast.to_copy`"""
    return cast.to_copy(network, target, ACC, name, input, cast_type)


TYPED: Final = "networks are strongly typed: a dynamic range has nothing to set"
QUANTIZE: Final = "quantize the model before it is compiled"

mark_as_int8_layer = refused("mark_as_int8_layer", TYPED, QUANTIZE)
get_dyn_range = refused("get_dyn_range", TYPED, QUANTIZE)
load_tensorrt_llm_for_nccl = refused(
    "load_tensorrt_llm_for_nccl",
    "collectives have no converters here, and TensorRT-RTX has no plugin layers",
    "leave the collective to PyTorch: an operator without a converter runs there",
)
