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
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.ConvTranspose2d(64, 32, 4, 2), torch.nn.Linear(8, 8)
    )
    for layer in model:
        torch.nn.init.normal_(layer.weight, std=1e-4)
    torch.nn.init.zeros_(model[2].weight)
    real_models.lively(model)
    hidden = model[0](torch.randn(4, 3, 18, 18))
    assert 0.5 < float(hidden.std()) < 1.0
    assert 0.5 < float(model[1](hidden / hidden.std()).std()) < 1.0
    assert 0.1 < float(model[2].weight.std()) < 0.5


def test_normalizations_have_the_statistics_of_their_inputs() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    inputs = {"input": 5 + 3 * torch.randn(4, 3, 9, 9)}
    with torch.no_grad():
        real_models.calibrated(model, inputs)
        result = model(**inputs)
    torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(result.std((0, 2, 3)), torch.ones(8), rtol=0, atol=1e-2)
