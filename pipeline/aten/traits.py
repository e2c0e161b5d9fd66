"""The table of operator traits: facts about operators that ATen's schemas do not state.

For example, partitioning reads which operators are cheap, mixed precision which are safe in half precision. An entry is
an operator with all its overloads, or a single overload, which takes precedence. torch itself declares whether an
operator is elementwise, random, or a view.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import torch
from torch._ops import OpOverload

from pipeline.aten.types import Target


class Kind(enum.Enum):
    """The kinds of operators, described in words; "its elements" are the elements of the operator's first argument."""

    COPIES = "returns its elements unchanged"
    DECLARES = "returns its elements unchanged, and declares a fact about them"
    CASTS = "returns its elements in another dtype, or on another device"
    RESHAPES = "returns its elements in the same order, in another shape"
    SQUEEZES = "adds or removes dims of size 1"
    TRANSPOSES = "returns its elements with the dims in another order"
    REORDERS = "returns each of its elements once, at another position"
    REPEATS = "returns all its elements, some several times"
    SELECTS = "returns some of its elements"
    MIXES = "returns its elements together with others"
    WRITES = "returns its elements, some overwritten or added to"
    REINTERPRETS = "reinterprets its memory as other numbers"
    FILLS = "makes a tensor from sizes and numbers"
    PLACES = "returns indices or counts: non-negative integers"
    POINTWISE = "computes each element from one of each argument"
    REDUCES = "computes one element from many"
    SCANS = "computes each element from those before it"
    MULTIPLIES = "is a product of two tensors"
    PROJECTS = "is a linear layer"
    CONVOLVES = "is a convolution"
    ATTENDS = "is an attention"
    RECURS = "is a recurrent layer or a step of one"
    LOOKS_UP = "selects rows of a table of weights"
    NORMALIZES = "normalizes each row"
    SCALES = "scales and shifts each channel"
    SOFTENS = "is a softmax"
    POOLS = "computes an element from each window"
    RESAMPLES = "interpolates between its elements"
    DRAWS = "draws random numbers"
    READS = "returns a number to Python, or checks one"
    QUANTIZES = "rounds its elements to codes of few bits"
    DEQUANTIZES = "returns the numbers that codes of few bits stand for"
    EXCHANGES = "exchanges its elements with other ranks, or waits for that"
    ELSEWHERE = "is of sparse, nested or named tensors, or of autograd, which no program has"


TABLE: Final[Mapping[Kind, str]] = {
    Kind.COPIES: """
        alias alias_copy clone contiguous detach detach_ detach_copy lift lift_fresh lift_fresh_copy pin_memory positive
        resolve_conj resolve_neg
    """,
    Kind.DECLARES: "pipeline.open_mask",
    Kind.CASTS: """
        _to_copy to type_as _autocast_to_full_precision _autocast_to_reduced_precision prims.convert_element_type
    """,
    Kind.RESHAPES: """
        view reshape _unsafe_view _reshape_alias _reshape_copy view_copy view_as reshape_as flatten unflatten ravel
    """,
    Kind.SQUEEZES: "squeeze squeeze_copy unsqueeze unsqueeze_copy atleast_1d atleast_2d atleast_3d",
    Kind.TRANSPOSES: "permute permute_copy transpose t t_copy mT numpy_T movedim moveaxis swapaxes swapdims",
    Kind.REORDERS: "flip fliplr flipud roll rot90 pixel_shuffle pixel_unshuffle channel_shuffle",
    Kind.REPEATS: """
        expand expand_as expand_copy broadcast_to repeat repeat_interleave tile prims.broadcast_in_dim
    """,
    Kind.SELECTS: """
        slice select narrow narrow_copy split split_copy split_with_sizes unsafe_split unsafe_split_with_sizes chunk
        unsafe_chunk tensor_split hsplit vsplit dsplit unbind unbind_copy diagonal diagonal_copy linalg_diagonal unfold
        unfold_copy index index_select gather take take_along_dim masked_select topk sort msort select_copy slice_copy
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
        _pad_circular
    """,
    Kind.MIXES: """
        cat concat concatenate stack hstack vstack dstack column_stack pad constant_pad_nd tril triu diag_embed im2col
        resize
    """,
    Kind.WRITES: """
        slice_scatter select_scatter diagonal_scatter as_strided_scatter scatter scatter_add scatter_reduce index_put
        _unsafe_index_put index_copy index_fill index_add index_reduce masked_scatter copy put pipeline.cache_update
        pipeline.cache_write
    """,
    Kind.REINTERPRETS: """
        as_strided view.dtype view_copy.dtype view_as_real view_as_complex real imag conj _conj _neg_view adjoint
        mH matrix_H
    """,
    Kind.FILLS: """
        arange full scalar_tensor zeros ones empty full_like zeros_like ones_like empty_like new_full new_zeros new_ones
        new_empty new_empty_strided empty_permuted empty_strided eye linspace logspace tril_indices triu_indices fill
    """,
    Kind.PLACES: """
        argmax argmin argsort nonzero nonzero_numpy nonzero_static where.default searchsorted bucketize one_hot
        count_nonzero repeat_interleave.Tensor
    """,
    Kind.POINTWISE: """
        hardswish leaky_relu log_sigmoid log_sigmoid_forward floor_divide rsub masked_fill prims.div max.other min.other
    """,
    Kind.REDUCES: """
        sum nansum mean nanmean prod amax amin max min aminmax any all std var std_mean var_mean logsumexp norm
        linalg_vector_norm median nanmedian mode kthvalue histc bincount embedding_bag _embedding_bag
        _embedding_bag_forward_only glu prims.sum
    """,
    Kind.SCANS: "cumsum cumprod cummax cummin logcumsumexp",
    Kind.MULTIPLIES: "mm bmm matmul baddbmm addbmm mv addmv dot vdot einsum tensordot bilinear _grouped_mm",
    Kind.PROJECTS: "linear addmm",
    Kind.CONVOLVES: """
        convolution _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    """,
    Kind.ATTENDS: """
        scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """,
    Kind.RECURS: """
        lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        pipeline.packed_lstm pipeline.packed_gru pipeline.packed_rnn_tanh pipeline.packed_rnn_relu
        pipeline.linear_attention pipeline.selective_scan
    """,
    Kind.LOOKS_UP: "embedding",
    Kind.NORMALIZES: "layer_norm native_layer_norm rms_norm _fused_rms_norm log_softmax _log_softmax",
    Kind.SCALES: """
        batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training group_norm
        native_group_norm instance_norm prelu _prelu_kernel
    """,
    Kind.SOFTENS: "softmax _softmax _safe_softmax",
    Kind.POOLS: """
        avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices
        max_pool3d_with_indices adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d
        adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    """,
    Kind.RESAMPLES: """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler grid_sampler_2d grid_sampler_3d
    """,
    Kind.DRAWS: "native_dropout dropout feature_dropout alpha_dropout feature_alpha_dropout",
    Kind.READS: """
        sym_size sym_stride sym_numel sym_storage_offset item _local_scalar_dense _assert_tensor_metadata _assert_scalar
        _assert_async
    """,
    Kind.QUANTIZES: "pipeline.quantize pipeline.block_codes pipeline.centered pipeline.pack",
    Kind.DEQUANTIZES: "pipeline.dequantize pipeline.fake_quantize pipeline.fake_quantize_blocks",
    Kind.EXCHANGES: """
        _c10d_functional.all_reduce _c10d_functional.all_gather_into_tensor _c10d_functional.reduce_scatter_tensor
        _c10d_functional.wait_tensor
    """,
    Kind.ELSEWHERE: """
        _values values _indices indices crow_indices col_indices ccol_indices row_indices coalesce to_dense
        _sparse_broadcast_to _nested_get_values _nested_view_from_buffer _nested_view_from_jagged _ncf_view
        _ncf_unsqueeze _fw_primal _make_dual _unpack_dual _grad_sum_to_size slice_inverse
        _test_autograd_multiple_dispatch_view rename refine_names align_to
    """,
}
"""The operators of each kind, by name. Operators that torch tags as elementwise need no entry."""

SPACES: Final = ("prims", "pipeline", "_c10d_functional")
"""The namespaces other than ATen's that entries of the table can have as a prefix."""

ROWS: Final = {name: kind for kind, names in TABLE.items() for name in names.split()}


@cache
def op_kind(target: object) -> Kind | None:
    """Return the kind of an operator; None if it is not in the table, or if ``target`` is not an operator overload."""
    if not isinstance(target, OpOverload):
        return None
    name = target._schema.name.removeprefix("aten::").replace("::", ".")
    found = ROWS.get(f"{name}.{target._overloadname}", ROWS.get(name))
    if found is not None:
        return found
    if torch.Tag.nondeterministic_seeded in target.tags:
        return Kind.DRAWS
    return Kind.POINTWISE if torch.Tag.pointwise in target.tags else None


@cache
def operators_of_kind(*kinds: Kind) -> frozenset[OpOverload[..., object]]:
    """Return the operators of these kinds: all overloads in the table, except those with an ``out`` argument."""
    packets = map(_operator_packet, ROWS)
    overloads = (getattr(packet, each) for packet in packets if packet is not None for each in packet.overloads())
    return frozenset(op for op in overloads if "out" not in op._overloadname and op_kind(op) in kinds)


def _operator_packet(name: str) -> Any:
    """Return the operator packet of an entry in the table; None if this version of torch lacks it."""
    first, _, rest = name.partition(".")
    return getattr(getattr(torch.ops, first), rest, None) if first in SPACES else getattr(torch.ops.aten, first, None)


def is_view(target: object) -> bool:
    """Return whether an operator is a view: its schema says that a result aliases an argument without mutating it."""
    returns = target._schema.returns if isinstance(target, OpOverload) else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def has_explicit_sizes(target: Target) -> bool:
    """Return whether an operator is a reshape with two arguments, the second of which is a list of sizes."""
    if op_kind(target) is not Kind.RESHAPES or len(target._schema.arguments) != 2:
        return False
    second = target._schema.arguments[1]
    return second.name in ("size", "shape") and str(second.type).startswith("List")


CONTRACTIONS: Final = (Kind.MULTIPLIES, Kind.PROJECTS, Kind.CONVOLVES, Kind.ATTENDS)
"""Kinds of operators whose result elements are sums of products; half precision is accumulated in float32."""

SAME: Final = (Kind.COPIES, Kind.DECLARES, Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES, Kind.REORDERS, Kind.REPEATS)
"""Kinds of operators whose result contains all elements of the first argument, and no others."""

PART: Final = (*SAME, Kind.SELECTS)
"""Kinds of operators whose result contains only elements of the first argument."""
