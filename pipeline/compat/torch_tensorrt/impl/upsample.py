"""The building block that resizes images or sequences (``upsample``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.compat.torch_tensorrt.blocks import Argument, Expression, aten, block, call, require

NEAREST: Final = {1: aten.upsample_nearest1d.vec, 2: aten.upsample_nearest2d.vec, 3: aten.upsample_nearest3d.vec}
SMOOTH: Final = {
    ("linear", 1): aten.upsample_linear1d.vec,
    ("bilinear", 2): aten.upsample_bilinear2d.vec,
    ("trilinear", 3): aten.upsample_trilinear3d.vec,
    ("bicubic", 2): aten.upsample_bicubic2d.vec,
}


@block
def upsample(
    input: Argument,
    size: Sequence[Argument] | None,
    scale_factor: Sequence[float] | None,
    mode: str,
    align_corners: bool,
) -> Expression:
    """Resize all dims after the second to a size, or by scale factors, with the aten.upsample_*.vec of ``mode``."""
    dims = len(input.shape) - 2
    known = mode == "nearest" or (mode, dims) in SMOOTH
    require(known, "impl.upsample.upsample", f"{mode!r} does not resize {dims} dims", "pass a mode for these dims")
    given = (None if size is None else list(size), None if size is not None else [float(s) for s in scale_factor or ()])
    if mode == "nearest":
        return call(NEAREST[dims], input, *given)
    return call(SMOOTH[mode, dims], input, given[0], align_corners, given[1])
