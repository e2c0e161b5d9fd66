"""Random functions that decide by their data compute what Python computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.stages import unbuilt
from tests.frontend.random_deciding import source

COMPILE = pipeline.default(require_full_compilation=True).replace("build", unbuilt)
COUNTS = pipeline.default().replace("build", unbuilt)
"""Rows that a mask leaves are for PyTorch to take."""
X = torch.linspace(-1, 2, 12).reshape(3, 4)
CALLS = (X, -X, X * 0.1, X * 0, X.flip(0) - 0.5, X[:1], X[1:] * 3)


class Random(nn.Module):
    """Decides as a function does."""

    def __init__(self, function: Any, k: int) -> None:
        super().__init__()
        torch.manual_seed(k)
        self.linear, self.function, self.k = nn.Linear(4, 4), function, k

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4] -> two of them"""
        return self.function(self, x, self.k)


def function_of(seed: int, text: str, folder: Path) -> Any:
    """A function in a file of its own."""
    path = folder / f"decides_{seed}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, path.stem)


def check(seed: int, folder: Path, *, counts: bool = False) -> None:
    text = source(seed, counts=counts)
    model = Random(function_of(seed, text, folder), seed % 4).eval()
    dims = ({0: torch.export.Dim("n", min=1, max=9)},)
    run = (COUNTS if counts else COMPILE)(model, (X,), dynamic_shapes=dims).module("reference")
    for x in CALLS:
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4, msg=lambda said: f"{said}\n{text}")


@pytest.mark.parametrize("seed", range(10))
def test_a_random_function_is_what_python_computes(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_more_random_functions_are_what_python_computes(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_function_decides_by_counts(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, counts=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 15))
def test_more_random_functions_decide_by_counts(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path, counts=True)


def test_functions_use_all_of_the_language() -> None:
    texts = [source(seed) for seed in range(40)]
    assert texts == [source(seed) for seed in range(40)]
    whole = "\n".join(texts)
    for part in ("if ", "elif ", "else:", "for ", "break", "continue", "return", " if ", " and ", " or ", ".item()"):
        assert part in whole
