"""Bugs in TensorRT's kernels: a table of the bugs, analyses that mark nodes to work around, and detectors for plans."""

from pipeline.quirks.applied import assume, has_bug, is_avoided, without
from pipeline.quirks.quirk import Quirk
from pipeline.quirks.table import QUIRKS

__all__ = ["QUIRKS", "Quirk", "assume", "has_bug", "is_avoided", "without"]
