"""``python -m benchmarks.kept_call FILE VALUES``: a saved program loaded and called, in a process without its library.

``VALUES`` is a file that torch.save wrote, of tensors and numbers alone: the leaves of the inputs, and of what is due.
Prints a line: what differs, or nothing.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

import pipeline

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers", "benchmarks.zoo", "examples.models")


def differs(program: Path, values: Path) -> str:
    """What the loaded program gives otherwise than is due; empty if it gives the same bits."""
    warnings.simplefilter("ignore", pipeline.ArtifactWarning)
    compiled, (given, due) = pipeline.load(program), torch.load(values, weights_only=True)
    args, kwargs = tree_unflatten(given, compiled.program.in_spec)
    found = tree_leaves(compiled.module("reference")(*args, **kwargs))
    if there := [name for name in LIBRARIES if name in sys.modules]:
        return f"{there[0]} was imported"
    if len(found) != len(due):
        return f"{len(found)} outputs in the place of {len(due)}"
    wrong = [i for i, (ours, theirs) in enumerate(zip(found, due, strict=True)) if not _same(ours, theirs)]
    return f"output {wrong[0]} differs" if wrong else ""


def _same(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, torch.Tensor):
        return bool(ours == theirs)
    same = isinstance(ours, torch.Tensor) and (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    return same and torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True)


if __name__ == "__main__":
    print(differs(Path(sys.argv[1]), Path(sys.argv[2])))
