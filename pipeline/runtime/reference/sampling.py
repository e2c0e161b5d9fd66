"""Compute TensorRT layers that interpolate, in PyTorch: resize, grid sample."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import Maybe, reshape_along_axis, to_integers, widen

Taps = list[tuple[torch.Tensor, torch.Tensor]]

ROUND: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "HALF_UP": lambda x: torch.floor(x + 0.5),
    "HALF_DOWN": lambda x: torch.ceil(x - 0.5),
    "FLOOR": torch.floor,
    "CEIL": torch.ceil,
}


def _input_coordinates(layer: Layer, length: int, size: int, scale: float | None) -> torch.Tensor:
    """Return where each of ``size`` outputs lies on an axis of ``length`` inputs, in float32 as kernels compute it."""
    index = torch.arange(size, dtype=torch.float32)
    mode = layer.attribute("coordinate_transformation")
    if size == 1 and layer.attribute("selector_for_single_pixel") == "UPPER":
        return torch.zeros(1)
    if mode == "ALIGN_CORNERS":
        return index * ((length - 1) / (size - 1) if size > 1 else 0.0)
    step = torch.tensor(length / size if scale is None else 1 / scale, dtype=torch.float32)
    return index * step if mode == "ASYMMETRIC" else (index + 0.5) * step - 0.5


def _linear_taps(layer: Layer, coordinates: torch.Tensor) -> Taps:
    """Return the two input positions next to each coordinate, each with its weight in linear interpolation."""
    floor = coordinates.floor()
    return [(floor, 1 - (coordinates - floor)), (floor + 1, coordinates - floor)]


def _cubic_weight(distance: torch.Tensor, a: float) -> torch.Tensor:
    """Evaluate Keys' cubic convolution kernel, with its coefficient ``a`` (such as -0.75), at each distance."""
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


def _cubic_taps(layer: Layer, coordinates: torch.Tensor) -> Taps:
    """Return the four input positions next to each coordinate, each with its weight in cubic interpolation."""
    floor, a = coordinates.floor(), layer.attribute("cubic_coeff")
    return [(floor + tap, _cubic_weight(coordinates - floor - tap, a)) for tap in (-1, 0, 1, 2)]


def _nearest_taps(layer: Layer, coordinates: torch.Tensor) -> Taps:
    """Return the input position nearest to each coordinate, with weight 1."""
    return [(ROUND[layer.attribute("nearest_rounding")](coordinates), torch.ones_like(coordinates))]


TAPS: Mapping[str, Callable[..., Taps]] = {"NEAREST": _nearest_taps, "LINEAR": _linear_taps, "CUBIC": _cubic_taps}


def _mask_outside(taps: Taps, length: int) -> Taps:
    """Set the weights of taps whose positions are not on the axis, of ``length`` elements, to 0. Divide the others by
    their sum. ``taps``: (input positions, weights) for all outputs, one pair for each position that an output reads."""
    kept = [(place, torch.where((place >= 0) & (place < length), weight, 0.0)) for place, weight in taps]
    total = torch.stack([weight for _, weight in kept]).sum(0)
    return [(place, weight / total) for place, weight in kept]


def _resize_axis(layer: Layer, x: torch.Tensor, axis: int, size: int, scale: float | None) -> torch.Tensor:
    length = x.shape[axis]
    if size == length and scale in (None, 1.0):
        return x
    taps = TAPS[layer.attribute("resize_mode")](layer, _input_coordinates(layer, length, size, scale))
    if layer.attribute("exclude_outside"):
        taps = _mask_outside(taps, length)
    picked = [(x.index_select(axis, place.clamp(0, length - 1).long()), weight) for place, weight in taps]
    if len(picked) == 1:
        return picked[0][0]
    return torch.stack([value * reshape_along_axis(weight, axis, x.dim()) for value, weight in picked]).sum(0)


def resize(layer: Layer, x: torch.Tensor, dynamic_shape: Maybe = None) -> torch.Tensor:
    """Resize a tensor axis by axis: to a shape (attribute or second input), or by scales."""
    scales = layer.attribute("scales")
    sizes = layer.attribute("shape") if dynamic_shape is None else to_integers(dynamic_shape)
    if sizes is None:
        sizes = [int(length * scale) for length, scale in zip(x.shape, scales, strict=True)]
    result = x if layer.attribute("resize_mode") == "NEAREST" else widen(x)
    for axis, size in enumerate(sizes):
        result = _resize_axis(layer, result, axis, size, scales[axis] if scales else None)
    return result.to(x.dtype)


INTERPOLATION = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
BORDER = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


def grid_sample(layer: Layer, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    mode, border = INTERPOLATION[layer.attribute("interpolation_mode")], BORDER[layer.attribute("sample_mode")]
    result = functional.grid_sample(widen(x), widen(grid), mode, border, layer.attribute("align_corners"))
    return result.to(x.dtype)
