"""The helper functions of Torch-TensorRT's converters. LEGACY converters pass TensorRT's network as ``ctx``.

The signatures are Torch-TensorRT's. Results differ in two points: a constant keeps its dtype and shape (a Python int
becomes int64, not int32), and a view of a parameter can still be refitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch

from pipeline.aten.naming import layer_name
from pipeline.aten.types import Argument, Node, Target
from pipeline.compat.torch_tensorrt.blocks import Expression, add_layers_of, aten, block, call, unsupported
from pipeline.compat.torch_tensorrt.impl import activation, cast, elementwise, matmul, unary
from pipeline.compat.torch_tensorrt.values import (
    Conversion,
    SourceIR,
    as_context,
    per_dim,
    torch_dtype,
    transpose_constant,
)
from pipeline.converters.converter_utils import args_bounds_check, get_positive_dim, set_layer_name
from pipeline.converters.lookup import describe_symbolic_dims
from pipeline.converters.types import enforce_tensor_types
from pipeline.impl import base
from pipeline.program import describe_value
from pipeline.settings import CompilationSettings
from pipeline.trt import trt

__all__ = [
    "add_activation_layer",
    "add_binary_elementwise_layer",
    "add_matrix_multiply_layer",
    "add_unary_layer",
    "append",
    "args_bounds_check",
    "broadcast",
    "broadcast_to_same_shape",
    "broadcastable",
    "calculate_strides",
    "cast_int_int_div_trt_tensor",
    "cast_int_or_float_to_bool",
    "cast_trt_tensor",
    "create_constant",
    "enforce_tensor_types",
    "extend_attr_to_tuple",
    "flatten_dims",
    "get_axes_for_reduce_op",
    "get_dyn_range",
    "get_node_io",
    "get_node_name",
    "get_positive_dim",
    "get_trt_tensor",
    "has_dynamic_shape",
    "is_only_operator_on_placeholder",
    "load_tensorrt_llm_for_nccl",
    "mark_as_int8_layer",
    "prepend_ones",
    "set_item",
    "set_layer_name",
    "to_numpy",
    "to_torch",
    "to_trt_weights",
    "type_cast",
]


def get_trt_tensor(
    ctx: Conversion, input_val: Argument, name: str, dtype: Argument = None, min_rank: int = 1
) -> trt.ITensor:
    """Create a constant layer from a tensor, array, number or run-time size; an ``ITensor`` is returned unchanged.
    ``dtype`` is a dtype of torch, TensorRT or numpy; None keeps the value's dtype. A number gets ``min_rank`` dims."""
    return input_val if isinstance(input_val, trt.ITensor) else create_constant(ctx, input_val, name, dtype, min_rank)


def create_constant(
    ctx: Conversion, value: Argument, name: str, dtype: Argument = None, min_rank: int = 1
) -> trt.ITensor:
    """Create a constant layer from a value, as `get_trt_tensor` does."""
    ctx, wanted = as_context(ctx), torch_dtype(dtype)
    value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, torch.Tensor):
        return base.tensor(ctx, name, value, wanted, rank=min_rank)
    return base.tensor(ctx, name, transpose_constant(ctx, name, value), wanted)


def cast_trt_tensor(
    ctx: Conversion,
    input_val: Argument,
    dtype: Argument,
    name: str,
    target: Target = "",
    source_ir: SourceIR | None = None,
) -> trt.ITensor:
    """Cast a tensor to a dtype of torch, TensorRT or numpy; return the same tensor if it already has the dtype."""
    ctx, wanted = as_context(ctx), torch_dtype(dtype)
    assert wanted is not None
    return base.cast(ctx, name, get_trt_tensor(ctx, input_val, name), wanted)


def cast_int_int_div_trt_tensor(ctx: Conversion, lhs_val: Argument, rhs_val: Argument, name: str) -> list[trt.ITensor]:
    """Return the two operands of a true division; if both are integer tensors, both are cast to float32."""
    both = [lhs_val, rhs_val]
    whole = all(base.dtype_of(each) in (torch.int32, torch.int64) for each in both)
    return [cast_trt_tensor(ctx, each, torch.float32, name) if whole else each for each in both]


def cast_int_or_float_to_bool(ctx: Conversion, name: str, tensor: trt.ITensor) -> trt.ITensor:
    """Return a bool tensor that is True at the nonzero elements of a tensor."""
    return cast_trt_tensor(ctx, tensor, torch.bool, name)


def broadcastable(a: Argument, b: Argument) -> bool:
    """Return whether the shapes of two tensors broadcast; a size of -1 (dynamic) broadcasts with -1 and 1."""
    pairs = zip(reversed(tuple(a.shape)), reversed(tuple(b.shape)), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs)


def broadcast(
    ctx: Conversion, a: trt.ITensor, b: trt.ITensor, a_name: str, b_name: str, preset_diff: int = 0
) -> tuple[trt.ITensor, trt.ITensor]:
    """Prepend dims of size 1 to ``a`` or ``b``, until ``a`` has ``preset_diff`` dims more than ``b``; return both."""
    missing = len(a.shape) - len(b.shape) - preset_diff
    b = prepend_ones(ctx, b, f"{b_name}_broadcast", missing) if missing > 0 else b
    return (prepend_ones(ctx, a, f"{a_name}_broadcast", -missing) if missing < 0 else a), b


def broadcast_to_same_shape(
    ctx: Conversion, target: Target, source_ir: SourceIR | None, name: str, lhs_val: trt.ITensor, rhs_val: trt.ITensor
) -> tuple[trt.ITensor, trt.ITensor]:
    """Broadcast two tensors to the same shape, by adding the layers of aten.broadcast_tensors.default."""
    lhs, rhs = add_layers_of(as_context(ctx), name, call(aten.broadcast_tensors.default, [lhs_val, rhs_val]))
    return lhs, rhs


def prepend_ones(ctx: Conversion, tensor: trt.ITensor, name: str, num_prepend_ones: int) -> trt.ITensor:
    """Prepend ``num_prepend_ones`` dims of size 1 to a tensor."""
    return base.unsqueeze(as_context(ctx), name, tensor, range(num_prepend_ones))


def has_dynamic_shape(shape: Sequence[int]) -> bool:
    """Return whether a shape contains -1, which stands for a size that is known only at run time."""
    return -1 in tuple(shape)


def get_axes_for_reduce_op(dim: int | Sequence[int], has_implicit_batch_dimension: bool = False) -> int:
    """Return nonnegative dims as a bit mask, which TensorRT's reduction layers expect."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return base.axes_mask(dims, max(dims, default=0) + 1)


def extend_attr_to_tuple(val: Argument, num_elem: int) -> tuple[Argument, ...]:
    """Return a single value as a tuple of ``num_elem`` copies; return a sequence of values as a tuple."""
    return tuple(per_dim(val, num_elem))


def flatten_dims(input: Argument, start_dim: int, end_dim: int) -> tuple[int, ...]:
    """Return a tensor's shape after merging the dims from ``start_dim`` to ``end_dim``; a merged -1 gives -1."""
    shape = tuple(input.shape)
    first, last = base.axis(start_dim, len(shape)), base.axis(end_dim, len(shape))
    inner = shape[first : last + 1]
    return (*shape[:first], -1 if -1 in inner else torch.Size(inner).numel(), *shape[last + 1 :])


def calculate_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    return [torch.Size(tuple(shape)[dim + 1 :]).numel() for dim in range(len(shape))]


def to_numpy(value: Argument, dtype: Argument = None) -> Argument:
    """Convert a tensor or number to a numpy array; it shares the tensor's memory, but bfloat16 becomes float32."""
    tensor = to_torch(value)
    if tensor is None:
        return None
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    wanted = torch_dtype(dtype)
    return (tensor if wanted is None else tensor.to(wanted)).detach().numpy()


def to_torch(value: Argument, dtype: Argument = None) -> torch.Tensor | None:
    """Convert an array to a CPU tensor, or a number to a CPU tensor of shape [1]; return None for None."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    tensor = value.cpu() if isinstance(value, torch.Tensor) else torch.tensor([value])
    wanted = torch_dtype(dtype)
    return tensor if wanted is None else tensor.to(wanted)


def to_trt_weights(
    ctx: Conversion,
    value: torch.Tensor,
    name: str,
    layer_type_name: str = "",
    weight_type_name: str = "",
    target: Target = None,
    source_ir: SourceIR | None = None,
    count: int | None = None,
) -> Argument:
    """Create ``trt.Weights`` from the CPU tensor ``value``, which is kept alive until the engine is built. Weights of a
    parameter can be refitted. The parameters after ``value`` have no effect."""
    return as_context(ctx).trt_weights(value)


@block
def append(original_tensor: Argument, new_value: Argument, dim: int = 0) -> Expression:
    """Append a value to the end of a tensor along a dim."""
    return call(aten.cat.default, [original_tensor, _cast_like(new_value, original_tensor)], dim)


@block
def set_item(original_tensor: Argument, index: int, new_value: Argument) -> Expression:
    """Replace the value at an index of a tensor's first dim by another value."""
    parts = call(aten.slice.Tensor, original_tensor, 0, 0, index), _cast_like(new_value, original_tensor)
    rest = [call(aten.slice.Tensor, original_tensor, 0, index + 1, None)] if index != -1 else []
    return call(aten.cat.default, [*parts, *rest], 0)


def _cast_like(value: Argument, like: trt.ITensor) -> Argument:
    """Return a value as a tensor with the dtype of ``like`` and at least one dim."""
    if not isinstance(value, trt.ITensor):
        value = torch.as_tensor([value] if isinstance(value, bool | int | float) else value)
    wanted = base.dtype_of(like)
    return value if base.dtype_of(value) == wanted else call(aten._to_copy.default, value, dtype=wanted)


def get_node_name(node: Node) -> str:
    """Return the path of the module that created a node, followed by the node's name."""
    return layer_name(node)


def get_node_io(node: Node, constant_mapping: Mapping[str, Argument] | None = None) -> str:
    """Return a node's inputs and result as text: ``x: float32[2, 3] -> float32[2, 3]``."""
    given = ", ".join(f"{each.name}: {describe_value(each.meta.get('val'))}" for each in node.all_input_nodes)
    return f"{given} -> {describe_value(node.meta.get('val'))}"


def is_only_operator_on_placeholder(node: Node, settings: CompilationSettings | None = None) -> bool:
    """Return whether a node is the only operator between an input (or constant) of the program and an output."""
    reads = any(each.op == "placeholder" for each in node.all_input_nodes)
    return node.op == "call_function" and reads and any(user.op == "output" for user in node.users)


def has_dynamic_shapes(node: Node) -> bool:
    """Return whether the node's result or one of its arguments has a dynamic size."""
    return any(describe_symbolic_dims(node.args, node.kwargs, node.meta.get("val")))


def has_static_shapes(node: Node) -> bool:
    """Return whether the node's result and arguments have static sizes only."""
    return not has_dynamic_shapes(node)


def has_dynamic_shapes_in_args(arg_positions_to_check: Sequence[int] | None = None) -> Callable[[Node], bool]:
    """Return a validator that accepts calls with a dynamic size in an argument at these positions (None: in any)."""

    def dynamic(node: Node) -> bool:
        """Sizes of these arguments vary."""
        positions = range(len(node.args)) if arg_positions_to_check is None else arg_positions_to_check
        return any(describe_symbolic_dims([node.args[i] for i in positions], {}, None))

    return dynamic


def has_static_shapes_in_args(arg_positions_to_check: Sequence[int] | None = None) -> Callable[[Node], bool]:
    """Return a validator that accepts calls whose arguments at these positions (None: all) have only static sizes."""
    dynamic = has_dynamic_shapes_in_args(arg_positions_to_check)

    def static(node: Node) -> bool:
        """Sizes of these arguments do not vary."""
        return not dynamic(node)

    return static


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
    """Add an activation layer; ``alpha`` and ``beta`` are the layer's; ``dyn_range_fn`` has no effect."""
    return activation.convert_activation(network, target, SourceIR.ACC, name, operation_type, input_val, alpha, beta)


def add_unary_layer(
    network: Conversion, input_val: Argument, operation_type: trt.UnaryOperation, target: Target, name: str
) -> trt.ITensor:
    """Add a unary layer to the network, as `impl.unary.convert_unary` does."""
    return unary.convert_unary(network, target, SourceIR.ACC, name, operation_type, input_val)


def add_binary_elementwise_layer(
    network: Conversion,
    lhs_val: Argument,
    rhs_val: Argument,
    op_type: trt.ElementWiseOperation,
    target: Target,
    name: str,
) -> trt.ITensor:
    """Add an elementwise layer of two operands, as `impl.elementwise.convert_binary_elementwise` does."""
    return elementwise.convert_binary_elementwise(network, target, SourceIR.ACC, name, op_type, lhs_val, rhs_val)


def add_matrix_multiply_layer(
    network: Conversion,
    input_val: Argument,
    other_val: Argument,
    target: Target,
    name: str,
    transpose_other: bool = False,
) -> trt.ITensor:
    """Add a matrix multiplication to the network, as `impl.matmul.matrix_multiply` does."""
    operation = trt.MatrixOperation.TRANSPOSE if transpose_other else trt.MatrixOperation.NONE
    return matmul.matrix_multiply(network, target, SourceIR.ACC, name, input_val, other_val, other_matrix_op=operation)


def type_cast(network: Conversion, target: Target, name: str, input: Argument, cast_type: Argument) -> trt.ITensor:
    """Add a cast to another dtype to the network, as `impl.cast.to_copy` does."""
    return cast.to_copy(network, target, SourceIR.ACC, name, input, cast_type)


TYPED: Final = "networks are strongly typed: a dynamic range has nothing to set"
QUANTIZE: Final = "quantize the model before it is compiled"

mark_as_int8_layer = unsupported("mark_as_int8_layer", TYPED, QUANTIZE)
get_dyn_range = unsupported("get_dyn_range", TYPED, QUANTIZE)
load_tensorrt_llm_for_nccl = unsupported(
    "load_tensorrt_llm_for_nccl",
    "collectives have no converters here, and TensorRT-RTX has no plugin layers",
    "leave the collective to PyTorch: an operator without a converter runs there",
)
