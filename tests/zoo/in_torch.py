"""Which rows of the zoo do not become one engine: for each operator that runs in PyTorch, a part of its reason.

All others must become one engine. What stands here twice is a limit of TensorRT; a row that leaves is progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pipeline.trt import CAPABILITIES

DATA = "the number of elements is data-dependent"
COUNT = "a data-dependent number of elements"
STEPS = "TensorRT has no layer for it, and the number of steps is data-dependent"
DIGITS = "TensorRT has no layer for it, and its other layers cannot compute it exactly enough"
RANK = "has rank 9, but TensorRT supports at most 8"
STATIC = "needs static sizes"
FREE = "interpolate [n,2,h,w]"

NON_ZERO: Final[Mapping[str, Mapping[str, str]]] = {
    "x[mask]": {"aten.index.Tensor": "is a mask"},
    "x[:, mask]": {"aten.index.Tensor": "is a mask"},
    "nonzero": {"aten.nonzero.default": COUNT},
    "nonzero as tuple": {"aten.nonzero_numpy.default": COUNT},
    "argwhere": {"aten.argwhere.default": DATA},
    "masked_select": {"aten.masked_select.default": COUNT},
}
"""What only a TensorRT without a layer for nonzero refuses."""

IN_TORCH: Final[Mapping[str, Mapping[str, str]]] = {
    **({} if CAPABILITIES.nonzero else NON_ZERO),
    **{
        f"{FREE} {how} mode={mode} antialias=True": {f"aten._upsample_{mode}2d_aa.default": STATIC}
        for mode in ("bilinear", "bicubic")
        for how in ("size=(4, 11)", "scale_factor=0.5")
    },
    "MaxPool2d [n,2,h,w] kernel_size=2 dilation=2 return_indices=True": {
        "aten.max_pool2d_with_indices.default": STATIC
    },
    "MaxUnpool2d of free size": {"aten.max_pool2d_with_indices.default": STATIC},
    "AvgPool2d [n,2,h,w] kernel_size=3 stride=2 ceil_mode=True": {"aten.avg_pool2d.default": STATIC},
    "AdaptiveAvgPool2d [n,2,h,w] output_size=(3, 2)": {"aten._adaptive_avg_pool2d.default": "needs a static size"},
    "AdaptiveMaxPool2d [n,2,h,w] output_size=1 return_indices=True": {
        "aten.adaptive_max_pool2d.default": "needs a static size"
    },
    "AdaptiveMaxPool2d [n,2,h,w] output_size=(3, 2)": {"aten.adaptive_max_pool2d.default": "needs a static size"},
    "mode": {"aten.mode.default": "counts equal elements"},
    "bincount": {"aten.bincount.default": DATA},
    "bincount weighted": {"aten.bincount.default": DATA},
    "bincount of unknown length": {"aten.bincount.default": DATA},
    "histc of its own range": {"aten.histc.default": "the bins span the data's range"},
    "unique": {"aten._unique2.default": DATA},
    "unique with inverse": {"aten._unique2.default": DATA},
    "unique of rows": {"aten.unique_dim.default": DATA},
    "unique_consecutive": {"aten.unique_consecutive.default": DATA},
    "repeat_interleave by a tensor": {"aten.repeat_interleave.self_Tensor": "without an output_size"},
    "repeat_interleave by constants": {"aten.repeat_interleave.self_Tensor": "without an output_size"},
    "linalg.matrix_norm 2": {"aten._linalg_svd.default": STEPS},
    "linalg.matrix_norm nuc": {"aten._linalg_svd.default": STEPS},
    "gcd": {"aten.gcd.default": STEPS},
    "lcm": {"aten.lcm.default": STEPS},
    "i0": {"aten.i0.default": DIGITS},
    "special.i1": {"aten.special_i1.default": DIGITS},
    "special.ndtri": {"aten.special_ndtri.default": DIGITS},
    "special.zeta": {"aten.special_zeta.default": DIGITS},
    "special.gammaincc": {"aten.igammac.default": DIGITS},
    "polygamma": {"aten.polygamma.default": DIGITS},
    "signbit": {"aten.signbit.default": "the sign of NaN"},
    "copysign": {"aten.copysign.Tensor": "the sign of NaN"},
    "nextafter": {"aten.nextafter.default": "the bits of a float"},
    "float_power": {"aten._to_copy.default": "is float64", "aten.pow.Tensor_Tensor": "is float64"},
    "gumbel_softmax": {"aten.exponential.default": "it draws random numbers"},
    "rank 9 on the way": {"aten.unsqueeze.default": RANK, "aten.sum.dim_IntList": RANK},
    "rank 9 given": {"aten.add.Tensor": RANK, "aten.sum.dim_IntList": RANK},
}
