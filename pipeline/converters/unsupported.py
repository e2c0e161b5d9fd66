"""List why some operators have no converter and always run in PyTorch; a failed lookup reports the reason."""

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
    "TensorRT has no attention with dropout, or over packed sequences, whose lengths are data-dependent": """
        _flash_attention_forward _efficient_attention_forward
    """,
    "its weights are packed for the kernel of one kind of GPU": """
        _weight_int4pack_mm _mixed_dtypes_linear _cslt_sparse_mm
    """,
    "TensorRT has no recurrent layer over packed sequences of several lengths": "_cudnn_rnn",
    "TensorRT has no matmul of integers": "_int_mm",
    "the number of steps is data-dependent": "_ctc_loss _ctc_loss.Tensor _cudnn_ctc_loss _cudnn_ctc_loss.Tensor",
    "TensorRT has no layer for it, and its other layers cannot compute it exactly enough": """
        polygamma i0 special_i1 igamma igammac special_ndtri special_zeta
    """,
    "an engine's Fourier transforms are products with matrices, of a length that has no prime factor above 256, or "
    "varies up to 1024": "_fft_c2c _fft_c2r _fft_r2c",
    "TensorRT has no layer that sees the sign of NaN": "copysign.Tensor copysign.Scalar signbit",
    "TensorRT has no layer that sees the bits of a float": "nextafter",
    "TensorRT has no layer that counts equal elements": "mode",
    "the number of elements is data-dependent": """
        argwhere _unique2 unique_dim unique_consecutive unique_dim_consecutive bincount
    """,
    "without an output_size, the number of elements is data-dependent": """
        repeat_interleave.Tensor repeat_interleave.self_Tensor
    """,
    "TensorRT has no layer for it, and the number of steps is data-dependent": """
        gcd lcm _linalg_eigh _linalg_svd linalg_eig linalg_lstsq linalg_lu_factor_ex linalg_qr
    """,
    "TensorRT has no layer for it; an engine computes it in steps for real matrices of at most 8 rows only": """
        _linalg_det _linalg_slogdet _linalg_solve_ex cholesky_inverse cholesky_solve linalg_cholesky_ex linalg_inv_ex
        linalg_solve_triangular
    """,
}


def aten_operator(name: str) -> Any:
    """Return the ATen operator of a name such as ``sum.dim_IntList`` or ``relu`` (the overload ``default``)."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


REASONS: Final[dict[Any, str]] = {
    CACHE_WRITE: "its position is known only at run time: PyTorch writes only these rows, TensorRT would copy all",
    **{aten_operator(name): why for why, names in _NAMES.items() for name in names.split()},
}
"""The reason why an operator always runs in PyTorch, by operator."""


_BLOCKS = "TensorRT supports only blocks of 16 in FP4 and of 32 in E4M3 that divide the last dim"
_FORMAT = "TensorRT supports only the formats INT8, INT4, E4M3 and FP4"

BY_NAME: Final = {
    **dict.fromkeys((f"{SPACE}::{name}" for name in PURE_COLLECTIVES), BETWEEN_ENGINES),
    "tensorrt::dynamic_block_quantize_op": _BLOCKS,
    "tensorrt::dynamic_block_quantize_op.overload": _BLOCKS,
    "tensorrt::quantize_op": _FORMAT,
    "torchao::quantize_affine_float8_non_decomposed": _FORMAT,
    "torchao::dequantize_affine_float8_non_decomposed": _FORMAT,
}
"""The reason why an operator of another library always runs in PyTorch, by the operator's name."""

_CONTROL_FLOW = "control flow: which of its graphs runs, and how often, is known only at run time"
_MAPS = "torch.vmap cannot turn this control flow into one call for any number of rows"
_WRITES = "it calls a custom operator that writes to its arguments, which converters do not support"

_EXPERTS = "an engine multiplies each row by every group's matrix, which for so many rows takes longer than in PyTorch"


def reason_without_converter(target: Any) -> str:
    """Return the reason why an operator has no converter; an empty string if no reason is known."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.name() == "map_impl":
            return _MAPS
        return _WRITES if target.name().startswith("auto_functionalized") else _CONTROL_FLOW
    if equivalent_operator(target) is aten._grouped_mm.default:
        return _EXPERTS
    name = target.name() if isinstance(target, torch._ops.OpOverload) else ""
    return REASONS.get(target, BY_NAME.get(name, ""))
