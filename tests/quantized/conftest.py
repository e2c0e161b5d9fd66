"""Quantized networks are made here, and run on the reference executor, whether the library builds them or not."""

import attrs
import pytest

from pipeline.converters import quantized


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converters take quantized operators, whichever library there is."""
    monkeypatch.setattr(quantized, "CAPABILITIES", attrs.evolve(quantized.CAPABILITIES, quantization=True))
