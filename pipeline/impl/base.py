"""Provide helpers for all building blocks: constants, casts, ranks, shapes, and type promotion as in eager.

A *tensor* argument may be an ``ITensor``, a CPU ``torch.Tensor`` or a Python number; a *size* may be an int, a
``SymbolicInt`` or a 1-element ``ITensor``. The decorators of building blocks and `Net` are exported from here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from pipeline.impl.block_decorators import block as block
from pipeline.impl.block_decorators import network_query as network_query
from pipeline.impl.expression import operation_of, solve_for_symbol, tensor_and_dim_of_size
from pipeline.network.context import NetworkError, content_name
from pipeline.network.context import SymbolicInt as SymbolicInt
from pipeline.network.net import Net as Net
from pipeline.quirks import is_avoided
from pipeline.shapes.environment import bounds, is_host_int
from pipeline.trt import to_torch, to_trt, trt

ITensor: TypeAlias = trt.ITensor
Size: TypeAlias = Any
Value: TypeAlias = Any
ROUNDED: Final = "halves-behind-matmuls"
INTEGERS: Final = "rounded-integers"
NUMBERS: Final = (bool, int, float, complex)


@block
def constant(net: Net, value: Value, dtype: torch.dtype | None = None, *, rank: int = 0) -> ITensor:
    """Return a constant of at least ``rank``, with leading dims of size 1 if necessary; equal constants share a layer.
    A number is stored in ``dtype``; a tensor is cast by a layer, since a weight keeps the model's dtype."""
    given = isinstance(value, torch.Tensor)
    tensor = value if given else torch.as_tensor(value, dtype=dtype)
    tensor = tensor.int() if tensor.dtype == torch.uint8 else tensor
    shape = (1,) * (rank - tensor.dim()) + tuple(tensor.shape)

    def layer() -> ITensor:
        return net.add("constant", shape, net.ctx.trt_weights(tensor)).get_output(0)

    output = net.ctx.cached("constant", value if given else content_name(tensor), layer, *shape)
    return output if dtype is None else cast(net, output, dtype)


@block
def tensor(net: Net, value: Value, dtype: torch.dtype | None = None, *, rank: int = 0) -> ITensor:
    """Convert any value to an ``ITensor`` of at least ``rank`` (with leading dims), cast to ``dtype`` if given."""
    if isinstance(value, SymbolicInt):
        value = size_as_scalar(net, value)
    if not isinstance(value, trt.ITensor):
        return constant(net, value, dtype, rank=rank)
    value = value if dtype is None else cast(net, value, dtype)
    return raise_rank(net, value, rank)


@block
def cast(net: Net, x: ITensor, dtype: torch.dtype) -> ITensor:
    """Cast a tensor to a dtype, avoiding bugs of TensorRT's kernels; return it unchanged if it already has the dtype.

    A cast from float32 to bfloat16 must not be the last operation of a matmul's or convolution's kernel
    (`halves-behind-matmuls`), so a barrier follows the cast; a dim that was added for a convolution is removed after
    the cast. The results of some matmuls are cast in a separate kernel (see `matmul`).

    Integers are cast to half precision via float32 and a barrier (`rounded-integers`).
    """
    if x.dtype == to_trt(network_dtype(dtype)):
        return x
    if dtype == torch.bool:
        return unary(net, "NOT", is_zero(net, x))
    if x.dtype in (trt.int32, trt.int64) and dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = plain_cast(net, x, torch.float32)
        net.ctx.rounded_apart[id(x)] = (torch.float16, torch.bfloat16), INTEGERS, x
        return cast(net, x, dtype)
    rounds = x.dtype == trt.float32 and is_avoided(ROUNDED)
    if rounds and dtype == torch.bfloat16 and (found := net.ctx.squeezed.get(id(x))):
        given, added, _ = found
        return squeeze(net, cast(net, given, dtype), added)
    dtypes, quirk, _ = net.ctx.rounded_apart.get(id(x), ((), "", x))
    x = barrier(net, x, quirk) if dtype in dtypes else x
    result = plain_cast(net, x, dtype)
    return barrier(net, result, ROUNDED) if rounds and dtype == torch.bfloat16 else result


@block
def plain_cast(net: Net, x: ITensor, dtype: torch.dtype) -> ITensor:
    """Cast a tensor by a single layer, as TensorRT's fused patterns require."""
    wanted = to_trt(network_dtype(dtype))
    return x if x.dtype == wanted else net.add("cast", x, wanted).get_output(0)


@block
def is_zero(net: Net, x: ITensor) -> ITensor:
    """Return whether each element is zero or False. A bool is always created by a comparison, never by a cast: RTX 1.4
    drops two casts from int32 to bool and back, so that 3 stays 3."""
    dtype = dtype_of(x)
    if dtype == torch.bool:
        return unary(net, "NOT", x)
    x = cast(net, x, torch.int32) if dtype == torch.int8 else x
    return elementwise(net, "EQUAL", x, constant(net, 0, dtype_of(x), rank=rank(x)))


def dtype_of(value: Value) -> torch.dtype:
    """Return the torch dtype of a tensor or Python number (bool, int64, or the default float dtype)."""
    if isinstance(value, trt.ITensor):
        return to_torch(value.dtype)
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, SymbolicInt):
        return torch.int64
    return torch.as_tensor(value).dtype


def network_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that represents a torch dtype in networks: float32 for float64 (``truncate_double``), and int32
    for uint8, which TensorRT accepts only as a network's input and output (``to_uint8`` wraps values)."""
    return {torch.float64: torch.float32, torch.uint8: torch.int32}.get(dtype, dtype)


@block
def to_uint8(net: Net, x: ITensor) -> ITensor:
    """Convert numbers to uint8 values, modulo 256, in the int32 tensor that represents them."""
    dtype = dtype_of(x)
    if dtype == torch.bool:
        return cast(net, x, torch.int32)
    x = cast(net, x, torch.int64) if dtype.is_floating_point else x
    size = constant(net, 256, dtype_of(x), rank=rank(x))
    above = elementwise(net, "PROD", elementwise(net, "FLOOR_DIV", x, size), size)
    return cast(net, elementwise(net, "SUB", x, above), torch.int32)


def dims(x: Value) -> tuple[int, ...]:
    """Return the sizes of a tensor, -1 for dynamic dims; raise a NetworkError if TensorRT cannot compute them."""
    try:
        return tuple(x.shape)
    except ValueError:
        raise NetworkError("TensorRT cannot infer the shape of a layer's output; see TensorRT's log") from None


def rank(x: Value) -> int:
    return len(dims(x)) if isinstance(x, (trt.ITensor, torch.Tensor)) else 0


def axis(dim: int, rank: int) -> int:
    """Return the non-negative index of a dim, which may count from the end."""
    return dim + rank if dim < 0 else dim


def axes_mask(axes: Sequence[int], rank: int) -> int:
    """Convert dims to TensorRT's bit mask of axes."""
    return sum(1 << a for a in {axis(a, rank) for a in axes})


def result_type(*values: Value) -> torch.dtype:
    """Return the dtype to which eager promotes values: tensors take precedence over 0-d tensors, these over numbers."""
    examples: list[Any] = []
    for value in values:
        if isinstance(value, (trt.ITensor, torch.Tensor)):
            examples.append(torch.empty((1,) * min(rank(value), 1), dtype=dtype_of(value), device="meta"))
        else:
            examples.append(1 if isinstance(value, SymbolicInt) else value)
    if len(examples) == 2:
        return torch.result_type(*examples)
    tensors = [v for v in examples if isinstance(v, torch.Tensor)]
    numbers = sorted((v for v in examples if not isinstance(v, torch.Tensor)), key=lambda v: NUMBERS.index(type(v)))
    kinds = [[v for v in tensors if v.dim()], [v for v in tensors if not v.dim()]]
    promoted: list[Any] = [
        torch.empty_like(k[0], dtype=reduce(torch.promote_types, [v.dtype for v in k])) for k in kinds if k
    ]
    result, *weaker = [*promoted, *numbers[-1:]]
    for other in weaker:
        result = torch.empty_like(result, dtype=torch.result_type(result, other))
    return torch.result_type(result, result)


@block
def raise_rank(net: Net, x: ITensor, minimum: int) -> ITensor:
    """Add leading dims of size 1 until the tensor has at least the rank ``minimum``."""
    missing = minimum - rank(x)
    return unsqueeze(net, x, range(missing)) if missing > 0 else x


@block
def unsqueeze(net: Net, x: ITensor, axes: Sequence[int]) -> ITensor:
    """Insert dims of size 1, so that they have the indices ``axes`` in the result."""
    if not axes:
        return x
    result = list(known_sizes(net, x))
    places = constant(net, np.array(list(axes), dtype=np.int64))
    for place in sorted(axis(a, rank(x) + len(axes)) for a in axes):
        result.insert(place, 1)
    return with_sizes(net, net.add("unsqueeze", x, places).get_output(0), result)


@block
def squeeze(net: Net, x: ITensor, axes: Sequence[int]) -> ITensor:
    """Remove the dims ``axes``, which have size 1."""
    if not axes:
        return x
    places = constant(net, np.array(list(axes), dtype=np.int64))
    gone = {axis(a, rank(x)) for a in axes}
    result = [s for i, s in enumerate(known_sizes(net, x)) if i not in gone]
    return with_sizes(net, net.add("squeeze", x, places).get_output(0), result)


@block
def size(net: Net, x: ITensor, dim: int) -> Size:
    """Return the size of a dim: an int if it is static, else a tensor of one element."""
    static = dims(x)[dim]
    if static >= 0:
        return static
    known = known_sizes(net, x)[dim]
    if isinstance(known, SymbolicInt):
        return _compute_expression(net, known.expr)
    dim = axis(dim, rank(x))
    return net.ctx.cached("size", x, lambda: _slice_size_from_shape(net, _shape_of(net, x), dim), dim)


@network_query
def known_sizes(net: Net, x: Value) -> list[Size]:
    """Return a tensor's sizes without adding layers: an int, an expression, or None if unknown."""
    _, shape = net.ctx.shapes.get(id(x), (x, None))
    if shape is None:
        return [s if s >= 0 else None for s in dims(x)]
    return [s if isinstance(s, int) else SymbolicInt(s) for s in shape]


@network_query
def with_sizes(net: Net, x: ITensor, sizes: Sequence[Size | None]) -> ITensor:
    """Return a tensor, and record its sizes for `known_sizes` if all of them are ints or ``SymbolicInt``s."""
    if all(isinstance(s, (int, SymbolicInt)) for s in sizes):
        net.ctx.record_shape(x, tuple(s.expr if isinstance(s, SymbolicInt) else s for s in sizes))
    return x


@block
def sizes(net: Net, x: ITensor) -> list[Size]:
    return [size(net, x, d) for d in range(rank(x))]


def _shape_of(net: Net, x: ITensor) -> ITensor:
    return net.ctx.cached("shape", x, lambda: cast(net, net.add("shape", x).get_output(0), torch.int64))


def _slice_size_from_shape(net: Net, shape: ITensor, dim: int) -> ITensor:
    """Return the size of ``dim``, a tensor [1], from ``shape``, which contains the sizes of all dims."""
    return net.add("slice", shape, (dim,), (1,), (1,)).get_output(0)


@block
def shape_tensor(net: Net, shape: Sequence[Size]) -> ITensor:
    """Return sizes as a 1-d int64 tensor, as layers read a shape."""
    if all(isinstance(s, int) for s in shape):
        return constant(net, np.array(shape, dtype=np.int64))
    parts = [size_tensor(net, s) for s in shape]
    if len(parts) == 1:
        return parts[0]
    layer = net.add("concatenation", parts)
    layer.axis = 0
    return layer.get_output(0)


@block
def size_tensor(net: Net, value: Size) -> ITensor:
    """Return a size as an int64 tensor of rank 1 with one element."""
    if isinstance(value, trt.ITensor):
        value = cast(net, value, torch.int64)
        return value if rank(value) == 1 else unsqueeze(net, value, [0])
    if isinstance(value, SymbolicInt):
        return _compute_expression(net, value.expr)
    return constant(net, np.array([value], dtype=np.int64))


@block
def size_as_scalar(net: Net, value: Size) -> ITensor:
    """Return a size as an int64 tensor of rank 0."""
    return squeeze(net, size_tensor(net, value), [0])


def _compute_expression(net: Net, expr: Any) -> ITensor:
    """Return the value of a size expression, computed from the shapes of the network's inputs; cached."""
    return net.ctx.cached("expression", str(expr), lambda: _add_layers_computing_size(net, expr))


def _add_layers_computing_size(net: Net, expr: Any) -> ITensor:
    if isinstance(expr, int) or expr.is_Integer:
        return constant(net, np.array([int(expr)], dtype=np.int64))
    if expr.is_Symbol and str(expr) not in net.ctx.symbols:
        return _add_layers_computing_size(net, solve_for_symbol(net.ctx, expr))
    if expr.is_Symbol or is_host_int(expr):
        source, dim = net.ctx.symbols[str(expr)]
        return size_tensor(net, source) if dim is None else _slice_size_from_shape(net, _shape_of(net, source), dim)
    if (found := tensor_and_dim_of_size(net.ctx, expr)) is not None:
        return _slice_size_from_shape(net, _shape_of(net, found[0]), found[1])
    layer, operands = operation_of(expr)
    result, *rest = [_compute_expression(net, operand) for operand in operands]
    for other in rest:
        result = elementwise(net, layer, result, other)
    return result


@block
def elementwise(net: Net, operation: str, a: ITensor, b: ITensor) -> ITensor:
    """Add an elementwise layer by the name of its operation; ranks and dtypes of both operands must be equal."""
    return net.add("elementwise", a, b, trt.ElementWiseOperation.__members__[operation]).get_output(0)


@block
def barrier(net: Net, x: ITensor, quirk: str) -> ITensor:
    """Add a barrier to a tensor if this TensorRT has the kernel bug ``quirk``. The barrier is the maximum of the tensor
    and itself: unlike an identity, TensorRT does not remove this layer, and does not fuse across it."""
    return elementwise(net, "MAX", x, x) if is_avoided(quirk) else x


@block
def unary(net: Net, operation: str, x: ITensor) -> ITensor:
    """Add a unary layer by the name of its operation."""
    return net.add("unary", x, trt.UnaryOperation.__members__[operation]).get_output(0)


@block
def reshape(net: Net, x: ITensor, shape: Sequence[Size]) -> ITensor:
    """Reshape a tensor; one size may be -1. For a dynamic size that TensorRT cannot copy or infer, layers are added."""
    known = known_sizes(net, x)
    if None not in known and list(shape) == known:
        return x
    layer = net.add("shuffle", x)
    layer.zero_is_placeholder = False
    dynamic = [i for i, s in enumerate(shape) if not isinstance(s, int)]
    kept = [i for i in dynamic if i < len(known) and known[i] == shape[i]]
    inferred = len(dynamic) - len(kept) + list(shape).count(-1)
    if not dynamic:
        layer.reshape_dims = tuple(shape)
    elif 0 not in shape and inferred <= 1 and (not inferred or len(dynamic) == 1 or _has_no_empty_dim(net, shape)):
        layer.zero_is_placeholder = bool(kept)
        layer.reshape_dims = tuple(0 if i in kept else s if isinstance(s, int) else -1 for i, s in enumerate(shape))
    else:
        layer.set_input(1, shape_tensor(net, _infer_one_size(net, shape)))
    return with_sizes(net, layer.get_output(0), [None if s == -1 else s for s in shape])


def _infer_one_size(net: Net, shape: Sequence[Size]) -> list[Size]:
    """Replace the size that needs the most layers to compute by -1, if the other sizes determine it."""
    costs = [s.expr.count_ops() if isinstance(s, SymbolicInt) else 0 for s in shape]
    place = costs.index(max(costs))
    computed = any(isinstance(s, trt.ITensor) for s in shape)  # one may be 0, and -1 would be ambiguous
    if computed or 0 in shape or -1 in shape or not costs[place] or not _has_no_empty_dim(net, shape):
        return list(shape)
    return [-1 if i == place else s for i, s in enumerate(shape)]


def _has_no_empty_dim(net: Net, shape: Sequence[Size]) -> bool:
    """Return whether all sizes are provably positive: only then -1 is well-defined in a reshape."""
    symbolic = [s.expr for s in shape if isinstance(s, SymbolicInt)]
    known = all(str(symbol) in net.ctx.ranges for expr in symbolic for symbol in expr.free_symbols)
    return known and all(bounds(expr, net.ctx.ranges).min > 0 for expr in symbolic)


@block
def permute(net: Net, x: ITensor, order: Sequence[int]) -> ITensor:
    """Permute the dims of a tensor."""
    order = [axis(d, rank(x)) for d in order]
    if order == sorted(order):
        return x
    layer = net.add("shuffle", x)
    layer.first_transpose = trt.Permutation(order)
    known = known_sizes(net, x)
    return with_sizes(net, layer.get_output(0), [known[d] for d in order])


@block
def expand(net: Net, x: ITensor, shape: Sequence[Size]) -> ITensor:
    """Broadcast a tensor to a shape of the same or a higher rank; a size of -1 keeps the tensor's size."""
    x = raise_rank(net, x, len(shape))
    known, current = known_sizes(net, x), dims(x)
    axes = [i for i, s in enumerate(shape) if s not in (-1, known[i], current[i])]
    if not axes:
        return x
    target, none = [shape[i] for i in axes], (0,) * len(axes)
    if all(isinstance(s, int) for s in target):
        layer = net.add("slice", x, none, tuple(target), none)
    else:
        layer = net.add("slice", x, none, none, none)
        layer.set_input(2, shape_tensor(net, target))
    layer.axes = tuple(axes)
    if any(current[i] != 1 for i in axes):  # strides computed at run time: 0 for a dim of size 1, else 1
        one = constant(net, np.array([1], dtype=np.int64))
        sizes = [size_tensor(net, size(net, x, i)) for i in axes]
        more = [elementwise(net, "SUB", s, one) for s in sizes]
        layer.set_input(3, shape_tensor(net, [elementwise(net, "MIN", m, one) for m in more]))
    return with_sizes(net, layer.get_output(0), [known[i] if s == -1 else s for i, s in enumerate(shape)])
