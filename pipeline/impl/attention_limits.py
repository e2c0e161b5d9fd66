"""The table of conditions under which TensorRT fuses an attention into one kernel.
The converter reads the table; for each condition, tests check a case that meets it and one that violates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import evolve, frozen

from pipeline.trt import CAPABILITIES

HALVES = (torch.float16, torch.bfloat16)
HEAD_DIMS = range(9, 257)
"""The head dims for which TensorRT-RTX 1.4 has fused attention kernels."""
BY_LAYER = CAPABILITIES.flavour == "tensorrt"
"""Whether to use TensorRT's attention layer. TensorRT-RTX fuses matmuls and a softmax into the same kernel, and better:
its layer accumulates scores in float16, does not build in all cases, and adds a kernel that copies the result."""


@frozen
class AttentionCase:
    """Shapes and options of an attention, to find out whether TensorRT fuses it; a dynamic size is an expression."""

    dtype: torch.dtype
    query: tuple[Any, ...]
    key: tuple[Any, ...]
    value: tuple[Any, ...]
    mask: tuple[Any, ...] | None = None
    mask_dtype: torch.dtype | None = None
    causal: bool = False
    gqa: bool = False


@frozen
class FusionCondition:
    """A condition for a fused attention: its description, and a function that says whether an attention meets it."""

    needs: str
    holds: Callable[[AttentionCase], bool]


def _has_divisible_heads(case: AttentionCase) -> bool:
    """Return whether the head counts are static, and equal, or that of keys is 1 or (``gqa``) divides the queries'."""
    queries, keys = case.query[1], case.key[1]
    if not isinstance(queries, int) or not isinstance(keys, int):
        return False
    return keys in (queries, 1) or (case.gqa and keys > 0 and queries % keys == 0)


CONDITIONS = (
    FusionCondition("a TensorRT that has the layer", lambda case: CAPABILITIES.attention != "none"),
    FusionCondition("float16 or bfloat16", lambda case: case.dtype in HALVES),
    FusionCondition("four dims", lambda case: len(case.query) == len(case.key) == len(case.value) == 4),
    FusionCondition("key and value of one shape", lambda case: case.key == case.value),
    FusionCondition("query and key of one batch", lambda case: case.query[0] == case.key[0]),
    FusionCondition("a known number of heads, equal, one for all, or grouped with enable_gqa", _has_divisible_heads),
    FusionCondition(
        f"a head dim of {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}",
        lambda case: isinstance(case.query[3], int) and case.query[3] in HEAD_DIMS,
    ),
    FusionCondition("something to attend to", lambda case: case.key[2] != 0),
    FusionCondition("a mask of at most four dims", lambda case: case.mask is None or len(case.mask) <= 4),
    FusionCondition(
        "a mask of bools, or of the query's dtype",
        lambda case: case.mask is None or case.mask_dtype in (torch.bool, case.dtype),
    ),
    FusionCondition("a mask or causal, not both", lambda case: case.mask is None or not case.causal),
)


PADDED_HEAD = 16
"""The head dim to which smaller head dims are padded with zeros, for a fused kernel."""


def pad_case(case: AttentionCase) -> AttentionCase:
    """Return the attention as the fused kernel gets it: of rank 4, with query, key and value padded to one head dim."""
    if not all(2 <= len(shape) <= 4 for shape in (case.query, case.key, case.value)):
        return case
    if case.mask is not None and len(case.mask) > len(case.query):
        return case
    width = padded_head_dim(case.query[-1], case.value[-1])
    shapes = []
    for *leading, length, head in (case.query, case.key, case.value):
        shapes.append((*leading, *(1,) * (2 - len(leading)), length, head if width is None else width))
    return evolve(case, query=shapes[0], key=shapes[1], value=shapes[2])


def padded_head_dim(query_head_dim: Any, value_head_dim: Any) -> int | None:
    """Return the head dim that queries, keys and values are padded to; None if one is dynamic or 0."""
    if not all(isinstance(size, int) and size > 0 for size in (query_head_dim, value_head_dim)):
        return None
    return PADDED_HEAD if max(query_head_dim, value_head_dim) < HEAD_DIMS[0] else max(query_head_dim, value_head_dim)


def first_unmet_condition(case: AttentionCase) -> FusionCondition | None:
    """Return the first condition that an attention violates; None if TensorRT can compute it in a fused kernel."""
    return next((condition for condition in CONDITIONS if not condition.holds(case)), None)
