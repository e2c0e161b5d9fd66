"""Accept both first arguments of converters: a conversion context, or a network (LEGACY convention)."""

from __future__ import annotations

from typing import TypeAlias

from pipeline.network.context import ConversionContext
from pipeline.network.legacy import LegacyNetwork

Conversion: TypeAlias = ConversionContext | LegacyNetwork


def context_of(given: Conversion) -> ConversionContext:
    """Return the `ConversionContext` for a converter's first argument."""
    if isinstance(given, LegacyNetwork):
        return given.ctx
    if not isinstance(given, ConversionContext):
        raise TypeError(f"a building block's first argument is the converter's own, ctx or network, not {given!r}")
    return given
