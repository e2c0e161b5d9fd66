"""Writes the golden file of the current format: ``python tests/artifact/golden/write.py``. One for each version of the
format stays in this folder for ever, as it was written then, beside what its program gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import pipeline
from pipeline.artifact.manifest import SCHEMA

HERE = Path(__file__).parent


class Golden(nn.Module):
    """Engines, a PyTorch segment, a branch, a buffer that is written to, sizes that vary, weights that are folded."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.weight, self.bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        """[n, 8] -> logits [n, 8], parts ([n, 8], n)"""
        self.count += 1
        y = torch.sigmoid((self.norm(x) * self.weight + self.bias) * scale)
        z = torch.erfinv(y) + y
        w = torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v * 2, (z,))
        return {"logits": w.tanh(), "parts": (x.half(), x.shape[0] * 2, self.count)}


def main() -> None:
    """Writes the program, its input and what it gives at the first call."""
    torch.manual_seed(0)
    model = Golden()
    nn.init.normal_(model.norm.running_mean)
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    settings = {"min_block_size": 1, "torch_executed_ops": (torch.ops.aten.erfinv.default,)}
    compiled = pipeline.default(**settings)(model.eval(), args=(rows,))
    compiled.save(HERE / f"schema{SCHEMA}.trtp")
    x = torch.randn(3, 8)
    found = compiled.module(executor="reference")(x)
    parts = {f"part{i}": np.asarray(part) for i, part in enumerate(found["parts"])}
    np.savez(HERE / f"schema{SCHEMA}.npz", x=x.numpy(), logits=found["logits"].numpy(), **parts)


if __name__ == "__main__":
    main()
