"""Layer kinds that change the dtype: casts."""

import torch

from pipeline.network.description import Layer
from pipeline.trt import torch_dtype


def converted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast as a GPU does: floats are truncated to integers, saturating at the bounds. NaN becomes 0, or the least
    int64; int8 and uint8 are the low byte of the int32 (measured on RTX 1.4)."""
    if not x.is_floating_point() or dtype.is_floating_point or dtype == torch.bool:
        return x.to(dtype)
    if dtype.itemsize == 1:
        return converted(x, torch.int32).to(dtype)
    bounds = torch.iinfo(dtype)
    nan = float(bounds.min) if dtype == torch.int64 else 0.0
    exact = x.double().nan_to_num(nan=nan, posinf=float(bounds.max), neginf=float(bounds.min)).trunc()
    inside = exact.clamp(float(bounds.min), float(bounds.max))
    high, low = exact >= float(bounds.max), exact <= float(bounds.min)  # 2**63 - 1 is not a float64
    return inside.masked_fill(high | low, 0).to(dtype).masked_fill(high, bounds.max).masked_fill(low, bounds.min)


def cast(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return converted(x, torch_dtype(layer.attribute("to_type")))


def identity(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """Return the input, cast if the output has another dtype."""
    return converted(x, torch_dtype(layer.outputs[0].dtype))
