"""torch.istft of a length that varies is eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from tests.shapes.test_sizes import Calls

WINDOW = torch.hann_window(16)
FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "shorter": (-3, {}),
    "longer": (13, {"normalized": True}),
    "of all frequencies": (0, {"onesided": False}),
}


@pytest.mark.filterwarnings("ignore:The length of signal is shorter")
@pytest.mark.parametrize("form", FORMS)
def test_as_eager(form: str) -> None:
    more, options = FORMS[form]

    def separate(x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 16, 4, window=WINDOW, return_complex=True, **options) * 0.5
        return spectrum.istft(16, 4, window=WINDOW, length=x.shape[-1] + more, **options)

    compile = pipeline.default(min_block_size=1)
    compiled = compile(Calls(separate), (torch.rand(2, 64),), dynamic_shapes=(({1: Dim("t", min=32, max=256)},),))
    assert not compiled.coverage.fallback
    for length in (64, 101, 102, 33):
        x = torch.rand(2, length)
        torch.testing.assert_close(compiled.module("reference")(x), separate(x), rtol=1e-4, atol=1e-5)
