"""Convert resizing (upsample) and grid sampling. 3-d grid sampling is decomposed, since TensorRT's layer is 2-d."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

import torch
from torch import Tensor

from pipeline.aten.arguments import argument, argument_names
from pipeline.converters.binding import CompilationSettings, Rejection, aten, converts
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, SymbolicInt, Value
from pipeline.impl.resize import Resize, grid_sample, resize, resize_by_taps
from pipeline.shapes.environment import expression

MODES = {
    "nearest": "upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    "nearest-exact": "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d",
    "linear": "upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa",
    "cubic": "upsample_bicubic2d _upsample_bicubic2d_aa",
}
TARGETS: dict[Any, str] = {
    getattr(packet, overload): mode
    for mode, names in MODES.items()
    for packet in (getattr(aten, name) for name in names.split())
    for overload in ("default", "vec")
    if overload in packet.overloads()
}


def _resize_options(node: torch.fx.Node, mode: str) -> Resize:
    return Resize(mode, bool(argument(node, "align_corners", False)), "_aa" in str(node.target))


def _scale_factors(node: torch.fx.Node, rank: int) -> list[float | None]:
    """Return the scale factor in the call for each resized dim; None if the sizes determine the scale."""
    names = argument_names(node.target)
    if "scale_factors" in names:
        return list(argument(node, "scale_factors") or [None] * rank)
    given = [argument(node, n) for n in names if n.startswith("scales")]
    return [s if s is not None and s > 0 else None for s in given]


ResizedDim = tuple[Any, Any, float | None]
"""A resized dim: its input size, its result size (ints or expressions), and its scale factor or None."""


def _resized_dims(node: torch.fx.Node) -> list[ResizedDim]:
    before, after = (x.meta["val"].shape[2:] for x in (node.all_input_nodes[0], node))
    return list(zip(map(expression, before), map(expression, after), _scale_factors(node, len(before)), strict=True))


def _is_static(dim: ResizedDim) -> bool:
    return isinstance(dim[0], int) and isinstance(dim[1], int)


def _is_exact_scale(scale: float | None) -> bool:
    """Return whether the product of any size and the scale is exact in the float32 that TensorRT's layer uses."""
    return scale is not None and (scale * 1024).is_integer()


def _needs_taps(options: Resize, dim: ResizedDim, uses_scales: bool) -> bool:
    """Return whether to resize a static dim by weighted sums of elements, since TensorRT's layer differs from eager."""
    before, after, scale = dim
    if not _is_static(dim) or (before == after and scale in (None, 1.0)):
        return False
    even = after % before == 0 or before % after == 0  # otherwise rounding may decide which element is the nearest
    by_sizes = scale is None or options.align_corners or before * scale == after
    alike = by_sizes and (even or not options.is_nearest)
    return options.antialias or not alike or (uses_scales and not _is_exact_scale(after / before))


def _uses_scales(dims: list[ResizedDim], dynamic_batch: bool) -> bool:
    """Return whether to give TensorRT's layer scales instead of sizes, which would have to be computed at run time."""
    dynamic = [row for row in dims if not _is_static(row)]
    if dynamic:
        return all(_is_exact_scale(scale) for _, _, scale in dynamic)
    return dynamic_batch and all(_is_exact_scale(after / before) for before, after, _ in dims)


def check_resize(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The input must be floating-point, or the mode nearest; dynamic dims need a size, or a scale such as 0.5 or 2."""
    x, how = node.all_input_nodes[0].meta["val"], _resize_options(node, TARGETS[node.target])
    if not x.is_floating_point() and not how.is_nearest:
        return Rejection(f"the input is {x.dtype}; TensorRT interpolates floating-point tensors only")
    rows = _resized_dims(node)
    by_scales = _uses_scales(rows, False)
    for dim, (before, after, scale) in enumerate(rows, 2):
        if isinstance(before, int) and isinstance(after, int):
            continue
        if how.antialias:
            which, size = ("result", after) if isinstance(before, int) else ("input", before)
            return Rejection(f"dim {dim} of the {which} is dynamic ({size}); antialiasing needs static sizes")
        if scale is not None and not by_scales and not scale.is_integer():
            return Rejection(
                f"dim {dim} of the input is {before}, and TensorRT may misround its product with the scale {scale}",
                "pass a size, or a scale such as 0.5, 1.5 or 2",
            )
    return True


@converts(TARGETS, validator=check_resize)
def upsample(net: Net, mode: str, input: Value) -> ITensor:
    """upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, …) -> Tensor; also other ranks and ``mode``s"""
    x, how = base.tensor(net, input), _resize_options(net.node, mode)
    dtype = base.dtype_of(x)
    wide = x if dtype.is_floating_point else base.cast(net, x, torch.float32)
    return base.cast(net, _resize_by_taps_and_layer(net, wide, how, _resized_dims(net.node)), dtype)


def _resize_by_taps_and_layer(net: Net, x: Any, options: Resize, dims: list[ResizedDim]) -> Any:
    """Resize some dims by weighted sums of gathered elements (taps), and the remaining dims by TensorRT's layer."""
    by_scales = _uses_scales(dims, -1 in base.dims(x)[:2])
    taps = [_needs_taps(options, row, by_scales) for row in dims]
    if any(taps):
        before = [row[0] if tap else None for row, tap in zip(dims, taps, strict=True)]
        x = resize_by_taps(net, x, options, before, [after for _, after, _ in dims], [scale for _, _, scale in dims])
    if all(tap or before == after for tap, (before, after, _) in zip(taps, dims, strict=True)):
        return x
    if by_scales:
        return resize(net, x, options, [], [_layer_scale(row, tap) for row, tap in zip(dims, taps, strict=True)])
    return resize(net, x, options, [a if isinstance(a, int) else SymbolicInt(a) for _, a, _ in dims], None)


def _layer_scale(dim: ResizedDim, has_taps: bool) -> float:
    """Return the scale of a dim for TensorRT's resize layer; 1 if weighted sums of elements (taps) resize the dim."""
    before, after, scale = dim
    return 1.0 if has_taps else after / before if scale is None or _is_static(dim) else scale


def check_grid(node: torch.fx.Node, settings: CompilationSettings) -> bool | Rejection:
    """The input must be 2-d images [N, C, H, W]; TensorRT does not sample 3-d volumes."""
    dims = argument(node, "input").meta["val"].dim()
    return dims == 4 or Rejection(f"the input has {dims} dims; TensorRT's grid_sample needs 4 dims, [N, C, H, W]")


@converts(aten.grid_sampler.default, aten.grid_sampler_2d.default, validator=check_grid)
def grid_sampler(
    net: Net, input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> ITensor:
    """grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, …) -> Tensor"""
    return grid_sample(
        net, base.tensor(net, input), base.tensor(net, grid), interpolation_mode, padding_mode, align_corners
    )


NEAREST: Final = 1
BORDER, REFLECTION = 1, 2
"""ATen's integers for the padding modes border and reflection; 0 is zero padding."""


@register_torch_trt_decomposition(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    sizes = list(input.shape[:1:-1])  # width, height, depth: the order of the grid's coordinates
    points = grid.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else grid
    places = []
    for x, size in zip(points.unbind(-1), sizes, strict=True):  # positions of elements, from coordinates of -1 … 1
        position = (x + 1) * (size - 1) / 2 if align_corners else ((x + 1) * size - 1) / 2
        if padding_mode == REFLECTION:
            position = _reflect(position, 0.0, size - 1) if align_corners else _reflect(position, -0.5, size)
        # zero padding moves no position
        places.append(position.clamp(0, size - 1) if padding_mode in (BORDER, REFLECTION) else position)
    if interpolation_mode == NEAREST:
        return _elements_at(input, [p.round() for p in places], sizes)
    corners = torch.arange(8, device=input.device).reshape(8, 1, 1, 1)
    raised = [p.unsqueeze(1) for p in places]
    at = [p.floor() + (corners >> axis & 1) for axis, p in enumerate(raised)]
    weight = reduce(torch.mul, (1 - (p - a).abs() for p, a in zip(raised, at, strict=True)))
    return (_elements_at(input, at, sizes) * weight.unsqueeze(1)).sum(2).to(input.dtype)


def _reflect(position: Tensor, low: float, span: int) -> Tensor:
    """Reflect positions outside of ``low`` … ``low + span`` at these ends until they are inside."""
    if span == 0:
        return torch.zeros_like(position)
    beyond = (position - low).abs()
    over = beyond - (beyond / (2 * span)).floor() * (2 * span)
    return torch.minimum(over, 2 * span - over) + low


def _elements_at(input: Tensor, positions: list[Tensor], sizes: list[int]) -> Tensor:
    """Return the elements of ``input`` [N, C, D, H, W] at integer positions [N, …], as [N, C, …]; 0 outside."""
    within, index = None, None
    for place, size in reversed(list(zip(positions, sizes, strict=True))):
        here = (place >= 0) & (place <= size - 1)
        whole = place.clamp(0, size - 1).to(torch.int64)
        within = here if within is None else within & here
        index = whole if index is None else index * size + whole
    assert within is not None and index is not None
    flat = index.flatten(1).unsqueeze(1).expand(-1, input.shape[1], -1)
    found = input.flatten(2).gather(2, flat).unflatten(2, list(index.shape[1:]))
    return torch.where(within.unsqueeze(1), found, torch.zeros((), dtype=input.dtype, device=input.device))
