"""Decompose ``torch.istft`` with a dynamic length, which torch accepts as a Python int alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pipeline.aten.types import Argument, Target

aten = torch.ops.aten


def of_any_length(override: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch.export's handling of a call in the model: the length of an inverse transform stays dynamic."""

    def override_lengths(self: Argument, func: Target, args: Argument, kwargs: Argument) -> object:
        if func is torch.istft or func is torch.Tensor.istft:
            given = {**dict(zip(NAMES, args, strict=False)), **(kwargs or {})}
            if isinstance(given.get("length"), torch.SymInt):
                return istft, (), given
        return override(self, func, args, kwargs)

    return override_lengths


NAMES = tuple(argument.name.replace("self", "input") for argument in aten.istft.default._schema.arguments)


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Argument = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True,
    bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor. As ATen computes
    it; that no sum of windows is 0 is not checked."""
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    spectrum = input.unsqueeze(0) if input.dim() == 2 else input
    real = spectrum.real.dtype
    weights = torch.ones(width, dtype=real, device=input.device) if window is None else window
    left = (n_fft - width) // 2
    weights = torch.nn.functional.pad(weights, (left, n_fft - width - left))
    frames, norm = spectrum.transpose(1, 2), "ortho" if normalized else "backward"
    whole = return_complex if onesided is None else not onesided
    if return_complex:
        pieces = torch.fft.ifft(frames, dim=-1, norm=norm)
    else:
        pieces = torch.fft.irfft(frames[..., : n_fft // 2 + 1] if whole else frames, n_fft, dim=-1, norm=norm)
    count = spectrum.shape[-1]
    total = _overlap_add(pieces * weights, n_fft, hop, count)
    weight = _overlap_add(weights.square().expand(1, count, n_fft), n_fft, hop, count)
    start = n_fft // 2 if center else 0
    ends = torch.sym_max(0, start + length - (n_fft + hop * (count - 1)))  # zeros beyond the last window
    total = torch.nn.functional.pad(total, (0, ends)).narrow(1, start, length)
    weight = torch.nn.functional.pad(weight, (0, ends), value=1.0).narrow(1, start, length)
    signal = total / weight
    return signal.squeeze(0) if input.dim() == 2 else signal


def _overlap_add(windows: torch.Tensor, n_fft: int, hop: int, count: Argument) -> torch.Tensor:
    """Return the sum of overlapping windows."""
    size = [windows.shape[0], n_fft + hop * (count - 1)]
    if windows.is_complex():
        parts = (aten.unfold_backward(part, size, 1, n_fft, hop) for part in (windows.real, windows.imag))
        return torch.complex(*parts)
    added: torch.Tensor = aten.unfold_backward(windows, size, 1, n_fft, hop)
    return added
