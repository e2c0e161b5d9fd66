"""Passes over a program's graph that make better networks: each is small, has a name, and can be left out."""

from __future__ import annotations

from typing import Final

from pipeline.improvements.activations import gelus
from pipeline.improvements.attention import attention
from pipeline.improvements.convolutions import scales
from pipeline.improvements.masks import masks
from pipeline.improvements.patches import patches
from pipeline.improvements.products import heads, products
from pipeline.improvements.rewriting import Improvement, Rewriting, improvement
from pipeline.improvements.rows import rows
from pipeline.improvements.selections import selections

PASSES: Final = (gelus, attention, masks, rows, selections, scales, patches, products, heads)
"""All passes, in the order in which they run: each leaves the graph as the next one wants it."""

__all__ = ["PASSES", "Improvement", "Rewriting", "improvement"]
