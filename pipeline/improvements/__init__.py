"""Passes that rewrite a program's graph so that TensorRT builds faster networks. Users can skip a pass by its name.

A pass is a function with the name of its module; its decorator `improvement` also names the pass that runs before it.
"""

from __future__ import annotations

import importlib
import pkgutil
from graphlib import TopologicalSorter
from typing import Final

from pipeline.improvements.rewriting import Improvement, Rewriting, improvement


def _passes() -> tuple[Improvement, ...]:
    """Return the passes of this package, sorted in the order in which they run."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = (getattr(importlib.import_module(f"{__name__}.{name}"), name, None) for name in names)
    passes = {each.name: each for each in found if isinstance(each, Improvement)}
    after = TopologicalSorter({each.name: (each.after,) if each.after else () for each in passes.values()})
    return tuple(passes[name] for name in after.static_order())


PASSES: Final = _passes()
"""All passes, in the order in which they run: each pass leaves the graph as the next pass expects it."""

RENAMED: Final = {
    "gelus": "fuse_gelu",
    "attention": "fuse_attention",
    "masks": "simplify_masks",
    "rows": "masked_rows",
    "selections": "push_down_slices",
    "scales": "fold_batch_norm",
    "patches": "patch_embedding",
    "products": "merge_linears",
    "heads": "merge_head_views",
}
"""The current name of each renamed pass, by its former name; error messages suggest it."""

__all__ = ["PASSES", "RENAMED", "Improvement", "Rewriting", "improvement"]
