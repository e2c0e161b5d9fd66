"""Calls of softmax and its logarithm."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.testing.calls import Call
from pipeline.testing.strategies.common import Draw, calls, dims, floats, named, shapes, tensors

aten = torch.ops.aten

# RTX 1.4 drops the middle of the casts int64 -> float16 -> float32 (softmax gives 1.0 for NaN where float16 overflows):
# integers that a half rounds are not drawn for a half.
VALUES = st.sampled_from(("normal", "large", "special"))


@calls(aten._softmax.default, aten._log_softmax.default)
def native(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes()), draw(floats)
    return draw(named(Call(target, (draw(tensors(shape, dtype, VALUES)), draw(dims(len(shape))), False))))


@calls(aten.softmax.int, aten.log_softmax.int)
def composite(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes()), draw(floats | st.just(torch.int64))
    wanted = draw(floats if dtype == torch.int64 else st.none() | st.just(torch.float32))
    values = "normal" if dtype == torch.int64 and wanted != torch.float32 else VALUES
    return draw(named(Call(target, (draw(tensors(shape, dtype, values)), draw(dims(len(shape))), wanted))))


STRATEGIES = {**native, **composite}
