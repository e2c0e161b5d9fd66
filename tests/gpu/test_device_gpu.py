"""A module on a GPU gives the graph that ``device="cuda"`` gives without one; what torch makes of models there runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import pipeline
from benchmarks import zoo
from examples.models import SMALL, Case, small
from pipeline.testing.programs import first_difference

pytestmark = pytest.mark.gpu

aten = torch.ops.aten
FROM_ZOO = {
    *("albert", "deberta-v2", "gpt_bigcode", "qwen3_moe", "mamba", "efficientnet", "poolformer", "levit", "glpn"),
    *("yolos", "ast", "clip", "patchtst_regression"),
}
CASES: dict[str, Callable[[], Case]] = {
    **{name: (lambda name=name: small(name)) for name in sorted(SMALL)},  # type: ignore[misc]
    **{each.name: each.case for t in zoo.TABLES for each in zoo.architectures(t) if each.name in FROM_ZOO},
}


def on_gpu(value: Any) -> Any:
    return tree_map(lambda v: v.cuda() if isinstance(v, torch.Tensor) else v, value)


@pytest.mark.parametrize("gpu", [True, False], ids=["with a GPU", "as without one"])
@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_same(name: str, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case, decompose = CASES[name](), pipeline.default().until("decompose")
    _, case = zoo.captured(case)
    with monkeypatch.context() as patched:
        if not gpu:
            patched.setattr(torch.cuda, "is_available", lambda: False)
        shown = pipeline.capture(case.model, (), case.kwargs, case.dynamic_shapes, device="cuda")
    assert not any(t.is_cuda for t in case.model.parameters())
    there = pipeline.capture(case.model.cuda(), (), on_gpu(case.kwargs), case.dynamic_shapes)
    different = first_difference(decompose(shown), decompose(there))
    assert not different, different


class Calls(torch.nn.Module):
    """A function of tensors as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


KERNELS: dict[str, tuple[Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "flash": (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v)[:2], (torch.float16, torch.bfloat16)),
    "flash, causal": (
        lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.2)[:2],
        (torch.float16,),
    ),
    "efficient": (
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False, 0.0, True)[0],
        (torch.float32, torch.float16),
    ),
    "cudnn": (
        lambda q, k, v: aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, True)[0],
        (torch.float16,),
    ),
    "flash forward": (
        lambda q, k, v: aten._flash_attention_forward(q, k, v, None, None, 64, 64, 0.0, True, False)[:2],
        (torch.float16,),
    ),
    "efficient forward": (
        lambda q, k, v: aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, 1)[0],
        (torch.float32, torch.float16),
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, row in KERNELS.items() for dtype in row[1]], ids=str
)
def test_attention_kernels_in_a_model(name: str, dtype: torch.dtype) -> None:
    inputs = tuple(torch.randn(2, 64, 64, 32, device="cuda", dtype=dtype) for _ in range(3))
    model = Calls(KERNELS[name][0])
    compiled = pipeline.default(require_full_compilation=True)(model, inputs)
    close(compiled(*inputs), model(*inputs), 2e-2)


def close(actual: Any, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


LAYERS = {
    "lstm": lambda: torch.nn.LSTM(8, 16, num_layers=2, batch_first=True),
    "gru": lambda: torch.nn.GRU(8, 16, bidirectional=True),
    "rnn": lambda: torch.nn.RNN(8, 16),
    "lstm cell": lambda: torch.nn.LSTMCell(8, 16),
    "lstm cell without biases": lambda: torch.nn.LSTMCell(8, 16, bias=False),
    "gru cell": lambda: torch.nn.GRUCell(8, 16),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers(name: str) -> None:
    layer = LAYERS[name]().eval().cuda()
    x = torch.randn(*((4,) if "cell" in name else (4, 5)), 8, device="cuda")
    compiled = pipeline.default(require_full_compilation=True)(layer, (x,))
    with torch.no_grad():
        close(compiled(x), layer(x), 1e-2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ints_are_counted(dtype: torch.dtype) -> None:
    x = torch.randint(-4, 10, (500,), device="cuda", dtype=dtype)
    model = Calls(lambda x: (torch.histc(x, 4, 0, 3), torch.histc(x, 5, -2, 7), torch.histc(x, 16, 1, 6)))
    compiled = pipeline.default(require_full_compilation=True)(model, (x,))
    close(compiled(x), model(x), 0)


def test_statistics_of_a_batch_norm() -> None:
    inputs = torch.randn(2, 3, 4, device="cuda"), torch.randn(3, device="cuda"), torch.rand(3, device="cuda") + 0.5
    model = Calls(lambda x, mean, var: aten._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5))
    close(pipeline.default(require_full_compilation=True)(model, inputs)(*inputs), model(*inputs), 1e-4)
