"""Whether this TensorRT builds engines that are refitted in place, on this GPU (docs/versions.md)."""

from __future__ import annotations

import pytest
import torch

from pipeline.trt import CAPABILITIES, has_gpu

REFITS = not (
    CAPABILITIES.flavour == "tensorrt_rtx"
    and CAPABILITIES.version_tuple >= (1, 5)
    and has_gpu()
    and torch.cuda.get_device_capability() == (9, 0)
)
needs_refit = pytest.mark.skipif(not REFITS, reason="TensorRT-RTX 1.5 and newer build no engine that refits on an H100")
