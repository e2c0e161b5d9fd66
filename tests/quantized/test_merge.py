"""INT8 weights of products of one tensor lie side by side: one product, which reads codes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.trt import CAPABILITIES
from tests.quantized.models import COMPILE, by_torchao

builds = pytest.mark.skipif(not CAPABILITIES.quantization, reason="TensorRT-RTX builds quantized networks from 1.6 on")


class Heads(nn.Module):
    """Three linear layers of one tensor, of other widths, and one that is of the first's result."""

    def __init__(self, width: int = 64, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, width, bias), nn.Linear(width, width // 2, bias)
        self.v, self.out = nn.Linear(width, width // 2, bias), nn.Linear(width, width, bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What each gives."""
        x = x.tanh()
        q = self.q(x).relu()
        return self.k(x), self.v(x), self.out(q)


def heads(seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return Heads(**options).eval()


def quantized(model: nn.Module, x: torch.Tensor, kind: Any = "int8", **options: Any) -> pipeline.Compiled:
    stage = pipeline.quantize(kind, **options)
    return COMPILE.insert(stage, before="decompose")(model, args=(x,))


def products(compiled: pipeline.Compiled) -> int:
    return compiled.networks[0].kinds()["MATRIX_MULTIPLY"]


def exact(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Eager's results with each weight as its codes have it."""
    from pipeline.improvements.quantizing import fake_quantize_weight

    with torch.no_grad():
        for layer in model.children():
            layer.weight.copy_(fake_quantize_weight(layer.weight, "int8", (1, -1)))  # type: ignore[operator, union-attr, arg-type]
        found: tuple[torch.Tensor, ...] = model(x)
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_three_products_are_one(bias: bool) -> None:
    x = torch.randn(2, 5, 64)
    compiled = quantized(heads(bias=bias), x)
    assert products(compiled) == 2
    assert sorted(w.shape for w in compiled.networks[0].weights if w.dtype == "int8") == [(64, 64), (64, 128)]
    torch.testing.assert_close(compiled(x), exact(heads(bias=bias), x), rtol=1e-5, atol=1e-6)


def test_batches_of_any_size() -> None:
    given = pipeline.Input(min_shape=(1, 5, 64), opt_shape=(2, 5, 64), max_shape=(8, 5, 64), dtype=torch.float32)
    compiled = COMPILE.insert(pipeline.quantize("int8"), before="decompose")(heads(), args=(given,))
    assert products(compiled) == 2
    for size in (1, 8):
        x = torch.randn(size, 5, 64)
        torch.testing.assert_close(compiled(x), exact(heads(), x), rtol=1e-5, atol=1e-6)


def test_a_refit_rounds_all_of_them_anew() -> None:
    x = torch.randn(2, 5, 64)
    compiled, other = quantized(heads(), x), quantized(heads(seed=1), x)
    given = dict(heads(seed=1).state_dict())
    names = [name for name, recipe in compiled.refit_map.items() if len(recipe.parameters) > 1]
    assert len(names) == 3, "codes, scales and biases"
    for name in names:
        wanted = other.refit_map[name].evaluate(other.program.parameters)
        assert torch.equal(compiled.refit_map[name].evaluate(given), wanted)


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_other_types_go_side_by_side_too(kind: str) -> None:
    x = torch.randn(2, 5, 64)
    compiled = quantized(heads(), x, kind)
    assert products(compiled) == 2
    with torch.no_grad():
        for found, wanted in zip(compiled(x), heads()(x), strict=True):  # type: ignore[call-overload]
            assert 0 < float((found - wanted).norm() / wanted.norm()) < (0.05 if kind == "fp8" else 0.2)


def test_weights_of_one_scale_and_of_one_a_column_go_side_by_side() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x @ self.whole(), x @ self.columns() + a

        def whole(self) -> torch.Tensor:
            one: Any = self.one
            return torch.fake_quantize_per_tensor_affine(one, 0.02, 0, -128, 127)

        def columns(self) -> torch.Tensor:
            two: Any = self.two
            zero = torch.zeros(48, dtype=torch.int32)
            return torch.fake_quantize_per_channel_affine(two, torch.linspace(0.01, 0.03, 48), zero, 1, -128, 127)

    model = Mixed().eval()
    model.one, model.two = nn.Parameter(torch.randn(64, 32)), nn.Parameter(torch.randn(64, 48))
    x, a = torch.randn(3, 5, 64), torch.randn(48)
    compiled = COMPILE(model, args=(x, a))
    assert products(compiled) == 1
    torch.testing.assert_close(compiled(x, a), model(x, a), rtol=1e-5, atol=1e-5)


def test_activations_in_codes_stay_apart() -> None:
    x = torch.randn(2, 5, 64)
    assert products(quantized(heads(), x, activations="int8", calibration=[x])) == 4


@pytest.mark.parametrize("dynamic", [False, True])
def test_torchaos_rows_keep_their_dims(dynamic: bool) -> None:
    """torchao flattens a tensor to rows, once for each layer, and gives each result its dims again."""
    config = pytest.importorskip("torchao.quantization").Int8WeightOnlyConfig()
    x = torch.randn(2, 5, 64)
    given = pipeline.Input(min_shape=(1, 5, 64), opt_shape=(2, 5, 64), max_shape=(8, 5, 64), dtype=torch.float32)
    model = by_torchao(config, heads())
    compiled = COMPILE(model, args=(given if dynamic else x,))
    assert products(compiled) == 2
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


@builds
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_builder_fuses_them(kind: Any, batch: int) -> None:
    """Apart, it dequantized query, key and value when it built; those of two batches by a kernel of its own."""
    x = torch.randn(batch, 68, 768).half()
    compile = pipeline.default(compute_capabilities=("8.9",)).insert(pipeline.quantize(kind), before="decompose")
    found = compile(heads(width=768).half(), args=(x,)).quantization
    assert len(found) == 2 and not [row for row in found if "during the build" in row.why]
    assert all(row.fused for row in found)


class Behind(nn.Module):
    """A linear layer of an attention's result, whose heads lie side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(768, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer of the attention of a tensor to itself."""
        heads = x.unflatten(-1, (12, 64)).transpose(1, 2)
        found = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        made: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return made


@builds
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_layer_behind_an_attention_is_fused(kind: Any, batch: int) -> None:
    """1.6.1 dequantized its weight by a kernel of its own."""
    compile = pipeline.default(compute_capabilities=("8.9",)).insert(pipeline.quantize(kind), before="decompose")
    compiled = compile(Behind().eval().half(), args=(torch.randn(batch, 68, 768).half(),))
    assert [row.fused for row in compiled.quantization] == [True]


@builds
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("shape", [(1, 768), (1, 1, 768)])
def test_one_row_is_fused(kind: Any, shape: tuple[int, ...]) -> None:
    """The kernel of one row reads no INT8 and no FP8, that of two rows does."""
    compile = pipeline.default(compute_capabilities=("8.9",)).insert(pipeline.quantize(kind), before="decompose")
    found = compile(heads(width=768).half(), args=(torch.randn(shape).half(),)).quantization
    assert len(found) == 2
    kept = kind == "fp8" and CAPABILITIES.version_tuple < (1, 7)
    assert all(row.fused is not kept for row in found), "1.6.1 keeps the weights of FP8 as halves"


@pytest.mark.parametrize("shape", [(1, 64), (1, 1, 64), (1, 1, 1, 64)])
def test_one_row_is_two_equal_ones_and_their_mean(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    compiled = quantized(heads(), x)
    assert products(compiled) == 2 and compiled.networks[0].kinds()["REDUCE"] == 2
    torch.testing.assert_close(compiled(x), exact(heads(), x), rtol=1e-5, atol=1e-6)
    x[..., 3] = torch.nan
    lost: Any = compiled(x)
    assert all(bool(found.isnan().all()) for found in lost)


def test_the_larger_of_a_tensor_and_itself_is_one_layer() -> None:
    class Larger(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.maximum(x, x)

    x = torch.tensor([1.0, torch.nan, -torch.inf])
    compiled = COMPILE(Larger(), args=(x,))
    assert dict(compiled.networks[0].kinds()) == {"ELEMENTWISE": 1}
    torch.testing.assert_close(compiled(x), x, equal_nan=True)
