"""The front door with tensors on a GPU: examples that are one tensor, inputs by shape beside them, wrong dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.capture.test_aliased_inputs import Difference, Weighed
from tests.runtime.test_memory_overlap import Adds

pytestmark = pytest.mark.gpu


def on_gpu(*shape: int) -> torch.Tensor:
    """Random numbers on the GPU."""
    return torch.randn(*shape, device="cuda")


def test_two_inputs_are_two() -> None:
    same, big, x, y = on_gpu(2, 4), on_gpu(3, 4), on_gpu(2, 4), on_gpu(2, 4)
    for pair in ((same, same), (big[:2], big[1:]), (same, same.detach())):
        compiled = pipeline.default()(Difference().eval(), pair)
        torch.testing.assert_close(compiled(x, y), x - y)
        torch.testing.assert_close(compiled(x, x), x - x)


def test_an_input_is_no_weight() -> None:
    model, x = Weighed().eval().cuda(), on_gpu(2, 4)
    model.other = model.other.cuda()
    for example in (model.weight, model.buffer, model.other):
        torch.testing.assert_close(pipeline.default()(model, (example,))(x), model(x))


def test_an_input_by_shape_lies_where_the_tensors_do() -> None:
    shape, x = pipeline.Input((2, 4)), on_gpu(2, 4)
    for pair in ((x, shape), (shape, x), (pipeline.Input((2, 4), device="cuda"),) * 2):
        program = pipeline.capture(Difference().eval(), pair)
        assert all(n.meta["val"].is_cuda for n in program.graph.nodes if n.op == "placeholder")
        torch.testing.assert_close(pipeline.default()(Difference().eval(), pair)(x, x + 1), torch.full_like(x, -1.0))


def test_an_input_on_the_cpu_beside_a_model_on_the_gpu_is_told() -> None:
    with pytest.raises(pipeline.CaptureError, match="input input is on cpu, the model is on cuda:0"):
        pipeline.capture(nn.Linear(4, 4).cuda().eval(), (torch.ones(2, 4),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.float64])
def test_a_wrong_dtype_is_told(dtype: torch.dtype) -> None:
    model, x = nn.Linear(4, 4).cuda().eval(), on_gpu(2, 4)
    with pytest.raises(pipeline.DtypeError, match=r"^input input is \w+, expected float32: "):
        pipeline.capture(model, (x.to(dtype),))
    with pytest.raises(pipeline.DtypeError, match=r"^input input is \w+, expected float32: "):
        pipeline.default()(model, (x,))(x.to(dtype))


@pytest.mark.parametrize("fields", [{}, {"cuda_graphs": True}])
def test_what_is_written_to_lies_in_no_other_input(fields: dict[str, Any]) -> None:
    compiled = pipeline.default(min_block_size=1, **fields)(Adds().eval(), (on_gpu(2, 4), on_gpu(2, 4)))
    for _ in range(4):
        big = torch.zeros(3, 8, device="cuda")
        with pytest.raises(ValueError, match="inputs x and y lie in the same memory"):
            compiled(big[:2, :4], big[1:, :4])
        assert not big.any()
        assert (compiled(big[:2, :4], big[:2, 4:]) == 1).all()
        assert (big[:2, :4] == 1).all() and not big[:, 4:].any()
