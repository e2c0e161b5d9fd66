"""What benchmarks of models on a GPU share: their command line, and a row for each model and batch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch

from benchmarks.environment import Row, save
from benchmarks.gpu import gpu_name


def by_model(
    name: str,
    description: str,
    models: Sequence[str],
    measured: Callable[[str, int], list[Row]],
    argv: Sequence[str] | None = None,
) -> list[Row] | None:
    """The rows of each model and batch that ``argv`` asks for, kept after each; None where there is no GPU.

    name: the benchmark's, such as ``gpu_profile``: its result is ``gpu-profile-GPU``, with the rows under ``profile``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--models", nargs="+", default=models)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8))
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(f"benchmarks.{name}: there is no GPU here", file=sys.stderr)
        return None
    rows: list[Row] = []
    for model in options.models:
        for batch in options.batches:
            rows += measured(model, batch)
            kept = {"dtype": "float16", name.removeprefix("gpu_"): rows}
            path = save(f"{name.replace('_', '-')}-{gpu_name()}", kept)
    print(f"written to {path}")
    return rows
