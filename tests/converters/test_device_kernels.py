"""Operators that are a kernel of one device, captured as on a GPU, are one engine, and right in every argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline.converters import DECOMPOSITIONS

aten = torch.ops.aten
Tensor = torch.Tensor


class Calls(torch.nn.Module):
    """A function of tensors as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def run(function: Callable[..., Any], *inputs: Tensor, dims: Any = None) -> Any:
    """What a model gives that was captured as on a GPU, on the reference executor; all of it is in one engine."""
    compile = pipeline.default(device="cuda", require_full_compilation=True)
    compiled = compile(Calls(function), inputs, dynamic_shapes=None if dims is None else ((*dims,),))
    assert len(compiled.engines) == 1
    return compiled.module("reference")(*inputs)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention and its log-sum-exp, in float32."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q.float() * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)) @ k.float().mT
    scores = scores if mask is None else scores + mask
    return (scores.softmax(-1) @ v.float()).to(q.dtype), scores.logsumexp(-1)


def causal(queries: int, keys: int, shift: int = 0) -> Tensor:
    return torch.full((queries, keys), -math.inf).triu(shift + 1)


def operands(dtype: torch.dtype, keys: int = 6, heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, 4, 6, 8), (2, heads, keys, 8), (2, heads, keys, 8))
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)  # type: ignore[return-value]


BIAS = torch.randn(2, 4, 6, 6)
FLASH = aten._scaled_dot_product_flash_attention
FOR_CPU = aten._scaled_dot_product_flash_attention_for_cpu
EFFICIENT = aten._scaled_dot_product_efficient_attention
CUDNN = aten._scaled_dot_product_cudnn_attention
OVER = aten._scaled_dot_product_fused_attention_overrideable

CASES: dict[str, tuple[Callable[..., Any], Any, float | None]] = {
    "flash": (lambda q, k, v: FLASH(q, k, v)[:2], None, None),
    "flash, causal, scale": (lambda q, k, v: FLASH(q, k, v, 0.0, True, scale=0.2)[:2], causal(6, 6), 0.2),
    "for cpu": (lambda q, k, v: FOR_CPU(q, k, v, 0.0, True), causal(6, 6), None),
    "for cpu, mask": (lambda q, k, v: FOR_CPU(q, k, v, attn_mask=BIAS.to(v), scale=0.3), BIAS, 0.3),
    "efficient": (lambda q, k, v: EFFICIENT(q, k, v, None, True)[:2], None, None),
    "efficient, causal": (lambda q, k, v: EFFICIENT(q, k, v, None, True, 0.0, True)[:2], causal(6, 6), None),
    "efficient, bias": (lambda q, k, v: EFFICIENT(q, k, v, BIAS.to(v), True, scale=0.5)[:2], BIAS, 0.5),
    "efficient, causal bias": (
        lambda q, k, v: EFFICIENT(q, k, v, BIAS.to(v), True, 0.0, True)[:2],
        BIAS + causal(6, 6),
        None,
    ),
    "cudnn": (lambda q, k, v: CUDNN(q, k, v, None, True)[:2], None, None),
    "cudnn, causal": (lambda q, k, v: CUDNN(q, k, v, None, True, 0.0, True, scale=0.4)[:2], causal(6, 6), 0.4),
    "cudnn, bias": (lambda q, k, v: CUDNN(q, k, v, BIAS.to(v), False)[:2], BIAS, None),
    "overrideable": (lambda q, k, v: OVER(q, k, v, BIAS.to(v), 0.0, False, scale=0.7)[:2], BIAS, 0.7),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_attention_by_heads(case: str, dtype: torch.dtype) -> None:
    function, mask, scale = CASES[case]
    inputs = operands(dtype)
    result, sums = run(function, *inputs)
    expected, logarithms = attention(*inputs, mask, scale)
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if dtype == torch.float16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(result, expected, **tolerance)
    assert sums.dtype == torch.float32
    sums = sums[..., 0] if case.startswith("cudnn") else sums
    torch.testing.assert_close(sums[..., :6], logarithms, **tolerance)
    assert sums.shape[-1] == (32 if case.startswith("efficient") else 6) and bool(sums[..., 6:].isinf().all())


def test_without_sums_there_are_none() -> None:
    result, sums = run(lambda q, k, v: EFFICIENT(q, k, v, None, False)[:2], *operands(torch.float32))
    assert sums.shape == (2, 4, 0) and result.shape == (2, 4, 6, 8)


def test_the_flash_kernel_ends_at_the_last_key_and_groups_heads() -> None:
    inputs = operands(torch.float32, keys=9, heads=2)
    result, sums = run(lambda q, k, v: FLASH(q, k, v, 0.0, True)[:2], *inputs)
    expected, logarithms = attention(*inputs, causal(6, 9, 3))
    torch.testing.assert_close((result, sums), (expected, logarithms), rtol=1e-4, atol=1e-5)


FORWARD: dict[str, tuple[Callable[..., Any], Any]] = {
    "flash": (lambda q, k, v: aten._flash_attention_forward(q, k, v, None, None, 6, 9, 0.0, False, False)[:2], None),
    "flash, causal": (
        lambda q, k, v: aten._flash_attention_forward(q, k, v, None, None, 6, 9, 0.0, True, False)[:2],
        causal(6, 9, 3),
    ),
    "flash, window": (
        lambda q, k, v: aten._flash_attention_forward(
            q, k, v, None, None, 6, 9, 0.0, False, False, window_size_left=2, window_size_right=1
        )[:2],
        causal(6, 9, 4) + causal(9, 6, -2).mT,
    ),
    "efficient": (
        lambda q, k, v: aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, 0, True)[:2],
        None,
    ),
    "efficient, upper left": (
        lambda q, k, v: aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, 1, True)[:2],
        causal(6, 9),
    ),
    "efficient, lower right": (
        lambda q, k, v: aten._efficient_attention_forward(q, k, v, None, None, None, None, None, 0.0, 2, True)[:2],
        causal(6, 9, 3),
    ),
}


@pytest.mark.parametrize("case", FORWARD)
def test_attention_by_positions(case: str) -> None:
    function, mask = FORWARD[case]
    inputs = operands(torch.float32, keys=9)
    if case == "flash, window":
        window = [[j - i - 3 in range(-2, 2) for j in range(9)] for i in range(6)]
        mask = torch.where(torch.tensor(window), 0.0, -math.inf)
    result, sums = run(function, *(x.transpose(1, 2).contiguous() for x in inputs))
    expected, logarithms = attention(*inputs, mask)
    torch.testing.assert_close(result.transpose(1, 2), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sums[..., :6], logarithms, rtol=1e-4, atol=1e-5)


def test_lengths_may_be_dynamic() -> None:
    inputs = operands(torch.float32)
    length = Dim("length", min=2, max=16)
    compile = pipeline.default(device="cuda", require_full_compilation=True)
    model = Calls(lambda q, k, v: EFFICIENT(q, k, v, None, True, 0.0, True)[:2])
    module = compile(model, inputs, dynamic_shapes=(tuple({2: length} for _ in inputs),)).module("reference")
    for size in (2, 9, 16):
        q, k, v = (torch.randn(2, 4, size, 8) for _ in range(3))
        result, sums = module(q, k, v)
        expected, logarithms = attention(q, k, v, causal(size, size))
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sums[..., :size], logarithms, rtol=1e-4, atol=1e-5)


def test_dropout_runs_in_torch_with_its_reason() -> None:
    compiled = pipeline.default(device="cuda")(Calls(lambda q, k, v: FLASH(q, k, v, 0.5)[0]), operands(torch.float32))
    assert "random" in compiled.coverage.fallback[0].reason


@pytest.mark.parametrize(("low", "high", "bins"), [(0, 3, 4), (-2, 7, 5), (1, 6, 16), (0.5, 5.9, 3)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_ints_are_counted_as_on_a_gpu(low: float, high: float, bins: int, dtype: torch.dtype) -> None:
    x = torch.randint(-4, 10, (200,), dtype=dtype)
    first, last = int(low), int(high)
    places = [min((v - first) * bins // (last - first), bins - 1) for v in x.tolist() if first <= v <= last]
    counts = run(lambda x: torch.histc(x, bins, low, high), x)
    assert counts.dtype == dtype and counts.tolist() == [places.count(b) for b in range(bins)]


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_right(kind: Any, bias: bool) -> None:
    cell, x = kind(5, 7, bias=bias).eval(), torch.randn(3, 5)
    compile = pipeline.default(device="cuda", require_full_compilation=True)
    with torch.no_grad():
        torch.testing.assert_close(compile(cell, (x,)).module("reference")(x), cell(x))


KINDS = {"relu": torch.nn.RNN, "tanh": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("relu", {"nonlinearity": "relu"}),
        ("tanh", {"bias": False}),
        ("gru", {"batch_first": True, "num_layers": 2}),
        ("lstm", {"bidirectional": True}),
        ("lstm", {"proj_size": 3, "batch_first": True}),
        ("lstm", {"bias": False, "num_layers": 2}),
    ],
    ids=str,
)
def test_cudnns_recurrent_layers_are_torchs(kind: str, options: dict[str, Any]) -> None:
    layer, x = KINDS[kind](5, 7, **options).eval(), torch.randn(4, 2, 5)
    weights = list(layer._flat_weights)
    directions = (1 + layer.bidirectional) * layer.num_layers
    batch = 4 if layer.batch_first else 2
    hx = torch.randn(directions, batch, layer.proj_size or 7)
    cx = torch.randn(directions, batch, 7) if kind == "lstm" else None
    states = (hx,) if cx is None else (hx, cx)

    def call(x: Tensor, hx: Tensor, cx: Tensor | None = None) -> Any:
        rest = (layer.num_layers, layer.batch_first, 0.0, False, bool(layer.bidirectional), [], None)
        stride = len(weights) // directions
        own = [w.to(x.device) for w in weights]
        mode = [*KINDS].index(kind)
        return aten._cudnn_rnn(x, own, stride, None, hx, cx, mode, 7, layer.proj_size, *rest)[: 1 + len(states)]

    with torch.no_grad():
        output, last = layer(x, hx if cx is None else states)
    torch.testing.assert_close(run(call, x, *states), (output, *(last if isinstance(last, tuple) else (last,))))


@pytest.mark.parametrize("training", [True, False])
def test_statistics_beside_a_batch_norm_are_a_gpus(training: bool) -> None:
    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3) + 0.5

    def call(x: Tensor, mean: Tensor, var: Tensor) -> Any:
        return aten._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5)

    result, kept, scale = run(call, x, mean, var)
    torch.testing.assert_close(result, torch.batch_norm(x, None, None, mean, var, False, 0.1, 1e-5, False))
    torch.testing.assert_close((kept, scale), (mean, (var + 1e-5).rsqrt()))


W, X = torch.randn(6, 2, 3, 3), torch.randn(1, 4, 7, 7)
PLAIN = ([2, 1], [1, 0], [1, 2])
CONVOLVED = torch.convolution(X, W, torch.ones(6), [2, 1], [1, 0], [1, 2], False, [0, 0], 2)
SAME: dict[Any, tuple[tuple[Any, ...], Tensor]] = {
    aten._convolution.default: ((X, W, torch.ones(6), *PLAIN, False, [0, 0], 2, False, False, True, True), CONVOLVED),
    aten.cudnn_convolution.default: ((X, W, [1, 0], [2, 1], [1, 2], 2, False, False, True), CONVOLVED - 1),
    aten.mkldnn_convolution.default: ((X, W, torch.ones(6), [1, 0], [2, 1], [1, 2], 2), CONVOLVED),
    aten.cudnn_convolution_relu.default: ((X, W, torch.ones(6), *PLAIN, 2), CONVOLVED.relu()),
    aten.cudnn_convolution_add_relu.default: (
        (X, W, CONVOLVED, 0.5, torch.ones(6), *PLAIN, 2),
        (1.5 * CONVOLVED).relu(),
    ),
    aten.cudnn_convolution_transpose.default: (
        (X, W[:4], [1, 0], [1, 0], [2, 1], [1, 2], 2, False, False, True),
        torch.nn.functional.conv_transpose2d(X, W[:4], None, [2, 1], [1, 0], [1, 0], 2, [1, 2]),
    ),
    aten._conv_depthwise2d.default: (
        (X, W[:4, :1], [3, 3], None, [1, 1], [1, 1], [2, 2]),
        torch.nn.functional.conv2d(X, W[:4, :1], None, 1, 1, 2, 4),
    ),
    aten._slow_conv2d_forward.default: (
        (X, W.repeat(1, 2, 1, 1), [3, 3], torch.ones(6), [2, 2], [1, 1]),
        torch.nn.functional.conv2d(X, W.repeat(1, 2, 1, 1), torch.ones(6), 2, 1),
    ),
    aten.slow_conv_transpose2d.default: (
        (X, W[:4], [3, 3], torch.ones(2), [2, 2], [1, 1], [1, 1], [1, 1]),
        torch.nn.functional.conv_transpose2d(X, W[:4], torch.ones(2), 2, 1, 1),
    ),
    aten.cudnn_grid_sampler.default: (
        (X, torch.linspace(-1.2, 1.2, 32).reshape(1, 4, 4, 2)),
        torch.nn.functional.grid_sample(X, torch.linspace(-1.2, 1.2, 32).reshape(1, 4, 4, 2), align_corners=True),
    ),
    aten.cudnn_affine_grid_generator.default: (
        (torch.ones(1, 2, 3), 1, 2, 3, 4),
        torch.nn.functional.affine_grid(torch.ones(1, 2, 3), [1, 2, 3, 4], True),
    ),
    aten._weight_int8pack_mm.default: (
        (X.reshape(28, 7), torch.arange(-7, 7, dtype=torch.int8).reshape(2, 7), torch.tensor([0.5, 2.0])),
        X.reshape(28, 7) @ torch.arange(-7.0, 7.0).reshape(2, 7).mT * torch.tensor([0.5, 2.0]),
    ),
}


@pytest.mark.parametrize("target", SAME, ids=str)
def test_kernels_are_other_operators(target: Any) -> None:
    args, expected = SAME[target]
    torch.testing.assert_close(DECOMPOSITIONS[target](*args), expected)
