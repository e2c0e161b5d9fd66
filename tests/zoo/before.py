"""What torch.export does not capture before torch 2.13, and why; the rest of the zoo it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

EVEN = "torch.export before 2.13 takes for known whether a pooled size is even"
COUNTED = "torch.export before 2.13 asks how many elements a tensor has, which varies"

BEFORE: Final[Mapping[str, str]] = {
    "quantile": COUNTED,
    "quantiles": COUNTED,
    "CrossEntropyLoss of probabilities": "torch.export before 2.13 takes the batch for known",
    "MaxPool2d [n,2,h,w] kernel_size=3 stride=2 padding=1": EVEN,
    "MaxPool2d [n,2,h,w] kernel_size=2 ceil_mode=True": EVEN,
    "MaxPool2d [n,2,h,w] kernel_size=2 dilation=2 return_indices=True": EVEN,
    "AvgPool2d [n,2,h,w] kernel_size=3 stride=2 padding=1": EVEN,
    "AvgPool2d [n,2,h,w] kernel_size=3 stride=2 padding=1 count_include_pad=False": EVEN,
    "AvgPool2d [n,2,h,w] kernel_size=3 stride=2 ceil_mode=True": EVEN,
    "AvgPool2d [n,2,h,w] kernel_size=2 divisor_override=3": EVEN,
    "LPPool2d [n,2,h,w] norm_type=2 kernel_size=2": EVEN,
    "MaxUnpool2d of free size": EVEN,
}


def older_than(*version: int) -> bool:
    """Whether the torch that runs the tests is older than a version."""
    return tuple(int(part) for part in torch.__version__.split(".")[: len(version)]) < version
