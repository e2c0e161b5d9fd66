"""convert: what it notes beside the networks, and which inputs these have."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
import pipeline.testing
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


class Overwrites(nn.Module):
    """Buffers and an input of which only the shape is read, since all of them is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        for i in range(3):
            self.register_buffer(f"length_{i}", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """[n, 3], [n, 3] -> [n, 3]"""
        for i in range(3):
            getattr(self, f"length_{i}").copy_((x.sum() * i).long())
        out.copy_(x[0] * self.length_2)
        return out + self.length_1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_is_overwritten_is_no_input_of_an_engine(dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"n": (2, 4, 8)} if dynamic else {}
    spec = pipeline.testing.TensorSpec(("n" if dynamic else 4, 3))
    with caplog.at_level(logging.WARNING, "pipeline.tensorrt"):
        compiled = pipeline.testing.check_model(Overwrites, (spec, spec), sizes=sizes, build=True)
    assert [record.message for record in caplog.records if record.name == "pipeline.tensorrt"] == []
    (network,) = compiled.networks
    assert not {"b_length_0", "b_length_1", "b_length_2"} & {tensor.name for tensor in network.inputs}


SHAPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "full_like": lambda state: torch.full_like(state, 2.5, dtype=torch.float16),
    "zeros_like": torch.zeros_like,
    "fill.Scalar": lambda state: torch.ops.aten.fill.Scalar(state, 3),
    "fill.Tensor": lambda state: torch.ops.aten.fill.Tensor(state, torch.tensor(0.25)),
    "new_full": lambda state: state.new_full((2, 3), 7),
    "new_zeros": lambda state: state.new_zeros((3,)),
    "empty_like": lambda state: torch.empty_like(state).isnan() | torch.tensor(True),
    "new_empty": lambda state: state.new_empty((0, 3)),
}


@pytest.mark.parametrize("name", SHAPED)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_gives_a_shape_alone_is_no_input_of_an_engine(name: str, dynamic: bool) -> None:
    """Beside another tensor, which tells the size."""

    class Shaped(nn.Module):
        def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return SHAPED[name](state.relu()), x + 1

    spec = pipeline.testing.TensorSpec(("n" if dynamic else 4, 3))
    sizes = {"n": (2, 4, 8)} if dynamic else {}
    options = {"torch_executed_ops": ["aten.relu.default"], "min_block_size": 1}
    compiled = pipeline.testing.check_model(Shaped, (spec, spec), sizes=sizes, **options)
    assert {port.name for segment in compiled.partitioned.engine_segments for port in segment.inputs} == {"x"}


@pytest.mark.parametrize("function", [lambda x, y: x * y.shape[0] + 1, lambda x, y: x[:1].expand(y.shape[0], 3) + 1])
def test_a_size_has_a_profile_where_a_shape_is_made_of_it(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return function(x, y)

    specs = (pipeline.testing.TensorSpec((4, 3)), pipeline.testing.TensorSpec(("n", 3)))
    with caplog.at_level(logging.WARNING, "pipeline.tensorrt"):
        pipeline.testing.check_model(Sized, specs, sizes={"n": (2, 5, 16)}, build=True)
    assert [record.message for record in caplog.records if record.name == "pipeline.tensorrt"] == []
