"""``python -m benchmarks.few_rows``: a decoder's products for one row and for eight, in other forms, on this GPU.

Six layers of a Llama-like decoder without their attention, in float16, with a CUDA graph: the norms, the four products,
the gate and the residuals. A step's time is mostly reading their weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

import pipeline
from benchmarks import together
from benchmarks.environment import Row, collect
from benchmarks.gpu import gpu_name
from benchmarks.turns import in_turns

SIZES = {"1.1B": (2048, 2560, 5632), "3B": (3072, 4096, 8192)}
"""Width, width of query, key and value together, and width of the feed-forward layer."""
LAYERS = 6
FORMS = ("linear", "sums", "sums of halves", "linear, weights as inputs", "sums, weights as inputs")
"""``linear``: as models have it; ``sums``: each column is a sum over products of two float32 numbers, or of two halves.
Weights are the engine's, or inputs of it."""


class Product(nn.Module):
    """``x`` by a weight [columns, inner], which may be given."""

    def __init__(self, inner: int, columns: int, form: str) -> None:
        super().__init__()
        self.weight, self.form = nn.Parameter(torch.randn(columns, inner) * inner**-0.5), form

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """[rows, inner] -> [rows, columns]"""
        weight = self.weight if weight is None else weight
        if self.form.startswith("linear"):
            return nn.functional.linear(x, weight)
        if self.form == "sums of halves":
            return (x.unsqueeze(1) * weight.unsqueeze(0)).float().sum(-1).to(x.dtype)
        return (x.float().unsqueeze(1) * weight.float().unsqueeze(0)).sum(-1).to(x.dtype)


class Layers(nn.Module):
    """A decoder's layers without attention: its result is a sum of two slices of query, key and value."""

    def __init__(self, size: str, form: str) -> None:
        super().__init__()
        self.width, qkv, feed = SIZES[size]
        shapes = ((self.width, qkv), (self.width, self.width), (self.width, 2 * feed), (feed, self.width))
        self.products = nn.ModuleList(Product(*shape, form) for _ in range(LAYERS) for shape in shapes)
        self.norms = nn.ModuleList(nn.RMSNorm(self.width) for _ in range(2 * LAYERS))

    def forward(self, x: torch.Tensor, weights: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """[rows, width] -> [rows, width]"""
        given = [None] * len(self.products) if weights is None else weights
        multiply = [partial(product, weight=weight) for product, weight in zip(self.products, given, strict=True)]
        for layer in range(LAYERS):
            qkv, out, gate, down = multiply[4 * layer : 4 * layer + 4]
            y = qkv(self.norms[2 * layer](x))
            x = x + out(y[:, : self.width] + y[:, -self.width :])
            opened, value = gate(self.norms[2 * layer + 1](x)).chunk(2, -1)
            x = x + down(nn.functional.silu(opened) * value)
        return x


def prepare(size: str, rows: int, form: str) -> Callable[[], list[Row]]:
    """Get a form ready, and give what measures it."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, x = Layers(size, form).half().eval(), torch.randn(rows, SIZES[size][0]).half()
    own = [product.weight.detach() for product in model.products]
    args: tuple[Any, ...] = (x, [w.clone() for w in own]) if form.endswith("inputs") else (x,)
    compile = pipeline.default(cuda_graphs=True, require_full_compilation=True)
    compiled = compile(model, args=args)
    run = compiled.module("tensorrt")
    call = partial(run, *args)
    with torch.no_grad():
        expected, found = model(*args), [call() for _ in range(4)][-1]
    megabytes = sum(weight.nbytes for weight in own) / 1e6

    def measured() -> list[Row]:
        taken = in_turns({"": call}, rest=0.2)[""]["gpu_ms"]
        named: Row = {"model": size, "rows": rows, "form": form, "layer_us": round(1e3 * taken / LAYERS, 1)}
        kernels = [
            [each.name, round(1e3 * each.milliseconds, 1)] for each in compiled.profile(*args).segments[0].layers
        ]
        error = float((found - expected).abs().max() / expected.abs().max())
        return [{**named, "gb_s": round(megabytes / taken), "error": error, "kernels": kernels}]

    return measured


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write down; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--together", type=int, default=9, help="so many get ready side by side")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("benchmarks.few_rows: there is no GPU here", file=sys.stderr)
        return 2
    subjects = [(model, rows, form) for model in options.models for rows in options.rows for form in options.forms]
    found = together.measured(subjects, prepare, options.together)
    fields = ("model", "rows", "form")
    parts = ([dict(zip(fields, s, strict=True)) | {"failed": r}] if isinstance(r, str) else r for s, r in found)
    collect(f"few-rows-{gpu_name()}", "few_rows", parts, of=fields)
    return 0


if __name__ == "__main__":
    sys.exit(main())
