"""Kernel faults of TensorRT: one table, which passes ask before a network is made."""

from pipeline.quirks.table import QUIRKS, Quirk, applies

__all__ = ["QUIRKS", "Quirk", "applies"]
