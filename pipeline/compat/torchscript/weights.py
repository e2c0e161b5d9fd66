"""TensorRT weights of a tensor, an array or a number, with the metadata that converters for TorchScript read."""

from __future__ import annotations

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from pipeline.network.context import ConversionContext
from pipeline.records.wording import kind_of
from pipeline.trt import trt, weights_of


@frozen(eq=False)
class Weights:
    """Weights for layers: ``Weights(ctx, value)``.

    They share the value's memory if it is contiguous and on the CPU; then weights made from a parameter's tensor, or
    from its ``.numpy()``, can be refitted. A Python int is int64, a float is float32.

    Attributes:
        data: the ``trt.Weights``.
        shape: the sizes; a number has none.
        kernel_shape: the sizes after the first two, ``(1,)`` where there are no more: a convolution's kernel.
        num_output_maps: the number of output channels (``shape[0]``; 1 for a scalar).
        num_input_maps: the number of input channels (``shape[1]``; ``shape[0]`` below rank 2).

    Raises:
        TypeError: the value is not a tensor, array or number, or has a dtype that TensorRT does not have.
    """

    ctx: ConversionContext = field(repr=False)
    value: torch.Tensor | NDArray[np.generic] | float = field(repr=False)
    tensor: torch.Tensor = field(init=False, repr=False)
    data: trt.Weights = field(init=False)

    @tensor.default
    def _as_tensor(self) -> torch.Tensor:
        value = self.value
        if isinstance(value, torch.Tensor):
            return value.detach().cpu().contiguous()
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, np.generic):
            return torch.tensor(value)
        if isinstance(value, bool | int | float):
            return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)
        raise TypeError(f"Weights are of a tensor, an array or a number, not of {kind_of(value)}")

    @data.default
    def _held(self) -> trt.Weights:
        self.ctx.cpu_weights_reference_holder.append(self.tensor)
        return weights_of(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        return self.shape[2:] or (1,)

    @property
    def num_output_maps(self) -> int:
        return (*self.shape, 1)[0]

    @property
    def num_input_maps(self) -> int:
        return self.shape[1] if len(self.shape) > 1 else self.num_output_maps
