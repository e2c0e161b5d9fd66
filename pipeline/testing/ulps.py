"""The table of tolerances: the largest allowed error of a result against float64, with a reason for each row.

An error may be as large as eager's own in that dtype, plus a number of units in the last place. A unit is the distance
between neighbouring numbers of the dtype at the *scale* of the row:

- ``"element"``: at the exact value of the element;
- ``"pair"``: at the absolute value of the complex number that the element is a part of;
- ``"tensor"``: at the largest exact value of the tensor, or its largest input if that is larger;
- ``"absolute"``: at the operator's result for its inputs' absolute values, a bound for sums in another order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal

import torch
from attrs import evolve, frozen

Scale = Literal["element", "pair", "tensor", "absolute"]


@frozen
class Units:
    """The tolerance of an operator, by which errors may exceed eager's: ``units`` in the last place (ULPs); on a GPU,
    ``gpu`` more ULPs and, for float32 matmuls, the relative error ``tf32``.

    ``signed_zeros``: whether zeros must have the same sign as in eager. ``exponential``: results are powers of e, for
    which TensorRT has a wider bound (``exponent_tolerance``). ``rounds_numbers``: eager rounds Python numbers in the
    arguments to the tensor's dtype first, so the float64 result is computed from rounded numbers, too.
    """

    units: float
    reason: str
    scale: Scale = "element"
    gpu: float = 2
    tf32: float = 0.0
    signed_zeros: bool = True
    exponential: bool = False
    rounds_numbers: bool = False

    def allowed_units(self, executor: str, dtype: torch.dtype) -> float:
        """Return the units by which this executor's error may exceed eager's."""
        if executor != "tensorrt":
            return self.units
        uses_tf32 = dtype == torch.float32 and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0"
        return self.units + self.gpu + (self.tf32 / torch.finfo(dtype).eps if uses_tf32 else 0.0)

    def for_complex_results(self) -> Units:
        """Return the tolerance for complex results. It is larger, since real and imaginary parts are sums of products,
        which may cancel; and signs of zeros are not compared, since eager's depend on the tensor's length."""
        scale: Scale = "pair" if self.scale == "element" else self.scale
        return evolve(self, units=self.units + 6, scale=scale, signed_zeros=False)

    def exponent_tolerance(self, executor: str, exact: torch.Tensor) -> torch.Tensor:
        """Return, for each element of the ``exact`` result, the additional absolute error allowed if ``executor`` is
        TensorRT and results are powers e**x (sigmoid, silu). TensorRT rounds x to float32, so the error grows with x.
        It also turns results that are subnormal in float32 to 0, an error that silu multiplies by up to 128.

        Measured on RTX 1.4 and an H200: sigmoid returns 7.416116e-37 for 7.416110e-37, 7 ULPs. TensorRT's sigmoid
        layer for bfloat16, which converters therefore do not use, returned 0 for 6.6e-36.
        """
        if executor != "tensorrt" or not self.exponential:
            return torch.zeros_like(exact)
        single = torch.finfo(torch.float32)
        size = exact.abs().nan_to_num(0.0, 1.0).clamp(max=1.0)
        return single.eps * size * size.clamp(min=single.tiny).log().abs() + 128 * single.tiny


DEFAULT: Final = Units(2, "one rounding in the engine, and one that falls to the other side of eager's")

_SUM = Units(4, "the order of a sum is free", "absolute", signed_zeros=False)
_MOMENTS = Units(4, "a mean is a sum, whose terms may cancel; the variance subtracts it", "tensor", signed_zeros=False)
_PRODUCT = Units(4, "the order of a sum of products is free", "absolute", tf32=2e-3, signed_zeros=False)
_TIES = Units(0, "elements are selected; whether eager selects 0 or -0 depends on the index", signed_zeros=False)
_ATTENTION = Units(4, "a mean whose weights are exponentials of sums, which may cancel", "tensor", tf32=2e-3)
_NEIGHBOURS = Units(4, "a sum of neighbours by weights, which may cancel", "tensor", signed_zeros=False)
_CURVE = Units(16, "weights of neighbours depend on rounded coordinates", "tensor", signed_zeros=False)

_FOURIER = Units(8, "a sum of as many products as the transform is long, which may cancel", "tensor", tf32=4e-3)
_STEPS = Units(32, "each elimination step rounds, and divides by a small remainder", "tensor", signed_zeros=False)
_RECURRENT = Units(16, "each step adds its rounding error to the next", "tensor", tf32=4e-3, signed_zeros=False)
_TAIL = Units(DEFAULT.units, DEFAULT.reason, exponential=True)


def _each(operator_names: str, tolerance: Units) -> dict[object, Units]:
    """Return a table with this tolerance for each of the operators, whose names are separated by spaces."""
    return dict.fromkeys(operator_names.split(), tolerance)


ULPS: Final[Mapping[object, Units]] = {
    **_each("sum mean cumsum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d", _SUM),
    **_each("adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d", _SUM),
    **_each("_embedding_bag _embedding_bag_forward_only unfold_backward", _SUM),
    **_each("sigmoid silu", _TAIL),
    **_each("addcmul addcdiv lerp linalg_cross", Units(4, "a product is added, and may cancel", "tensor")),
    **_each(
        "logsumexp logcumsumexp",
        Units(4, "a logarithm near 0 has few of the bits of the sum, which is near 1", "tensor"),
    ),
    **_each("remainder fmod", Units(DEFAULT.units, DEFAULT.reason, rounds_numbers=True)),
    "prod": Units(8, "the order of a product of many factors is free, and each rounds"),
    "softshrink": Units(2, DEFAULT.reason, signed_zeros=False),  # eager's own differs with the length of the tensor
    **_each("maximum minimum fmax fmin max min amax amin aminmax clamp clamp_min clamp_max clip topk sort", _TIES),
    **_each("cummax cummin max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices", _TIES),
    **_each("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d median nanmedian kthvalue", _TIES),
    **_each("add sub rsub", Units(1, "other times alpha is rounded before it is added", "tensor")),
    **_each("log_softmax _log_softmax", Units(2, "a difference, which may cancel", "tensor")),
    **_each("mm bmm addmm baddbmm matmul linear mv dot convolution addmv addbmm", _PRODUCT),
    **_each("erfc special_erfcx erfinv", Units(6, "a polynomial of twelve terms, and an exponential")),
    **_each("lgamma digamma", Units(16, "terms that cancel where the function is 0", "tensor")),
    "rms_norm": Units(4, "a mean of squares, a root, a quotient and a product, each rounded"),
    **_each("var_mean std_mean layer_norm native_layer_norm group_norm native_group_norm instance_norm", _MOMENTS),
    **_each("batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training", _MOMENTS),
    **_each("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu", _ATTENTION),
    **_each("upsample_linear1d upsample_bilinear2d upsample_trilinear3d", _NEIGHBOURS),
    **_each("upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler grid_sampler_2d", _CURVE),
    **_each("_fft_c2c _fft_r2c _fft_c2r", _FOURIER),
    **_each("linalg_inv_ex linalg_cholesky_ex linalg_solve_triangular cholesky_solve cholesky_inverse", _STEPS),
    **_each("linalg_solve linalg_det linalg_slogdet", _STEPS),
    **_each("lstm gru rnn_tanh rnn_relu packed_lstm packed_gru packed_rnn_tanh packed_rnn_relu", _RECURRENT),
    **_each("linear_attention selective_scan", _RECURRENT),
}
"""The tolerances by operator (its packet's name), or by (operator, dtype) for a dtype with its own tolerance."""

PROGRAM: Final[Mapping[torch.dtype, Units]] = {
    torch.float32: Units(32, "some forty operators round one after another", "tensor", tf32=4e-3, signed_zeros=False),
    torch.float16: Units(4, "few operators of a program round to halves", "tensor", signed_zeros=False),
    torch.bfloat16: Units(4, "few operators of a program round to halves", "tensor", signed_zeros=False),
}
"""The tolerances of a whole program, by the coarsest dtype in which it computes."""


def tolerance_for(target: object, dtype: torch.dtype) -> Units:
    """Return the tolerance of an operator in this dtype, from the table `ULPS`."""
    name = target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else str(target)
    return ULPS.get((name, dtype), ULPS.get(name, DEFAULT))
