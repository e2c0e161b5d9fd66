"""Convert dtypes of torch, TensorRT and numpy."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.aten.types import Argument
from pipeline.trt import to_torch, trt


def torch_dtype(dtype: Argument) -> torch.dtype | None:
    """Return the torch dtype of a dtype of torch, TensorRT or numpy; None for None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    return to_torch(dtype) if isinstance(dtype, trt.DataType) else torch.from_numpy(np.empty(0, dtype)).dtype
