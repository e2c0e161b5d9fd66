"""Engines whose weights come when they are loaded, or in part, or from the host at each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.gpu.refits import needs_refit

pytestmark = pytest.mark.gpu
X = torch.linspace(-1, 1, 4 * 512).reshape(4, 512)
WIDE = torch.linspace(-1, 1, 4 * 2048).reshape(4, 2048)
"""For layers whose weights dwarf all else that an engine holds: 34 MB, where the rest of it has 14 kB."""


def model(seed: int = 0, width: int = 512) -> nn.Module:
    """Two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).eval().cuda()


def compiled(made: nn.Module, x: torch.Tensor = X, **fields: Any) -> pipeline.Compiled:
    """The model, compiled."""
    result: pipeline.Compiled = pipeline.default(**fields)(made, args=(x.cuda(),))
    return result


def close(result: pipeline.Compiled, made: nn.Module, x: torch.Tensor = X) -> None:
    """The engine computes what the model does."""
    torch.testing.assert_close(result.module("tensorrt")(x.cuda()), made(x.cuda()), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("fields", [{}, {"immutable_weights": False}])
@needs_refit
def test_an_engine_without_weights_is_small_and_given_them(fields: dict[str, Any], tmp_path: Path) -> None:
    made, whole = (compiled(model(0, 2048), WIDE, **more) for more in ({"strip_engine_weights": True, **fields}, {}))
    assert made.engines[0].stripped
    assert made.engines[0].nbytes < whole.engines[0].nbytes / 20
    close(made, model(0, 2048), WIDE)
    made.save(tmp_path / "p.trtp")
    close(pipeline.load(tmp_path / "p.trtp"), model(0, 2048), WIDE)
    close(pipeline.refit_module_weights(made, model(1, 2048)), model(1, 2048), WIDE)


@needs_refit
def test_an_engine_takes_its_own_weights_again() -> None:
    close(compiled(model(), refit_identical_engine_weights=True), model())


@needs_refit
def test_some_weights_can_be_refitted() -> None:
    made = compiled(model(), refittable_weights=("2.*",))
    assert made.engines[0].refittable
    other = model()
    with torch.no_grad():
        other[2].weight.mul_(2)
    close(pipeline.refit_module_weights(made, {"2.weight": other[2].weight}), other)
    with pytest.raises(pipeline.RefitError, match=r"0\.weight"):
        pipeline.refit_module_weights(made, {"0.weight": torch.zeros(512, 512)})


@pytest.mark.parametrize("budget", [0, 1 << 19, 1 << 40])
def test_weights_are_streamed_within_a_budget(budget: int) -> None:
    made = compiled(model(), weight_streaming_budget=budget)
    close(made, model())
    torch.testing.assert_close(made.module(weight_streaming_budget=1 << 40)(X.cuda()), made(X.cuda()))


@needs_refit
def test_a_cached_engine_is_refitted_with_other_weights(tmp_path: Path) -> None:
    store = pipeline.DiskStore(tmp_path)
    compile = pipeline.default(immutable_weights=False).replace("build", pipeline.cached(store))
    for seed in (0, 1, 0):
        close(compile(model(seed), args=(X.cuda(),)), model(seed))
    assert len(list(tmp_path.glob("*.engine"))) == 1


@needs_refit
def test_adapters_are_refitted_in_and_out() -> None:
    made = compiled(model(), immutable_weights=False)
    a, b = torch.randn(4, 512) / 50, torch.randn(512, 4)
    other = model()
    with torch.no_grad():
        other[0].weight += 0.5 * (b @ a).cuda()
    tuned = made.with_lora({"0.weight": (a, b)}, scale=0.5)
    close(tuned, other)
    before, after = made(X.cuda()), tuned.with_lora({})(X.cuda())
    assert torch.equal(before, after)
