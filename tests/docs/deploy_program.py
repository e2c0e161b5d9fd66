"""The program of docs/deploy.md that runs an engine with TensorRT alone."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import pipeline

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def program() -> str:
    """Its source."""
    (found,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return str(found)


def kept(path: Path) -> pipeline.Compiled:
    """The program that the page keeps, as it keeps it."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(32, 8))
    made: pipeline.Compiled = pipeline.default()(torch.nn.Sequential(*layers).eval(), args=(rows,))
    made.save(path, weights="none")
    return made
