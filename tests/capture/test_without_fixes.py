"""Models that torch.export takes need nothing of `export_fixes`: without it their networks are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import pipeline
from pipeline.capture import capture as door
from pipeline.export_fixes import ExportNotes, patch_contexts
from pipeline.export_fixes.patching import Patches

BATCH, LENGTH = Dim("batch", min=2, max=8), Dim("length", min=2, max=64)


class Called(nn.Module):
    """A function as a module, with parts and buffers of its own."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        """The function of the module and its inputs."""
        return self.function(self, *args)


@frozen
class Case:
    """A model, its inputs and the dims of each that vary."""

    model: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    shapes: tuple[dict[int, Any] | None, ...] | None = None


def counting(m: Any, x: Tensor) -> Tensor:
    """Counts its calls in a buffer."""
    m.calls.add_(1)
    return x * m.calls


def windows(m: Any, x: Tensor) -> Tensor:
    """Means of windows, whose number varies."""
    b, n, c = x.shape
    return m.linear(x.reshape(b, n // 2, 2, c).mean(2))


def attention(m: Any, x: Tensor) -> Tensor:
    """Causal attention of four heads."""
    q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))


X, IMAGE, ROWS = torch.randn(4, 6), torch.randn(2, 3, 16, 16), torch.randn(2, 10, 32)

CASES = {
    "linear": Case(lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)), (X,)),
    "linear, any batch": Case(lambda: nn.Linear(6, 8), (X,), ({0: BATCH},)),
    "convolutions": Case(convolutions, (IMAGE,)),
    "convolutions, any batch": Case(convolutions, (IMAGE,), ({0: BATCH},)),
    "upsampled": Case(lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.GroupNorm(1, 3)), (IMAGE,)),
    "attention": Case(lambda: Called(attention, qkv=nn.Linear(32, 96)), (ROWS,)),
    "attention, any length": Case(lambda: Called(attention, qkv=nn.Linear(32, 96)), (ROWS,), ({0: BATCH, 1: LENGTH},)),
    "an encoder": Case(lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True), (ROWS,)),
    "an embedding": Case(lambda: nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4)), (torch.arange(6).view(2, 3),)),
    "a buffer that is read": Case(lambda: Called(lambda m, x: x + m.scale, scale=torch.randn(6)), (X,)),
    "a buffer that is written": Case(lambda: Called(counting, calls=torch.zeros(1)), (X,)),
    "windows of any number": Case(lambda: Called(windows, linear=nn.Linear(32, 4)), (ROWS,), ({1: 2 * LENGTH},)),
    "two inputs, two outputs": Case(lambda: Called(lambda _, x, y: {"a": x @ y.mT, "b": x > 0}), (X, X + 1)),
    "a choice": Case(lambda: Called(lambda _, x: torch.where(x > 0, x, x.cumsum(1)).topk(2)), (X,)),
}


def plainly(model: Any, args: Any, kwargs: Any, dynamic_shapes: Any, *_: object) -> tuple[ExportedProgram, ExportNotes]:
    """torch.export alone."""
    by = (dynamic_shapes,) if isinstance(model, Called) and dynamic_shapes is not None else dynamic_shapes
    return torch.export.export(model, args, kwargs, dynamic_shapes=by), ExportNotes()


def networks(case: Case) -> tuple[str, str]:
    """A model as a program, its networks, and how their weights are made."""
    torch.manual_seed(0)
    program = pipeline.capture(case.model().eval(), case.inputs, dynamic_shapes=case.shapes)
    converted = pipeline.default(min_block_size=1).until("convert")(program)
    return f"{program}\n{converted}", str(converted.recipes)


@pytest.mark.parametrize("name", CASES)
def test_what_torch_export_takes_needs_no_fixes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = networks(CASES[name])
    asked: list[ExportNotes] = []
    monkeypatch.setattr(door, "export", lambda *given: (made := plainly(*given), asked.append(made[1]))[0])
    monkeypatch.setattr(patch_contexts, "_patches", Patches(()))
    assert networks(CASES[name]) == found
    assert len(asked) == 1
