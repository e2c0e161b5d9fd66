"""Small models that the libraries themselves quantize, and programs of them without engines."""

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.stages.unbuilt import unbuilt

COMPILE = pipeline.default(require_full_compilation=True).replace("build", unbuilt)
"""Networks for the reference executor, and no engine."""


class Two(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of 64 for rows of 256."""
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


def two() -> nn.Module:
    """The model, the same each time."""
    torch.manual_seed(0)
    return Two().eval()


def rows() -> torch.Tensor:
    """What the model is calibrated with."""
    return torch.randn(8, 256, generator=torch.Generator().manual_seed(1))


def by_modelopt(config: str, model: nn.Module | None = None, given: torch.Tensor | None = None) -> nn.Module:
    """A model as NVIDIA ModelOpt quantizes it."""
    quantization = pytest.importorskip("modelopt.torch.quantization")
    x = rows() if given is None else given
    made: nn.Module = quantization.quantize(model or two(), getattr(quantization, config), lambda m: m(x))
    return made


def by_torchao(config: Any, model: nn.Module | None = None) -> nn.Module:
    """A model as ``torchao.quantization.quantize_`` quantizes it."""
    made = model or two()
    pytest.importorskip("torchao.quantization").quantize_(made, config)
    return made


def by_pt2e(model: nn.Module | None = None, given: torch.Tensor | None = None) -> nn.Module:
    """A model as torchao's PT2E quantizes it, weights and activations."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    x = rows() if given is None else given
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = pt2e.prepare_pt2e(torch.export.export(model or two(), (x,)).module(), quantizer)
    prepared(x)
    made: nn.Module = pt2e.convert_pt2e(prepared)
    return made
