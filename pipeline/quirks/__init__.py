"""Bugs in TensorRT's kernels: one table of them, a pass that marks where they are avoided, and detectors for plans."""

from pipeline.quirks.applied import assume, has_bug, is_avoided, without
from pipeline.quirks.quirk import Quirk
from pipeline.quirks.table import QUIRKS

__all__ = ["QUIRKS", "Quirk", "assume", "has_bug", "is_avoided", "without"]
