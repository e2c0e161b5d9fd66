"""The models of ``benchmarks.real`` are made at full size and give results, without data."""

from __future__ import annotations

import logging

import pytest
import torch

from benchmarks import real_models
from benchmarks.real_models import Row

ROWS = real_models.rows()
ISSUE = ("sdxl-unet", "sd15-unet", "sdxl-vae-decoder", "sd3-medium", "flux-dev", "llama-8b-prompt", "mixtral-8x7b")


def test_there_are_as_many_as_are_asked_for() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 40
    assert 18 <= sum(row.small for row in ROWS) <= 30
    assert {row.name for row in ROWS}.issuperset(ISSUE)
    assert [row.heavy for row in ROWS] == sorted((row.heavy for row in ROWS), reverse=True)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_model_is_made_at_full_size(row: Row) -> None:
    pytest.importorskip(row.library or "torch")
    # The fake kernel of grouped products takes bfloat16 alone.
    dtype = torch.bfloat16 if "expert" in row.shapes else torch.float16
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model, inputs, mode = row.faked("cpu", dtype)
    assert {each.dtype for each in model.parameters()} == {dtype}
    assert not any(value.requires_grad for value in model.parameters())
    with mode, torch.no_grad():
        outputs = model(**inputs)
    assert outputs
    assert all(output.numel() and output.is_floating_point() for output in outputs)


def test_weights_that_give_nothing_are_made_larger() -> None:
    layers = [torch.nn.Conv2d(3, 64, 3), torch.nn.ConvTranspose2d(64, 32, 4, 2), torch.nn.Linear(8, 8)]
    model = torch.nn.Sequential(*layers).requires_grad_(False)
    for layer in layers:
        torch.nn.init.normal_(layer.weight, std=1e-4)
    torch.nn.init.zeros_(model[2].weight)
    real_models.lively(model)
    hidden = model[0](torch.randn(4, 3, 18, 18))
    assert 0.5 < float(hidden.std()) < 1.0
    assert 0.5 < float(model[1](hidden / hidden.std()).std()) < 1.0
    assert 0.1 < float(model[2].weight.std()) < 0.5
    torch.nn.init.normal_(model[2].weight, std=10)
    real_models.lively(model)
    assert float(model[2].weight.std()) < 1


class Residual(torch.nn.Module):
    """A block that begins with a projected shortcut, and one whose shortcut is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.aside = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.first, self.second = torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.first(x) + self.aside(x)
        return x.relu().add_(torch.nn.functional.dropout(self.second(x.sin()), training=False))


def test_normalizations_have_the_statistics_of_their_inputs() -> None:
    model = Residual().eval().requires_grad_(False)
    seen = dict[str, torch.Tensor]()
    for name in ("first", "second", "aside"):
        getattr(model, name).register_forward_hook(lambda module, _, y, name=name: seen.update({name: y}))
    inputs = {"x": 5 + 3 * torch.randn(4, 3, 9, 9)}
    real_models.calibrated(model, inputs)
    model(**inputs)
    for name, size in {"first": 1, "aside": 1, "second": 0.2}.items():
        torch.testing.assert_close(seen[name].mean((0, 2, 3)), torch.zeros(8), rtol=0, atol=1e-4)
        torch.testing.assert_close(seen[name].std((0, 2, 3)), torch.full((8,), float(size)), rtol=0.25, atol=0)
