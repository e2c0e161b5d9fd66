"""Rows of a table."""

from __future__ import annotations

from pipeline.converters.context import ConversionContext
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.index import take


def embedding(ctx: ConversionContext, name: str, weight: Value, indices: Value) -> ITensor:
    """The rows of ``weight`` that ``indices`` name."""
    return take(ctx, name, base.tensor(ctx, name, weight), indices, 0)
