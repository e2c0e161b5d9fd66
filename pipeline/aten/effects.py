"""Decide which operators are free of side effects, so that a program from a file may call them.

A file may call pure functions of tensors and numbers, and random number generators. It may not call operators that
access files, the process, unchecked memory, or a library's state. Most rules use torch's facts: operators outside of
its dispatcher belong to TorchScript, and schemas declare mutated arguments and types. Further rules use operator names.
An operator without a rule is refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import torch
from torch._ops import OpOverload

from pipeline.aten.traits import Kind, op_kind

SPACES: Final = ("aten", "prims", "pipeline")
"""The namespaces whose operators the rules decide. Any other namespace must be allowed by the caller."""

REFUSED: Final[Mapping[str, str]] = {
    "reads or writes files": "from_file",
    "prints": "_print",
    "runs a program that no one has loaded": "pipeline.run",
    "changes or exposes the memory of tensors": """
        set set_ data set_data resize_* resize_as* sparse_resize* _resize_output* _copy_from* copy_sparse_to_sparse
        *pin_memory record_stream _reshape_from_tensor _lazy_clone is_set_to _has_same_storage_numel storage_offset
        prims.copy_* prims.resize prims.device_put prims.as_strided* prims._* prims.inductor_*
        prims.fft_* prims.prepare_*
    """,
    "takes positions or sizes that nothing checks": """
        *_unsafe _nested* nested_* *_jagged_* _jagged_* *_padded_dense_* segment_reduce _segment_reduce* _cslt_*
        *int4pack* _dyn_quant_* fbgemm_* _wrapped_* _mixed_dtypes_linear _validate_* _philox_* *_semi_structured*
        _spdiags *_with_dims* *_dims_and_tensors _rowwise_prune flatten_dense_tensors unflatten_dense_tensors
        _transform_bias_rescale_qkv _triton_* _masked_scale _compute_linear_combination
    """,
    "is of sparse, nested or named tensors": """
        *sparse* *_csr* *_coo* hspmm smm sspaddmm _coalesce* is_coalesced dense_dim _dimI _dimV *indices_copy _nnz
        values_copy _values_copy _to_dense to_dense* to_padded_tensor *_mkldnn _mkldnn_* to_mkldnn* _spsolve
    """,
    "is of autograd or of a backend": """
        _backward _make_dual* _fw_primal* *_batch_dim retains_grad output_nr is_leaf _version get_gradients
        _efficientzerotensor _has_compatible* *zerotensor _debug_has* _propagate_xla_data _new_zeros_with*
        _make_dep_token _cufft_* _nnpack* _use_* is_vulkan_available cudnn_* _cudnn_* miopen_* _mps_* mps_* lstm_mps*
        mkldnn_* _to_cpu _grid_sampler_2d_cpu* _fused_adam* _fused_sgd* _fused_adagrad* _fused_moving* _amp_*
        _foreach_* _chunk_cat _sobol_engine* *_overrideable* _transformer_encoder* _native_multi_head* quantized_*
        *mkldnn_rnn* _saturate_weight* choose_qparams_optimized _efficient_attention_backward
        _flash_attention_backward *_differentiable_* batch_norm_backward_elemt batch_norm_backward_reduce
        batch_norm_elemt batch_norm_gather_* batch_norm_stats batch_norm_update_stats infinitely_* is_pinned
        is_distributed is_inference get_device _batch_norm_no_update _batch_norm_with_update_functional is_contiguous
        sym_is_contiguous qscheme
    """,
    "is a test of torch's own": "_test_* _foobar",
}
"""Patterns of names of refused operators, by the effect that is the reason; schemas already show in-place writes."""

PURE: Final = """
    *_backward* *_jvp linalg_* _linalg_* special_* fft_* _fft_* *_loss* *_window _cast_* fake_quantize_*
    _fake_quantize_* is_* _is_all_true _is_any_true q_* sym_constrain_* _functional_* arc* __and__ __or__ __xor__
    __lshift__ __rshift__ _add_relu _addmm_activation _aminmax _batch_norm_impl_index _cdist_forward
    _cholesky_solve_helper _choose_qparams_per_tensor _conj_copy _conv_depthwise2d conv_depthwise3d _convolution_mode
    _dim_arange _euclidean_dist _empty_affine_quantized _empty_per_channel_affine_quantized empty_quantized
    _dirichlet_grad _histogramdd_* histogram* _index_put_impl _int_mm _logcumsumexp _lu_with_info
    _make_per_*_quantized_tensor _masked_softmax _native_batch_norm_legit_functional _neg_view_copy
    _pack_padded_sequence _pad_packed_sequence _pad_enum _pdist_forward _reshape_alias_copy _scaled_mm*
    _scaled_grouped_mm* _shape_as_tensor _slow_conv2d_forward slow_conv* _stack _standard_gamma_grad _thnn_fused_*
    _trilinear _unique _unique2 _unsafe_index _unsafe_masked_index* _upsample_lanczos2d_aa _weight_int8pack_mm
    _weight_norm* absolute addr affine_grid_generator allclose argwhere as_strided_copy binary_cross_entropy*
    block_diag broadcast_tensors can_cast cartesian_prod cdist chain_matmul chalf cholesky* col2im combinations
    complex conv_tbc corrcoef cosine_similarity cov cross cumulative_trapezoid dequantize det diag diagflat diff dim
    dist divide embedding_renorm fix fractional_max_* frobenius_norm geqrf ger gradient greater* hash_tensor inner
    int_repr inverse isclose isin isreal istft kl_div kron less* logdet lu_solve lu_unpack matrix_*
    max_pool1d_with_indices max_unpool2d max_unpool3d meshgrid multiply nanquantile native_channel_shuffle native_norm
    negative norm_except_dim not_equal nuclear_norm numel orgqr ormqr outer pad_sequence pairwise_distance pdist
    pinverse polar promote_types qr quantile quantize_per_* range renorm result_type row_stack size slogdet
    split_with_sizes_copy stft stride subtract sum_to_size svd thnn_conv2d trace transpose_copy trapezoid trapz
    triangular_solve true_divide unique_consecutive unique_dim unique_dim_consecutive vander view_as_complex_copy
    view_as_real_copy where zero prims.*
"""
"""Patterns of names of operators without side effects that are in no row of the table of traits."""

TYPES: Final = re.compile(
    r"(Optional\[|List\[|Tuple\[|Union\[)*"
    r"(Tensor|int|float|bool|str|number|complex|SymInt|SymFloat|SymBool|Device|Generator|NoneType)\b"
)
"""A pattern for the argument and result types, in the notation of schemas, that operators in a file may have."""


def reason_to_refuse(target: object, libraries: Iterable[str] = ()) -> str:
    """Return the reason why a program from a file may not call an operator; "" if it may.
    ``libraries``: namespaces of other libraries whose operators the caller allows."""
    if not isinstance(target, OpOverload):
        return "is not an operator of torch"
    if target.namespace not in SPACES:
        return "" if target.namespace in libraries else f"is of the library {target.namespace}, which is not allowed"
    known = _reason_by_rules(target)
    return "is not known to only compute" if known is None else known


@cache
def _reason_by_rules(op: OpOverload[..., Any]) -> str | None:
    """Return why a saved program may not call an operator; "" if it may, None if its schema and kind do not decide."""
    schema = op._schema
    if not torch._C._dispatch_has_kernel(op.name()):
        return "is TorchScript's own"
    short = schema.name.removeprefix("aten::").replace("::", ".")
    for reason, known in _COMPILED.items():
        if known.fullmatch(short):
            return reason
    if schema.is_mutable:
        return "writes to its arguments"
    types = [argument.type for argument in (*schema.arguments, *schema.returns)]
    if strange := next((str(each) for each in types if not TYPES.match(str(each))), ""):
        return f"takes or returns a {strange}"
    kind = op_kind(op)
    if kind is Kind.ELSEWHERE:
        return str(kind.value)
    return "" if kind is not None or op.namespace == "pipeline" or _PURE.fullmatch(short) else None


def _compile_wildcard_list(wildcards: str) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for name in wildcards.split()))


_COMPILED: Final = {reason: _compile_wildcard_list(names) for reason, names in REFUSED.items()}
_PURE: Final = _compile_wildcard_list(PURE)
