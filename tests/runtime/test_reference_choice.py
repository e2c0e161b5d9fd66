"""What TensorRT does not document: what layers that choose do with NaN, and among equals.

RTX 1.4 passes over NaN in reductions to an extremum, in TopK with k above 1 and in pooling, as if it were the infinity
that is chosen last (measured on an H200); with k = 1 TopK gives it where it is the last of its row. Sums, products and
RELU keep it. Of equals TopK takes the first. Converters see to it that
amax, max, argmax and their like give NaN as eager does; max_pool does not, and topk and sort put NaN among infinities.
On a GPU the engine is compared with the reference here as everywhere (tests/gpu/test_agreement.py).
"""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.trt import trt
from tests.runtime.reference_networks import Net, computed

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PLACES = (0, 3, 7)
VALUES = (1.0, math.inf, -2.0, 0.5, -math.inf, 3.0, 2.0, -1.0)


def rows(dtype: torch.dtype) -> torch.Tensor:
    """A row for each place, where NaN stands among other numbers."""
    x = torch.tensor(VALUES).repeat(len(PLACES), 1)
    for row, place in enumerate(PLACES):
        x[row, place] = math.nan
    return x.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", ["SUM", "PROD", "AVG"])
def test_sums_keep_nan(op: str, dtype: torch.dtype) -> None:
    operation = trt.ReduceOperation.__members__[op]
    result = computed(lambda net, x: net.net.add_reduce(x, operation, 2, False), rows(dtype))
    assert result.isnan().all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("op", "extreme"), [("MAX", math.inf), ("MIN", -math.inf)])
def test_extrema_pass_over_nan(op: str, extreme: float, dtype: torch.dtype) -> None:
    operation = trt.ReduceOperation.__members__[op]
    result = computed(lambda net, x: net.net.add_reduce(x, operation, 2, False), rows(dtype))
    assert result.tolist() == [extreme] * len(PLACES)


def ordered(x: torch.Tensor, operation: trt.TopKOperation, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    net = Net()
    layer = net.net.add_topk(net.input(x), operation, k, 2)
    values, indices = net.output(layer.get_output(0), layer.get_output(1)).run()
    return values, indices


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_top_k_passes_over_nan(dtype: torch.dtype) -> None:
    values, _ = ordered(rows(dtype), trt.TopKOperation.MAX, 3)
    assert values.tolist() == [[math.inf, 3.0, 2.0]] * len(PLACES)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("operation", [trt.TopKOperation.MAX, trt.TopKOperation.MIN], ids=["MAX", "MIN"])
def test_of_equals_top_k_takes_the_first(operation: trt.TopKOperation, dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2, 2, 1, 1, 2], [5, 5, 5, 5, 5, 5]]).to(dtype)
    _, indices = ordered(x, operation, 1)
    assert indices.tolist() == [[1 if operation == trt.TopKOperation.MAX else 0], [0]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_relu_keeps_nan(dtype: torch.dtype) -> None:
    result = computed(lambda net, x: net.net.add_activation(x, trt.ActivationType.RELU), rows(dtype))
    torch.testing.assert_close(result, rows(dtype).relu(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pooling_passes_over_nan(dtype: torch.dtype) -> None:
    x = rows(dtype).reshape(1, len(PLACES), 2, 4)
    result = computed(lambda net, y: net.net.add_pooling_nd(y, trt.PoolingType.MAX, (2, 2)), x)
    assert not result.isnan().any()
