"""Replace the experts of Switch Transformers, which transformers runs in a loop with a data-dependent number of steps.

For other mixtures of experts transformers has grouped matmuls (`pipeline.compat.transformers.attention.one_form`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch

from pipeline.compat.transformers.caches import Pretrained

SWITCH: Final = "SwitchTransformersExperts"


@contextmanager
def without_loops(step: torch.nn.Module) -> Iterator[None]:
    """Return a context in which each Switch expert of a step computes all rows; a mask selects those routed to it."""
    found = [each for each in step.modules() if type(each).__name__ == SWITCH]
    for each in found:
        each.__dict__["forward"] = partial(_all_rows, each)
    try:
        yield
    finally:
        for each in found:
            del each.__dict__["forward"]


def _all_rows(experts: Pretrained, rows: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the experts' outputs [n, width] for rows [n, width]. ``chosen`` [n, 1, count] is 1 at the expert of a row,
    if that has capacity left, else 0; ``weights`` are [n, 1]."""
    result = torch.zeros_like(rows)
    for i in range(experts.num_experts):
        made = experts[f"expert_{i}"](rows) * weights
        result = torch.where(chosen[..., i] > 0, made.to(rows.dtype), result)
    return result
