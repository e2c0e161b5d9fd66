"""Transformers whose batch and length, or image size, vary: what to compile, and the sizes to try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline
from examples.models import Case, small

NAMES = ("bert", "gpt2", "llama", "t5", "vit", "whisper")

LENGTHS = ((1, 2, 2), (2, 12, 6), (8, 32, 32), (3, 9, 5), (5, 31, 2), (7, 3, 20))
"""batch, sequence, target: the least, those of the example, the greatest, and three between."""

IMAGES = ((1, 16, 16), (2, 40, 32), (4, 64, 64), (3, 24, 56), (1, 63, 17), (2, 48, 33))
"""batch, height, width, in the same order."""


def case(name: str, dtype: torch.dtype = torch.float32) -> Case:
    """The architecture at small size; ViT with images of any size, whose position embedding is interpolated."""
    made = small(name, dtype)
    if name != "vit":
        return made
    dims = {0: Dim("batch", min=1, max=4), 2: Dim("height", min=16, max=64), 3: Dim("width", min=16, max=64)}
    kwargs = {"pixel_values": torch.randn(2, 3, 40, 32).to(dtype), "interpolate_pos_encoding": True}
    return attrs.evolve(made, kwargs=kwargs, dynamic_shapes={"pixel_values": dims, "interpolate_pos_encoding": None})


def inputs(made: Case) -> Iterator[dict[str, Any]]:
    """Inputs of every size to try."""
    if made.name == "vit":
        yield from (made.inputs(batch=b, height=h, width=w) for b, h, w in IMAGES)
    else:
        yield from (made.inputs(batch=b, sequence=s, target=t) for b, s, t in LENGTHS)


def one_engine(made: Case, **fields: Any) -> pipeline.Compiled:
    """The case compiled, without fallback, into one engine."""
    compile = pipeline.default(require_full_compilation=True, **fields)
    compiled = compile(made.model, args=(), kwargs=made.kwargs, dynamic_shapes=made.dynamic_shapes)
    assert [s.kind for s in compiled.partitioned.segments] == ["engine"]
    return compiled


def agrees(ours: Any, theirs: Any, tolerance: float) -> None:
    """The same structure, shapes and dtypes, and values as close as a tolerance relative to the largest."""
    for a, e in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        scale = max(e.float().abs().max().item(), 1.0)
        torch.testing.assert_close(a.float().cpu(), e.float().cpu(), rtol=0, atol=tolerance * scale)
