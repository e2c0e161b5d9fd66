"""Complex numbers as a user has them: rotary embeddings in one engine, and what stays in PyTorch, with its reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline

FULL = pipeline.default(require_full_compilation=True)
DYNAMIC = ({0: torch.export.Dim("batch", min=1, max=4), 1: torch.export.Dim("length", min=1, max=16)},)


class Rotary(nn.Module):
    """The rotary embedding of the original Llama code."""

    freqs_cis: torch.Tensor

    def __init__(self, dim: int = 8, length: int = 16, theta: float = 10000.0) -> None:
        super().__init__()
        freqs = torch.outer(torch.arange(length), 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(freqs), freqs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, heads, dim] -> the same"""
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        freqs = self.freqs_cis[: x.shape[1]].view(1, pairs.shape[1], 1, pairs.shape[3])
        return torch.view_as_real(pairs * freqs).flatten(3).type_as(x)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        """What the function gives."""
        return self.function(*args)


class Moved(nn.Module):
    """Rotary embeddings that are no buffer, since ``.to(dtype)`` would lose their imaginary parts (Qwen-Image)."""

    def __init__(self) -> None:
        super().__init__()
        self.freqs, self.scale = Rotary().freqs_cis, nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """[length, 8], [length] -> [length, 8]"""
        pairs = torch.view_as_complex((x * self.scale).unflatten(-1, (-1, 2)))
        near = self.freqs.to(x.device)[at] * self.freqs.to(device=x.device, dtype=torch.complex64)[: x.shape[0]]
        return torch.view_as_real(pairs * near).flatten(1)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_complex_constants_that_a_model_moves_are_there(device: str | None) -> None:
    model, inputs = Moved().eval(), (torch.randn(5, 8), torch.tensor([3, 0, 9, 2, 2]))
    compiled = pipeline.default(require_full_compilation=True, device=device)(model, args=inputs)
    torch.testing.assert_close(compiled.module("reference")(*inputs), model(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_rotary_embeddings_are_one_engine(dtype: torch.dtype, dynamic: bool) -> None:
    model, x = Rotary().eval(), torch.randn(2, 6, 3, 8).to(dtype)
    compiled = FULL(model, args=(x,), dynamic_shapes=DYNAMIC if dynamic else None)
    assert len(compiled.engines) == 1 and not compiled.coverage.fallback
    for shape in [(2, 6, 3, 8), *([(1, 1, 3, 8), (4, 16, 3, 8)] if dynamic else [])]:
        x = torch.randn(shape).to(dtype)
        torch.testing.assert_close(compiled(x), model(x))


def test_a_complex_buffer_is_refitted() -> None:
    model, x = Rotary().eval(), torch.randn(2, 6, 3, 8)
    compiled = FULL(model, args=(x,), dynamic_shapes=DYNAMIC)
    assert {p for recipe in compiled.refit_map.values() for p in recipe.parameters} == {"freqs_cis"}
    assert all("view_as_real" in str(recipe) for recipe in compiled.refit_map.values())
    other = Rotary(theta=100.0).eval()
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, other)(x), other(x))
    turned = {"freqs_cis": other.freqs_cis.conj()}
    want = torch.view_as_real(torch.view_as_complex(x.unflatten(3, (4, 2))) * turned["freqs_cis"][:6, None]).flatten(3)
    torch.testing.assert_close(pipeline.refit_module_weights(compiled, turned)(x), want)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_large_complex_buffer_is_a_constant_all_the_same() -> None:
    model, x = Rotary(dim=128, length=1024).eval(), torch.randn(1, 4, 1, 128)
    program = pipeline.default().until("decompose")(model, args=(x,), dynamic_shapes=({1: DYNAMIC[0][1]},))
    assert len(program.constants) == 2 and "complex" not in str(program)


def test_angles_that_the_program_computes() -> None:
    def rotate(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        freqs = torch.outer(position.float(), 1.0 / 10000 ** (torch.arange(4) / 4))
        turn = torch.polar(torch.ones_like(freqs), freqs)
        z = torch.complex(x[..., :4], x[..., 4:]) * turn
        return torch.cat((z.real, z.imag), -1) + (z @ z.conj().mT).abs().mean() - z.angle().sum()

    x, position = torch.randn(6, 8), torch.arange(6)
    compiled = FULL(Function(rotate).eval(), args=(x, position))
    torch.testing.assert_close(compiled(x, position), rotate(x, position))


def test_complex_inputs_and_outputs_cross_the_border_in_pytorch() -> None:
    def square(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (z * z.conj() + 2j) / (1 + z), z.sum(0), z.abs()

    z = torch.randn(3, 4, dtype=torch.complex64)
    compiled = pipeline.default()(Function(square).eval(), args=(z,))
    assert len(compiled.engines) == 1
    fallback = {f.target: f.reason for f in compiled.coverage.fallback}
    assert fallback.keys() == {"aten.resolve_conj.default", "aten.view_as_real.default", "aten.complex.default"}
    assert all("engines store pairs of reals" in reason for reason in fallback.values())
    for given in (z, z.conj()):
        for got, want in zip(compiled(given), square(given), strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)


def test_an_operator_without_a_rule_stays_in_pytorch_and_the_rest_does_not() -> None:
    def filtered(x: torch.Tensor) -> torch.Tensor:
        return (torch.fft.ifft(torch.asinh(torch.fft.fft(x) * 0.1)) * 2j).abs() + x

    x = torch.randn(4, 257)
    compiled = pipeline.default()(Function(filtered).eval(), args=(x,))
    reasons = {f.target: f.reason for f in compiled.coverage.fallback}
    assert "aten.asinh.default has no implementation on pairs of reals" in reasons["aten.asinh.default"]
    assert "no prime factor above 256" in reasons["aten._fft_c2c.default"]
    assert not any("complex64" in reasons.get(op, "") for op in ("aten.mul.Tensor", "aten.add.Tensor"))
    assert compiled.engines
    torch.testing.assert_close(compiled(x), filtered(x))


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    """A filter of real numbers: half of a spectrum is enough."""
    spectrum = torch.fft.rfft2(x, norm="ortho")
    return torch.fft.irfft2(spectrum * torch.exp(-spectrum.abs()), s=x.shape[-2:], norm="ortho")


@pytest.mark.parametrize("length", [12, 400])
def test_fourier_transforms_are_one_engine(length: int) -> None:
    """There and back, along two dims, with a filter between; batch is dynamic."""
    compiled = FULL(
        Function(there_and_back).eval(), args=(torch.randn(2, 6, length),), dynamic_shapes=(({0: DYNAMIC[0][0]},),)
    )
    assert len(compiled.engines) == 1
    for batch in (1, 4):
        x = torch.randn(batch, 6, length)
        torch.testing.assert_close(compiled(x), there_and_back(x))


VARYING = {
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "ifft2": lambda x: torch.view_as_real(torch.fft.ifft2(x)),
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x, norm="forward")),
    "irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * (1 + 2j), n=x.shape[-1]),
    "there and back": there_and_back,
}


LENGTHS = ({0: torch.export.Dim("height", min=1, max=16), 1: torch.export.Dim("width", min=1, max=1024)},)
SIZES = ((1, 1), (2, 2), (16, 12), (5, 31), (3, 257), (7, 1024))
"""Even, odd, prime, and the ends of the range."""


@pytest.mark.parametrize("function", VARYING)
def test_transforms_of_lengths_that_vary_are_one_engine(function: str) -> None:
    """No worse than products of known lengths."""
    model = Function(VARYING[function]).eval()
    compiled = FULL(model, args=(torch.randn(6, 12),), dynamic_shapes=(LENGTHS,))
    assert len(compiled.engines) == 1
    for height, width in SIZES:
        x = torch.randn(height, width)
        exact = model(x.double())
        error, eager = ((found(x) - exact).norm() / exact.norm() for found in (compiled, model))
        assert error <= 4 * eager + 2e-7, (height, width, float(error), float(eager))


def test_a_length_that_varies_beyond_1024_stays_in_pytorch() -> None:
    dims = ({0: torch.export.Dim("length", min=2, max=1025)},)
    compiled = pipeline.default()(Function(VARYING["fft"]).eval(), args=(torch.randn(12),), dynamic_shapes=(dims,))
    reasons = {f.target: f.reason for f in compiled.coverage.fallback}
    assert "or varies up to 1024" in reasons["aten._fft_r2c.default"]
    x = torch.randn(1025)
    torch.testing.assert_close(compiled(x), VARYING["fft"](x))


def test_a_spectrogram_is_one_engine() -> None:
    def spectrogram(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(x, 32, hop_length=8, window=torch.hann_window(32), return_complex=True).abs()

    x = torch.randn(2, 100)
    compiled = FULL(Function(spectrogram).eval(), args=(x,))
    torch.testing.assert_close(compiled(x), spectrogram(x))


def test_what_the_user_keeps_in_pytorch_stays_complex() -> None:
    model, x = Rotary().eval(), torch.randn(2, 6, 3, 8)
    compiled = pipeline.default(torch_executed_ops={"aten.mul.Tensor"})(model, args=(x,))
    assert [f.target for f in compiled.coverage.fallback].count("aten.mul.Tensor") == 1
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex32])
def test_other_complex_dtypes(dtype: torch.dtype) -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.view_as_complex(x).conj() + 1)

    x = torch.randn(3, 2).to(dtype.to_real())
    compiled = pipeline.default(require_full_compilation=True, truncate_double=True)(Function(double), args=(x,))
    got, want = compiled(x), x * torch.tensor([1, -1]) + torch.tensor([1, 0])
    torch.testing.assert_close(got, want.to(dtype.to_real()), rtol=1e-3, atol=1e-3)


def test_a_program_without_complex_values_is_what_it_was() -> None:
    program = pipeline.default().until("decompose")(nn.Linear(4, 4).eval(), args=(torch.randn(2, 4),))
    assert "complex" not in str(program) and "select" not in str(program)


def test_a_program_that_is_decomposed_twice() -> None:
    decompose = pipeline.default().until("decompose")
    program = decompose(Rotary().eval(), args=(torch.randn(2, 6, 3, 8),))
    assert decompose(program).digest == program.digest


CONVOLUTIONS = {
    "circular": nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular", dtype=torch.complex64),
    "reflected": nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", dtype=torch.complex64),
    "in groups": nn.Conv1d(3, 3, 3, padding=1, groups=3, bias=False, dtype=torch.complex64),
    "strided": nn.Conv2d(3, 4, 3, stride=2, dtype=torch.complex64),
    "transposed": nn.ConvTranspose1d(3, 4, 3, stride=2, dtype=torch.complex64),
}


class Convolved(nn.Module):
    """A convolution of complex numbers, given and returned in pairs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer = CONVOLUTIONS[form]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, 3, *sizes, 2] -> [batch, channels, *sizes, 2]"""
        return torch.view_as_real(self.layer(torch.view_as_complex(x)))


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("form", CONVOLUTIONS)
def test_convolutions_of_complex_numbers(form: str, device: str | None) -> None:
    model = Convolved(form).eval()
    x = torch.randn(2, 3, *[8] * len(model.layer.kernel_size), 2)
    compiled = pipeline.default(require_full_compilation=True, device=device)(model, args=(x,))
    torch.testing.assert_close(compiled.module("reference")(x), model(x))


def test_the_ends_of_functions_of_complex_numbers() -> None:
    """Large and small parts, zeros, and both signs."""
    parts = torch.tensor([-60.0, -2.0, -1e-3, 0.0, 1e-3, 2.0, 60.0])
    x = torch.stack(torch.meshgrid(parts, parts, indexing="ij"), -1)

    def functions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.view_as_complex(x)
        return tuple(torch.view_as_real(f) for f in (z.sqrt(), z.sin(), z.cos(), z.sinh(), z.cosh(), z.tanh()))

    found = FULL(Function(functions).eval(), args=(x,)).module("reference")(x)
    exact = functions(x.double())
    for ours, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-6)
