"""Decompose sampling of volumes: TensorRT's layer samples images only."""

from __future__ import annotations

from typing import Final

import torch

from pipeline.converters.decompositions import register_torch_trt_decomposition

aten = torch.ops.aten
Tensor = torch.Tensor

NEAREST: Final = 1
BORDER, REFLECTION = 1, 2
"""ATen's integers for the interpolation and padding modes; 0 is bilinear, and zeros."""


@register_torch_trt_decomposition(aten.grid_sampler_3d.default)
def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners)
    -> Tensor"""
    sizes = list(input.shape[:1:-1])  # width, height, depth: the order of the grid's coordinates
    points = grid.to(torch.float32) if input.dtype in (torch.float16, torch.bfloat16) else grid
    places = [
        _padded_positions(_element_positions(x, size, align_corners), size, padding_mode, align_corners)
        for x, size in zip(points.unbind(-1), sizes, strict=True)
    ]
    if interpolation_mode == NEAREST:
        return _elements_at(input, [p.round() for p in places], sizes)
    corners = torch.arange(8, device=input.device).reshape(8, 1, 1, 1)
    raised = [p.unsqueeze(1) for p in places]
    at = [p.floor() + (corners >> axis & 1) for axis, p in enumerate(raised)]
    weight = _product([1 - (p - a).abs() for p, a in zip(raised, at, strict=True)])
    return (_elements_at(input, at, sizes) * weight.unsqueeze(1)).sum(2).to(input.dtype)


def _product(factors: list[Tensor]) -> Tensor:
    return factors[0] * factors[1] * factors[2]


def _element_positions(x: Tensor, size: int, align_corners: bool) -> Tensor:
    """Map grid coordinates from -1 … 1 to element positions."""
    return (x + 1) * (size - 1) / 2 if align_corners else ((x + 1) * size - 1) / 2


def _padded_positions(place: Tensor, size: int, padding_mode: int, align_corners: bool) -> Tensor:
    """Return the position that is read for one beyond the ends; with zero padding it stays."""
    if padding_mode == REFLECTION:
        place = _reflected(place, 0.0, size - 1) if align_corners else _reflected(place, -0.5, size)
    return place.clamp(0, size - 1) if padding_mode in (BORDER, REFLECTION) else place


def _reflected(place: Tensor, low: float, span: int) -> Tensor:
    """Reflect positions beyond ``low`` or ``low + span`` until they are inside."""
    if span == 0:
        return torch.zeros_like(place)
    beyond = (place - low).abs()
    over = beyond - (beyond / (2 * span)).floor() * (2 * span)
    return torch.minimum(over, 2 * span - over) + low


def _elements_at(input: Tensor, at: list[Tensor], sizes: list[int]) -> Tensor:
    """Return the elements at integer positions [N, …] of [N, C, D, H, W], as [N, C, …]: zeros outside."""
    within, index = None, None
    for place, size in reversed(list(zip(at, sizes, strict=True))):
        here = (place >= 0) & (place <= size - 1)
        whole = place.clamp(0, size - 1).to(torch.int64)
        within = here if within is None else within & here
        index = whole if index is None else index * size + whole
    assert within is not None and index is not None
    flat = index.flatten(1).unsqueeze(1).expand(-1, input.shape[1], -1)
    found = input.flatten(2).gather(2, flat).unflatten(2, list(index.shape[1:]))
    return torch.where(within.unsqueeze(1), found, torch.zeros((), dtype=input.dtype, device=input.device))
