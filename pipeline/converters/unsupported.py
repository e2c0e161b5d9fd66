"""The reasons why some operators always run in PyTorch; the lookup reports them if there is no converter."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.aten.collectives import BETWEEN_ENGINES, PURE_COLLECTIVES, SPACE
from pipeline.aten.kv_cache_ops import CACHE_WRITE
from pipeline.converters.matmul import equivalent_operator

aten = torch.ops.aten

_CHANCE = "it draws random numbers: an engine would draw others than eager does"

_NAMES: Final = {
    _CHANCE: """
        rand rand_like randn randn_like randint randint.low randint_like randperm bernoulli bernoulli.p multinomial
        normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor normal_functional uniform exponential geometric
        poisson rrelu_with_noise_functional
    """,
    f"with dropout {_CHANCE}": """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_fused_attention_overrideable
    """,
    "with dropout, or with sequences packed into one, whose lengths are data, TensorRT has no attention": """
        _flash_attention_forward _efficient_attention_forward
    """,
    "its weights are packed as a kernel of one kind of GPU reads them": """
        _weight_int4pack_mm _mixed_dtypes_linear _cslt_sparse_mm
    """,
    "sequences of several lengths are packed into one": "_cudnn_rnn",
    "TensorRT multiplies no matrices of ints": "_int_mm",
    "how many steps it takes is data": "_ctc_loss _ctc_loss.Tensor _cudnn_ctc_loss _cudnn_ctc_loss.Tensor",
    "TensorRT has no layer for it, and none that could make it to the last digits": """
        polygamma i0 special_i1 igamma igammac special_ndtri special_zeta
    """,
    "an engine's Fourier transforms are products with matrices, of a length that has no prime factor above 256, or "
    "varies up to 1024": "_fft_c2c _fft_c2r _fft_r2c",
    "TensorRT has no layer that sees the sign of NaN": "copysign.Tensor copysign.Scalar signbit",
    "TensorRT has no layer that sees the bits of a float": "nextafter",
    "TensorRT has no layer that counts equal elements": "mode",
    "how many elements there are is data": """
        argwhere _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount
    """,
    "without an output_size, how many elements there are is data": """
        repeat_interleave.Tensor repeat_interleave.self_Tensor
    """,
    "TensorRT has no layer for it, and how many steps it takes is data": """
        gcd lcm _linalg_eigh _linalg_svd linalg_eig linalg_lstsq linalg_lu_factor_ex linalg_qr
    """,
    "TensorRT has no layer for it, and an engine takes the steps for real matrices of at most 8 rows": """
        _linalg_det _linalg_slogdet _linalg_solve_ex cholesky_inverse cholesky_solve linalg_cholesky_ex linalg_inv_ex
        linalg_solve_triangular
    """,
}


def _find_operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


REASONS: Final[dict[Any, str]] = {
    CACHE_WRITE: "where it writes is seen only when it runs: PyTorch writes these rows, TensorRT would copy all",
    **{_find_operator(name): why for why, names in _NAMES.items() for name in names.split()},
}
"""The reasons by operator."""


_BLOCKS = "TensorRT has blocks of 16 in FP4 and of 32 in E4M3, which divide the last dim"
_FORMAT = "TensorRT has INT8, INT4, E4M3 and FP4, and none of its other formats"

BY_NAME: Final = {
    **dict.fromkeys((f"{SPACE}::{name}" for name in PURE_COLLECTIVES), BETWEEN_ENGINES),
    "tensorrt::dynamic_block_quantize_op": _BLOCKS,
    "tensorrt::dynamic_block_quantize_op.overload": _BLOCKS,
    "tensorrt::quantize_op": _FORMAT,
    "torchao::quantize_affine_float8_non_decomposed": _FORMAT,
    "torchao::dequantize_affine_float8_non_decomposed": _FORMAT,
}
"""The reasons by the name of operators that other libraries define."""

_CONTROL_FLOW = "control flow: which of its graphs runs, and how often, is known only when it runs"
_MAPS = "control flow that torch.vmap does not make one call, of any number of rows"
_WRITES = "it calls an operator of one's own that writes to its arguments, which converters do not take"

_EXPERTS = "an engine multiplies each row by every group's matrix, which for so many rows takes longer than in PyTorch"


def reason_without_converter(target: Any) -> str:
    """Return the reason why an operator has no converter; empty if no reason is known."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.name() == "map_impl":
            return _MAPS
        return _WRITES if target.name().startswith("auto_functionalized") else _CONTROL_FLOW
    if equivalent_operator(target) is aten._grouped_mm.default:
        return _EXPERTS
    name = target.name() if isinstance(target, torch._ops.OpOverload) else ""
    return REASONS.get(target, BY_NAME.get(name, ""))
