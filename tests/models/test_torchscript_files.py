"""Whole models as files of torch.jit.save: one engine each, as eager computes, for a batch that varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from tests.models.scripted import MODELS

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")


def ranged(x: torch.Tensor) -> pipeline.Input:
    least, best, most = ((n, *x.shape[1:]) for n in (1, 2, 6))
    return pipeline.Input(min_shape=least, opt_shape=best, max_shape=most, dtype=x.dtype)


def of_batch(x: torch.Tensor, batch: int) -> torch.Tensor:
    return (
        x.flip(-1)[torch.arange(batch) % x.shape[0]] if not x.is_floating_point() else torch.randn(batch, *x.shape[1:])
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_one_engine_for_any_batch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    script, args = MODELS[name]()
    torch.jit.save(script, tmp_path / "model.pt")
    loaded: Any = torch.jit.load(tmp_path / "model.pt")
    compiled = pipeline.default(require_full_compilation=True)(loaded, tuple(map(ranged, args)))
    assert len(compiled.engines) == 1
    assert compiled.program.parameters.keys() <= dict(script.state_dict()).keys() | compiled.program.written
    for batch in (1, 2, 5):
        given = [of_batch(x, batch) for x in args]
        with torch.no_grad():
            eager = script(*given)
        for ours, theirs in zip(tree_leaves(compiled(*given)), tree_leaves(eager), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
