"""convert: what it notes beside the networks."""

from __future__ import annotations

from typing import Any

import torch

import pipeline
from pipeline.impl import base

aten = torch.ops.aten


@pipeline.dynamo_tensorrt_converter(aten.linear.default, priority=pipeline.ConverterPriority.HIGH)
def scales_its_weight(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """A product, and constants that follow the weight in no recipe."""
    x, weight, *_ = args
    for k in range(8):
        x = base.elementwise(ctx, name, "SUM", x, base.constant(ctx, name, weight.detach() * k))
    return x


def test_what_a_converter_computes_from_weights_is_noted_in_the_order_in_which_it_appears() -> None:
    registry = pipeline.DYNAMO_CONVERTERS.register(scales_its_weight)
    compile = pipeline.default(registry=registry, min_block_size=1).until("convert")
    converted = compile(torch.nn.Linear(4, 4, bias=False).eval(), (torch.ones(4, 4),))
    assert len(converted.computed) == 8
    assert list(converted.computed) == [name for name in converted.literals if name in converted.computed]
