"""Add matmuls and linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from pipeline.impl import barriers, base
from pipeline.impl.barriers import is_marked
from pipeline.impl.base import ITensor, Net, Size, SymbolicInt, Value, block, network_query
from pipeline.impl.elementwise import HALVES, arithmetic_dtype, binary
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import bounds_of, size_sum, strided_slice
from pipeline.quirks import is_avoided, matmul_neighbours
from pipeline.trt import trt

CONFUSED: Final = "factors-of-matmuls"


@block
def matmul(net: Net, a: Value, b: Value, *, transpose_b: bool = False, may_be_empty: bool = True) -> ITensor:
    """Return ``a @ b``; leading dims broadcast, and a 1-d operand is a vector. Floats accumulate in float32; integer
    results are exact. ``may_be_empty``: the contracted dim may have size 0, for which the result is 0."""
    result = _multiply_matrices(net, a, b, transpose_b=transpose_b, may_be_empty=may_be_empty)
    return base.cast(net, result, base.result_type(a, b))


def _multiply_matrices(
    net: Net, a: Value, b: Value, *, transpose_b: bool = False, may_be_empty: bool = True, outer_product: bool = True
) -> ITensor:
    """Return ``a @ b`` in the dtype of ``a``. ``may_be_empty``: whether to pad a contracted dim that may be empty;
    ``outer_product``: as in `linear`."""
    op_a, op_b = _matrix_operation(base.rank(a), False), _matrix_operation(base.rank(b), transpose_b)
    batch = max(base.rank(a), base.rank(b), 2) - 2  # TensorRT requires equal ranks
    x = base.tensor(net, a, rank=batch + min(base.rank(a), 2))
    y = base.tensor(net, b, rank=batch + min(base.rank(b), 2))
    dtype = base.dtype_of(x)
    if _expressed_in_float32(net, dtype):
        x, y = (base.cast(net, v, torch.float32) for v in (x, y))
    if not dtype.is_floating_point:
        x, y = (base.cast(net, v, arithmetic_dtype(dtype)) for v in (x, y))
        x, y = _as_matrix(net, x, op_a, -2), _as_matrix(net, y, op_b, -1)
        return base.cast(net, _integer_matmul(net, x, y, op_a, op_b), dtype)
    if base.dims(x) == base.dims(y) == (0,):  # RTX 1.4 does not build a matmul of two empty vectors
        row, column = base.unsqueeze(net, x, [0]), base.unsqueeze(net, y, [1])
        return base.squeeze(net, _add_matmul_layer(net, row, column), [0, 1])
    dims = (base.rank(x) - 1, base.rank(y) - 1 - (op_b == trt.MatrixOperation.NONE))
    if outer_product and base.known_sizes(net, x)[dims[0]] == base.known_sizes(net, y)[dims[1]] == 1:
        return base.cast(net, _outer_product(net, (a, x), (b, y), op_a, op_b), dtype)
    longer = _padded_length(net, (x, y), dims, may_be_empty)
    if longer is not None:
        x, y = (strided_slice(net, v, [d], [0], [longer], mode="FILL") for v, d in zip((x, y), dims, strict=True))
    product = _add_matmul_layer(net, x, y, op_a, op_b)
    if isinstance(a, trt.ITensor) and isinstance(b, trt.ITensor):
        is_dynamic = -1 in (*base.dims(product)[-2:], base.dims(x)[dims[0]])  # so its kernel may be that of another
        confused = is_dynamic and is_marked(net, CONFUSED, matmul_neighbours.OF_SIZES)
        product = barriers.flat_barrier(net, product, CONFUSED) if confused else product
    return base.cast(net, product, dtype)


@network_query
def _expressed_in_float32(net: Net, dtype: torch.dtype) -> bool:
    """Return whether a matmul of this dtype is built as a float32 matmul between casts, which TensorRT fuses to a
    half-precision kernel with float32 accumulation. A bias is then added to the rounded product; before the rounding,
    it would make TensorRT keep the weights in float32."""
    asked = net.ctx.compilation_settings.use_fp32_acc
    if asked is None:
        return dtype == torch.float16 and is_avoided("matmul-sums")
    return asked and dtype in HALVES


def _padded_length(net: Net, operands: Sequence[ITensor], dims: Sequence[int], may_be_empty: bool) -> Size | None:
    """Return the contracted dim's size plus one if both operands must be padded along it with a zero, else None.

    Padding is required in two cases: the size may be 0 (with ``may_be_empty``), for which RTX 1.4 returns 0 for the
    whole kernel, including terms added to the matmul; or it may be odd, for which TensorRT's own padding is buggy
    (`pipeline.quirks.zero_padded_k`).
    """
    sizes = [base.known_sizes(net, x)[dim] for x, dim in zip(operands, dims, strict=True)]
    if may_be_empty:
        for size in sizes:
            if isinstance(size, SymbolicInt) and bounds_of(net, size.expr)[0] < 1:
                return size_sum([size, 1])
    static = base.dims(operands[0])[dims[0]]
    if static % 2 == 0 or not is_marked(net, "padded-zeros"):
        return None
    if static != -1:
        return static + 1
    known = next((size for size in sizes if isinstance(size, SymbolicInt)), None)
    if known is not None:
        return size_sum([known, 1])
    return base.elementwise(net, "SUM", base.size(net, operands[0], dims[0]), base.size_tensor(net, 1))


def _add_matmul_layer(
    net: Net,
    x: ITensor,
    y: ITensor,
    op_a: trt.MatrixOperation = trt.MatrixOperation.NONE,
    op_b: trt.MatrixOperation = trt.MatrixOperation.NONE,
) -> ITensor:
    """Add a matmul layer. If a kernel must not also round its float32 result to half precision, record this in
    `ctx.rounded_apart`, so that `base.cast` adds a barrier (`halves-behind-matmuls`). With two or more batch dims, RTX
    1.4 builds a wrong kernel for bfloat16, and none for float16; nor any for float16 if an operand is from float32."""
    product: ITensor = net.add("matrix_multiply", x, op_a, y, op_b).get_output(0)
    if product.dtype == trt.float32 and is_avoided(base.ROUNDED):
        if base.rank(product) > 3:
            net.ctx.rounded_apart[id(product)] = HALVES, base.ROUNDED, product
        elif is_marked(net, base.ROUNDED):
            net.ctx.rounded_apart[id(product)] = (torch.float16,), base.ROUNDED, product
    return product


@block
def separate_transpose(net: Net, x: Value, tensor_name: str = "") -> Value:
    """Add a barrier to a transposed operand or result of a matmul: TensorRT-RTX computes such a matmul transposed, and
    may use a batch's first matrix for the whole batch (`transposed-matmuls`). ``tensor_name``: if given, add it only if
    a `Mark` of the current node has this name, that of an input or `matmul_neighbours.RESULT`."""
    row = _transposed_matmul_bug(x)
    if not isinstance(x, trt.ITensor) or not row or (tensor_name and not is_marked(net, row, tensor_name)):
        return x
    batches = base.dims(x)[:-2]
    return base.barrier(net, x, row) if batches and batches[0] != 1 else x


def _transposed_matmul_bug(x: Value) -> str:
    """Return the name of the kernel bug of transposed matmuls for this tensor's dtype; "" if there is none."""
    dtype = base.dtype_of(x)
    return "transposed-matmuls" if dtype in HALVES else "transposed-float32-matmuls" if dtype == torch.float32 else ""


def _matrix_operation(rank: int, transpose: bool) -> trt.MatrixOperation:
    if rank == 1:
        return trt.MatrixOperation.VECTOR
    return trt.MatrixOperation.TRANSPOSE if transpose else trt.MatrixOperation.NONE


def _as_matrix(net: Net, x: ITensor, operation: trt.MatrixOperation, dim: int) -> ITensor:
    """Return a matmul's operand as a matrix: insert dim ``dim`` into a vector, and transpose a transposed matrix."""
    rank = base.rank(x)
    if operation == trt.MatrixOperation.VECTOR:
        return base.unsqueeze(net, x, [base.axis(dim, rank + 1)])
    if operation == trt.MatrixOperation.TRANSPOSE:
        return base.permute(net, x, [*range(rank - 2), -1, -2])
    return x


def _outer_product(
    net: Net, a: tuple[Value, ITensor], b: tuple[Value, ITensor], op_a: trt.MatrixOperation, op_b: trt.MatrixOperation
) -> ITensor:
    """Compute a matmul whose contracted dim has size 1 as an elementwise product of expanded operands: TensorRT's
    implicit broadcast is wrong if the kernel of a reduction computes an operand (`broadcast-in-reductions`). ``a``,
    ``b``: each operand as given, and as a tensor; one that is given as a constant needs no expansion."""
    x, y = _as_matrix(net, a[1], op_a, -2), _as_matrix(net, b[1], op_b, -1)
    rank, vector = base.rank(x), trt.MatrixOperation.VECTOR
    sizes = [m if n == 1 else n for m, n in zip(base.sizes(net, x), base.sizes(net, y), strict=True)]
    spread = (base.expand(net, v, sizes) if isinstance(given[0], trt.ITensor) else v for v, given in ((x, a), (y, b)))
    product = base.elementwise(net, "PROD", *spread)
    return base.squeeze(net, product, [rank - 2] * (op_a == vector) + [rank - 1] * (op_b == vector))


def _integer_matmul(net: Net, a: ITensor, b: ITensor, op_a: trt.MatrixOperation, op_b: trt.MatrixOperation) -> ITensor:
    """Multiply integer matrices by elementwise products and a sum, since TensorRT's matmul does not accept integers."""
    rank = base.rank(a)
    left, right = base.unsqueeze(net, a, [rank]), base.unsqueeze(net, b, [rank - 2])
    products = base.elementwise(net, "PROD", left, right)
    vector = trt.MatrixOperation.VECTOR
    total = reduce(net, "SUM", products, [rank - 1], False)
    return base.squeeze(net, total, [rank - 2] * (op_a == vector) + [rank - 1] * (op_b == vector))


@block
def linear(net: Net, x: Value, weight: Value, bias: Value | None, *, outer_product: bool = True) -> ITensor:
    """Return ``x @ weight.T + bias``. ``outer_product``: whether a contracted size of 1 means elementwise products."""
    result = _multiply_matrices(net, x, weight, transpose_b=base.rank(weight) == 2, outer_product=outer_product)
    result = result if bias is None else binary(net, "SUM", result, bias)
    result = base.cast(net, result, base.result_type(x, weight))
    row = _transposed_matmul_bug(result)
    if is_marked(net, row, matmul_neighbours.RESULT):
        return base.barrier(net, result, row)
    confused = -1 not in base.dims(result) and is_marked(net, CONFUSED, matmul_neighbours.BESIDE_SIZES)
    return base.barrier(net, result, CONFUSED) if confused else result


@block
def add_matmul(net: Net, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1) -> ITensor:
    """Return ``beta * x + alpha * (a @ b)``; if beta is 0, ``x`` is ignored, even if it contains NaN."""
    result, product = base.result_type(a, b), _multiply_matrices(net, a, b)
    dtype = base.dtype_of(product)
    if alpha != 1:
        product = binary(net, "PROD", product, _truncate_for_integer_dtype(alpha, dtype), dtype)
    if beta == 0:
        return base.cast(net, product, result)
    scaled = x if beta == 1 else binary(net, "PROD", x, _truncate_for_integer_dtype(beta, dtype), dtype)
    return base.cast(net, binary(net, "SUM", product, scaled, dtype), result)


def _truncate_for_integer_dtype(value: float, dtype: torch.dtype) -> float:
    return value if dtype.is_floating_point else int(value)
