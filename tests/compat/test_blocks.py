"""Torch-TensorRT's building blocks: each computes what its operator does, over calls that Hypothesis draws."""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
import pytest

from pipeline import DECOMPOSITIONS, ConverterPriority, dynamo_tensorrt_converter
from pipeline.aten.arguments import bind
from pipeline.compat.torch_tensorrt import SourceIR
from pipeline.testing import check_converter
from pipeline.testing.strategies import strategy_for
from tests.compat.block_rows import ROWS, Row

pytestmark = pytest.mark.slow

PROFILE = hypothesis.settings(max_examples=2, derandomize=True, deadline=None, database=None)


def converter_of(row: Row) -> Any:
    """A converter of the row's operator by its block alone."""

    @dynamo_tensorrt_converter(row.target, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
    def by_block(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        begun = functools.partial(row.function, ctx, target, SourceIR.ATEN, name)
        return row.says(begun, *bind(target, args, kwargs))

    return by_block


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.block}-{row.target}")
def test_a_block_computes_what_its_operator_does(row: Row) -> None:
    drawn = strategy_for(row.target)
    assert drawn is not None
    whole = DECOMPOSITIONS.without(row.target)
    check_converter(
        converter_of(row), profile=PROFILE, build_every=0, decompositions=whole, strategy=drawn.filter(row.only)
    )
