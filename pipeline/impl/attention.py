"""Add scaled dot-product attention: a fused kernel (by TensorRT's layer or a pattern), or separate layers."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.impl import attention_limits as limits
from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, Size, Value, block, network_query
from pipeline.impl.elementwise import where
from pipeline.impl.matmul import matmul, separate_transpose
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import as_size, bounds_of, expression, size_product, strided_slice
from pipeline.impl.slice import narrow
from pipeline.impl.softmax import softmax
from pipeline.network.context import NetworkError, SymbolicInt
from pipeline.quirks import is_avoided
from pipeline.trt import trt

ABSENT = {4: (), 3: (1,), 2: (0, 1)}
"""The positions among (batch, heads, queries, width) of the dims that an attention lacks, by its rank."""
MANY_KEYS = 128
"""The minimum number of keys for which single-query attention with grouped heads uses separate kernels. With 4 key
heads for 32 query heads on an H100 (RTX 1.4, float16) 16 attentions took 11.4 µs fused and 9.7 separately (128 keys,
batch 1), 23.0 and 12.7 (512 keys), 17.7 and 12.4 (128 keys, batch 8). With equal heads TensorRT fuses."""
MAX_SCORES = 1 << 25
"""If the number of queries is dynamic, separate kernels, which store all scores, compute at most so many per batch."""


@block
def fused_attention(
    net: Net,
    query: ITensor,
    key: ITensor,
    value: ITensor,
    mask: Value | None,
    *,
    has_unmasked_keys: bool,
    causal: bool,
    scale: float,
) -> ITensor:
    """Add an attention that a fused kernel computes; it must meet the conditions of ``attention_limits``. The result
    for a query whose keys are all masked is 0; ``has_unmasked_keys`` says that no query is fully masked."""
    rank, own = base.rank(query), base.dims(value)[-1]
    width = limits.padded_head_dim(base.dims(query)[-1], own)
    padded = []
    for x in (_raise_to_rank_4(net, each) for each in (query, key, value)):
        fits = width in (None, base.dims(x)[-1])
        padded.append(x if fits else strided_slice(net, x, [3], [0], [width], mode="FILL"))
    query, key, value = padded
    bias = None if mask is None else _raise_to_rank_4(net, base.tensor(net, mask, rank=max(rank, 2)))
    if limits.BY_LAYER:
        result = _add_attention_layer(net, _scale_query(net, query, scale), key, value, bias, causal=causal)
    else:
        result = _add_fusible_layers(net, query, key, value, bias, causal=causal, scale=scale)
    if bias is not None and not has_unmasked_keys:
        result = _zero_if_masked(net, result, bias)
    if own != base.dims(result)[-1]:
        result = strided_slice(net, result, [3], [0], [own])
    return base.squeeze(net, result, ABSENT[rank])


def _raise_to_rank_4(net: Net, x: ITensor) -> ITensor:
    return base.unsqueeze(net, x, ABSENT[base.rank(x)])


def _add_attention_layer(
    net: Net, query: ITensor, key: ITensor, value: ITensor, mask: ITensor | None, *, causal: bool
) -> ITensor:
    norm = trt.AttentionNormalizationOp.SOFTMAX
    mark = net.ctx.log.position()
    layer = net.ctx.net.add_attention(query, key, value, norm, causal)
    if layer is None:
        raise NetworkError(f"TensorRT refused the attention layer ({net.ctx.log.error_text_since(mark)})")
    layer.name = net.ctx.make_unique_name(f"{net.name}:attention")
    if mask is not None:
        layer.mask = mask
    return layer.get_output(0)


def _add_fusible_layers(
    net: Net, query: ITensor, key: ITensor, value: ITensor, mask: ITensor | None, *, causal: bool, scale: float
) -> ITensor:
    """Add the pattern that TensorRT fuses: half-precision matmuls and a float32 softmax. Bool masks are added as 0 and
    -inf of the query's dtype. The causal mask is a comparison of positions that layers compute, which the kernel
    recognizes: RTX 1.4 drops a causal mask that selects scores by ``where``."""
    if causal and base.dims(query)[-2] == 1:  # it attends to the first key only; RTX would let it attend to all
        return keep_first_row(net, _repeat_heads(net, value, base.dims(query)[1]))
    if not causal and _is_faster_unfused(net, query, key, value):
        fraction, exponent = np.frexp(scale)  # scaling halves by a power of two is exact
        exact = scale if fraction == 0.5 else 2.0**exponent
        return _unfused_grouped_attention(net, _scale_query(net, query, exact), key, value, mask, scale / exact)
    return _attention_by_matmuls(net, _scale_query(net, query, scale), key, value, mask, gqa=True, causal=causal)


def _attention_by_matmuls(
    net: Net, query: ITensor, key: ITensor, value: ITensor, mask: ITensor | None, *, gqa: bool, causal: bool
) -> ITensor:
    """Add an attention as two matmuls in the operands' dtype with a float32 softmax between them."""
    if gqa and not causal and _is_faster_unfused(net, query, key, value):
        return _unfused_grouped_attention(net, query, key, value, mask)
    if gqa:
        key, value = (_repeat_heads(net, x, _number_of_heads(net, query)) for x in (key, value))
    query, lone = duplicate_single_query(net, query)
    scores = base.cast(net, matmul(net, query, key, transpose_b=True), torch.float32)
    if causal:  # aligned to the upper left corner of the scores
        rank = base.rank(scores)
        places = [_arange(net, base.size(net, scores, dim), rank, dim) for dim in (rank - 2, rank - 1)]
        mask = base.unary(net, "NOT", base.elementwise(net, "GREATER", *reversed(places)))
    weights = _attention_weights(net, scores, mask, base.dtype_of(query))
    result = _weighted_sum(net, weights, value, masked=mask is not None and not causal)
    return keep_first_row(net, result) if lone else result


def _attention_weights(net: Net, scores: ITensor, mask: ITensor | None, dtype: torch.dtype) -> ITensor:
    """Return the softmax of masked scores, computed in float32 and rounded to ``dtype``."""
    if mask is not None:
        scores = base.elementwise(net, "SUM", scores, _additive_mask(net, mask, dtype))
    return base.plain_cast(net, softmax(net, scores, -1), dtype)


def _weighted_sum(net: Net, weights: ITensor, value: ITensor, *, masked: bool) -> ITensor:
    """Multiply attention weights and values, inside the fused attention kernel.

    With float16 and a mask, this adds a float32 matmul and a cast to float16. TensorRT-RTX fuses both to a float16
    kernel that accumulates in float32. For a float16 matmul, it would accumulate in float16 and round after every 32
    keys, even masked ones (`masked-attention-sums`). A single query uses another kernel, without this bug.
    """
    widened = masked and base.dtype_of(value) == torch.float16 and is_avoided("masked-attention-sums")
    if not widened or 0 in base.dims(weights) or base.dims(weights)[-2] == 1:
        return matmul(net, weights, value, may_be_empty=False)
    wide = [base.cast(net, x, torch.float32) for x in (weights, value)]
    plain = trt.MatrixOperation.NONE
    summed = net.add("matrix_multiply", wide[0], plain, wide[1], plain).get_output(0)
    return net.add("cast", summed, trt.float16).get_output(0)


@network_query
def _is_faster_unfused(net: Net, query: ITensor, key: ITensor, value: ITensor) -> bool:
    """Return whether separate kernels compute an attention (grouped-query, many keys) faster than a fused kernel."""
    if {base.rank(x) for x in (query, key, value)} != {4} or base.dims(key)[1:3] != base.dims(value)[1:3]:
        return False
    batch, *others = (base.known_sizes(net, x)[0] for x in (query, key, value))
    if batch is None or any(other not in (1, batch) for other in others):
        return False
    heads, keys = base.dims(query)[1], base.dims(key)[2]
    length = _query_length(net, query)
    if length is None or keys < MANY_KEYS or not 0 < base.dims(key)[1] < heads:
        return False
    if base.dtype_of(query) not in limits.HALVES:
        return True
    least, most = bounds_of(net, expression(length))
    return least <= 1 and heads * most * keys <= MAX_SCORES


@network_query
def _query_length(net: Net, query: ITensor) -> Size | None:
    """Return the number of queries, an expression if dynamic; 1 if the optimization profile fixes it to 1."""
    return 1 if base.dims(query)[2] == 1 else base.known_sizes(net, query)[2]


def _unfused_grouped_attention(
    net: Net, query: ITensor, key: ITensor, value: ITensor, mask: ITensor | None, scale: float = 1.0
) -> ITensor:
    """Add grouped-query attention in separate kernels: the queries that share a key head become rows of one matmul. The
    fused kernel would process keys sequentially.

    Scores are multiplied by ``scale`` in float32. Keys and values are not repeated. For a single query, keys are the
    first operand, since RTX 1.4 transposes the second in an extra kernel. Operands have rank 4, since RTX 1.4 copies
    operands of rank 3.
    """
    _, heads, _, width = base.dims(query)
    batch, length = base.size(net, query, 0), _query_length(net, query)
    assert length is not None, "`_is_faster_unfused` checks it"
    own, keys = base.dims(key)[1:3]
    grouped: list[Size] = [batch, own, size_product([heads // own, length])]
    rows = base.reshape(net, query, [*grouped, width])
    by_head = mask is not None and not (length == 1 and base.dims(mask)[1] == 1)
    even = length == 1 and not by_head
    if even and base.dims(rows)[2] % 2:  # TensorRT-RTX would pad to an even number of rows in two extra kernels
        rows = strided_slice(net, rows, [2], [0], [base.dims(rows)[2] + 1], mode="FILL")
    if length == 1:
        scores = base.permute(net, separate_transpose(net, matmul(net, key, rows, transpose_b=True)), [0, 1, 3, 2])
    else:
        scores = matmul(net, rows, key, transpose_b=True)
    scores = base.cast(net, scores, torch.float32)
    if scale != 1:
        scores = base.elementwise(net, "PROD", scores, base.constant(net, scale, torch.float32, rank=4))
    scores = base.reshape(net, scores, [batch, heads, length, keys]) if by_head else scores
    weights = _attention_weights(net, scores, mask, base.dtype_of(query))
    weights = base.reshape(net, weights, [*grouped, keys]) if by_head else weights
    result = matmul(net, weights, value, may_be_empty=False)
    result = narrow(net, result, 2, 0, heads // own) if even else result
    return base.reshape(net, result, [batch, heads, length, base.dims(value)[-1]])


@block
def duplicate_single_query(net: Net, query: ITensor) -> tuple[ITensor, bool]:
    """Repeat a single query if the batch size is above 1. Return the queries, and whether there are two now.

    TensorRT-RTX's kernel for a single query, `_gemv_mha`, reads a batch element's keys from successive memory. RTX 1.4
    and 1.6 may interleave the elements, so that it reads wrong keys (`lone-queries`). Two queries use another kernel.
    """
    sizes = base.dims(query)
    batches = sizes[:-3] if len(sizes) > 3 else sizes[:-2]
    if not is_avoided("lone-queries") or all(size == 1 for size in batches) or sizes[-2] != 1:
        return query, False
    *others, width = base.sizes(net, query)
    return base.expand(net, query, [*others[:-1], 2, width]), True


@block
def keep_first_row(net: Net, x: ITensor) -> ITensor:
    """Return the first of a tensor's rows (the second to last dim), keeping that dim with size 1."""
    return strided_slice(net, x, [base.rank(x) - 2], [0], [1])


def _additive_mask(net: Net, mask: ITensor, dtype: torch.dtype) -> ITensor:
    """Return an attention mask as float32 values to add to scores; a bool mask becomes 0 and -inf."""

    def compute() -> ITensor:
        bools = base.dtype_of(mask) == torch.bool
        return base.cast(net, where(net, mask, 0.0, float("-inf"), dtype) if bools else mask, torch.float32)

    return net.ctx.cached("additive mask", mask, compute)


@block
def float32_attention(
    net: Net,
    query: ITensor,
    key: ITensor,
    value: ITensor,
    mask: Value | None,
    *,
    gqa: bool,
    has_unmasked_keys: bool,
    causal: bool,
    scale: float,
) -> ITensor:
    """Add an attention in float32, as eager computes half precision. A query whose keys are all masked gives 0."""
    dtype, exact = base.dtype_of(query), np.frexp(scale)[0] == 0.5
    query = _scale_query(net, query, scale) if exact else query  # see `_scale_query` for the dtype
    query, key, value = (
        base.with_sizes(net, base.cast(net, x, torch.float32), base.known_sizes(net, x)) for x in (query, key, value)
    )
    query = query if exact else _scale_query(net, query, scale)
    bias = None if mask is None else base.tensor(net, mask, rank=max(map(base.rank, (query, key))))
    result = _attention_by_matmuls(net, query, key, value, bias, gqa=gqa, causal=causal)
    if bias is not None and not has_unmasked_keys:
        result = _zero_if_masked(net, result, bias)
    return base.cast(net, result, dtype)


def _scale_query(net: Net, query: ITensor, scale: float) -> ITensor:
    """Return ``query * scale``, computed in float32 and rounded to the query's dtype. Even an exact product (by a power
    of two) is rounded: if RTX 1.4 fuses the scale with the attention, it ignores a causal mask."""
    if scale == 1:
        return query
    wide = base.cast(net, query, torch.float32)
    factor = base.constant(net, scale, torch.float32, rank=base.rank(query))
    scaled = base.plain_cast(net, base.elementwise(net, "PROD", wide, factor), base.dtype_of(query))
    return base.with_sizes(net, scaled, base.known_sizes(net, query))


def _repeat_heads(net: Net, x: ITensor, heads: Size) -> ITensor:
    """Repeat each head of keys or values so that there are ``heads`` heads; the copies of a head are adjacent.

    A single head of batch 1 is expanded without a reshape, which RTX 1.4 may fail to build after a cache update. For
    larger batches an expansion would need more kernels.
    """
    rank, own = base.rank(x), _number_of_heads(net, x)
    if own == heads:
        return x
    sizes = base.sizes(net, x)
    if own == 1 and base.dims(x)[:-3] == (1,):
        return base.expand(net, x, [*sizes[:-3], heads, *sizes[-2:]])
    if all(isinstance(size, (int, SymbolicInt)) for size in (heads, own)):
        times = as_size(expression(heads) // expression(own))
    else:
        times = base.elementwise(net, "FLOOR_DIV", *(base.shape_tensor(net, [size]) for size in (heads, own)))
    grouped = [*sizes[:-2], times, *sizes[-2:]]
    spread = base.expand(net, base.unsqueeze(net, x, [rank - 2]), grouped)
    return base.reshape(net, spread, [*sizes[:-3], heads, *sizes[-2:]])


def _number_of_heads(net: Net, x: ITensor) -> Size:
    """Return the number of heads of queries or keys, as an int or expression if known, else as a tensor."""
    known = base.known_sizes(net, x)[-3]
    return base.size(net, x, -3) if known is None else known


def _arange(net: Net, size: Size, rank: int, dim: int) -> ITensor:
    """Return 0, 1, 2 … along a dim, computed by a layer: TensorRT recognizes no causal mask in a constant."""

    def compute() -> ITensor:
        layer = net.add("fill", (size,) if isinstance(size, int) else (0,), trt.FillOperation.LINSPACE, trt.int64)
        if not isinstance(size, int):
            layer.set_input(0, base.size_tensor(net, size))
        layer.set_input(1, base.constant(net, 0, torch.int64))
        layer.set_input(2, base.constant(net, np.array([1], dtype=np.int64)))
        return base.unsqueeze(net, layer.get_output(0), [i for i in range(rank) if i != dim])

    return net.ctx.cached("count", size, compute, rank, dim)


@network_query
def has_unmasked_key_per_row(net: Net, mask: Value | None) -> bool:
    """Return whether a mask is a constant in which every row has an unmasked key."""
    if not isinstance(mask, torch.Tensor) or not net.ctx.compilation_settings.immutable_weights:
        return False
    return bool((mask if mask.dtype == torch.bool else mask > float("-inf")).any(-1).all())


def _zero_if_masked(net: Net, result: ITensor, mask: ITensor) -> ITensor:
    """Set the results of rows whose keys are all masked, which are NaN, to 0."""

    def rows_with_unmasked_key() -> ITensor:
        bools, rank = base.dtype_of(mask) == torch.bool, base.rank(mask)
        wide = base.cast(net, mask, torch.int32 if bools else torch.float32)
        highest = reduce(net, "MAX", wide, [rank - 1], True)
        if bools:
            return base.cast(net, highest, torch.bool)
        lowest = base.constant(net, float("-inf"), torch.float32, rank=rank)
        return base.elementwise(net, "GREATER", highest, lowest)

    some = net.ctx.cached("some keys", mask, rows_with_unmasked_key)
    return where(net, some, result, 0.0, base.dtype_of(result))
