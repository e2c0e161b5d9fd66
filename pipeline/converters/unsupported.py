"""List the reasons why some operators always run in PyTorch; the lookup reports them if no converter is declared."""

from __future__ import annotations

from typing import Any, Final

import torch

from pipeline.aten.collectives import BETWEEN_ENGINES, PURE_COLLECTIVES, SPACE
from pipeline.aten.kv_cache_ops import CACHE_WRITE
from pipeline.converters.matmul import known_as

aten = torch.ops.aten

_CHANCE = "it draws random numbers: an engine would draw others than eager does"

REASONS: Final[dict[Any, str]] = {
    CACHE_WRITE: "where it writes is seen only when it runs: PyTorch writes these rows, TensorRT would copy all",
    **dict.fromkeys(
        (
            aten.rand.default,
            aten.rand_like.default,
            aten.randn.default,
            aten.randn_like.default,
            aten.randint.default,
            aten.randint.low,
            aten.randint_like.default,
            aten.randperm.default,
            aten.bernoulli.default,
            aten.bernoulli.p,
            aten.multinomial.default,
            aten.normal.Tensor_Tensor,
            aten.normal.Tensor_float,
            aten.normal.float_Tensor,
            aten.normal_functional.default,
            aten.uniform.default,
            aten.exponential.default,
            aten.geometric.default,
            aten.poisson.default,
            aten.rrelu_with_noise_functional.default,
        ),
        _CHANCE,
    ),
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_dot_product_fused_attention_overrideable.default,
        ),
        f"with dropout {_CHANCE}",
    ),
    **dict.fromkeys(
        (aten._flash_attention_forward.default, aten._efficient_attention_forward.default),
        "with dropout, or with sequences packed into one, whose lengths are data, TensorRT has no attention",
    ),
    **dict.fromkeys(
        (aten._weight_int4pack_mm.default, aten._mixed_dtypes_linear.default, aten._cslt_sparse_mm.default),
        "its weights are packed as a kernel of one kind of GPU reads them",
    ),
    aten._cudnn_rnn.default: "sequences of several lengths are packed into one",
    aten._int_mm.default: "TensorRT multiplies no matrices of ints",
    **dict.fromkeys(
        (aten._ctc_loss.default, aten._ctc_loss.Tensor, aten._cudnn_ctc_loss.default, aten._cudnn_ctc_loss.Tensor),
        "how many steps it takes is data",
    ),
    **dict.fromkeys(
        (
            aten.polygamma.default,
            aten.i0.default,
            aten.special_i1.default,
            aten.igamma.default,
            aten.igammac.default,
            aten.special_ndtri.default,
            aten.special_zeta.default,
        ),
        "TensorRT has no layer for it, and none that could make it to the last digits",
    ),
    **dict.fromkeys(
        (aten._fft_c2c.default, aten._fft_c2r.default, aten._fft_r2c.default),
        "an engine's Fourier transforms are products with matrices, of a length that has no prime factor above 256, or "
        "varies up to 1024",
    ),
    **dict.fromkeys(
        (aten.copysign.Tensor, aten.copysign.Scalar, aten.signbit.default),
        "TensorRT has no layer that sees the sign of NaN",
    ),
    aten.nextafter.default: "TensorRT has no layer that sees the bits of a float",
    aten.mode.default: "TensorRT has no layer that counts equal elements",
    **dict.fromkeys(
        (
            aten.argwhere.default,
            aten._unique2.default,
            aten.unique_dim.default,
            aten.unique_consecutive.default,
            aten.unique_dim_consecutive.default,
            aten.bincount.default,
        ),
        "how many elements there are is data",
    ),
    **dict.fromkeys(
        (aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor),
        "without an output_size, how many elements there are is data",
    ),
    **dict.fromkeys(
        (
            aten.gcd.default,
            aten.lcm.default,
            aten._linalg_eigh.default,
            aten._linalg_svd.default,
            aten.linalg_eig.default,
            aten.linalg_lstsq.default,
            aten.linalg_lu_factor_ex.default,
            aten.linalg_qr.default,
        ),
        "TensorRT has no layer for it, and how many steps it takes is data",
    ),
    **dict.fromkeys(
        (
            aten._linalg_det.default,
            aten._linalg_slogdet.default,
            aten._linalg_solve_ex.default,
            aten.cholesky_inverse.default,
            aten.cholesky_solve.default,
            aten.linalg_cholesky_ex.default,
            aten.linalg_inv_ex.default,
            aten.linalg_solve_triangular.default,
        ),
        "TensorRT has no layer for it, and an engine takes the steps for real matrices of at most 8 rows",
    ),
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


def reason(target: Any) -> str:
    """Return the reason why an operator has no converter; empty if no reason is known."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.name() == "map_impl":
            return _MAPS
        return _WRITES if target.name().startswith("auto_functionalized") else _CONTROL_FLOW
    if known_as(target) is aten._grouped_mm.default:
        return _EXPERTS
    name = target.name() if isinstance(target, torch._ops.OpOverload) else ""
    return REASONS.get(target, BY_NAME.get(name, ""))
