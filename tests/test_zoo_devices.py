"""Architectures of the zoo captured as on a GPU, a few of each kind; ``python -m benchmarks.zoo_devices`` has all."""

from __future__ import annotations

import pytest
import torch

import pipeline
from benchmarks import zoo, zoo_devices
from benchmarks.architectures import Architecture
from examples.models import SMALL, small
from pipeline.testing.programs import first_difference

SOME = {
    "text": {"albert", "fnet", "gpt_bigcode", "qwen3_moe", "mamba"},
    "vision": {"efficientnet", "poolformer", "levit"},
    "dense": {"glpn"},
    "detection": {"yolos"},
    "audio": {"ast"},
    "multimodal": {"clip"},
    "chat": {"qwen3_vl_tower"},
    "series": {"patchtst_regression"},
    "diffusion": {"autoencoder_kl", "qwen_image"},
}
"""Experts and batch norms, which torch takes apart by device, complex numbers that a model moves, and one of each other
kind that is quick."""


@pytest.mark.parametrize(
    "architecture",
    [each for table, names in SOME.items() for each in zoo.architectures(table) if each.name in names],
    ids=lambda each: f"{each.task}-{each.name}".replace(" ", "-"),
)
def test_as_on_a_gpu(architecture: Architecture) -> None:
    pytest.importorskip(architecture.library)
    found = zoo_devices.row(architecture)
    assert "failed" not in found, found


@pytest.mark.parametrize("name", sorted(SMALL))
def test_examples_as_on_a_gpu(name: str) -> None:
    case = small(name)
    on_cpu, on_gpu = (
        pipeline.default(device=device).until("decompose")(case.model, (), case.kwargs, case.dynamic_shapes)
        for device in ("cpu", "cuda")
    )
    if first_difference(on_cpu, on_gpu):
        module = pipeline.default()(on_gpu).module("reference")
        with torch.no_grad():
            torch.testing.assert_close(module(**case.kwargs), case.model(**case.kwargs), rtol=2e-4, atol=2e-4)


def test_what_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "capture", lambda *args, **kwargs: 1 / 0)
    monkeypatch.setattr(zoo, "captured", lambda case: (None, case))
    found = zoo_devices.row(zoo.architectures("series")[0])
    assert found["failed"] == "ZeroDivisionError: division by zero"
