"""``python -m benchmarks.attention``: the ways in which an attention can be given to TensorRT, compared on this GPU.

TensorRT fuses products and a softmax, as the converter writes them, and has a layer for all of it, which takes masks of
bools or of numbers. Four attentions, one after the other, in float16: milliseconds of the engine driven by hand with a
CUDA graph, its kernels, and its error relative to float64. Without a GPU there are the kernels alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import pipeline
from benchmarks.environment import save
from benchmarks.gpu import error, gpu_name
from benchmarks.kernels import CAPABILITY, of
from benchmarks.methods import Call, driven
from benchmarks.turns import in_turns, side_by_side, turn
from pipeline.impl import attention_limits
from pipeline.stages.improve import Improve

SIZES = ("1x128", "1x512", "1x2048", "8x128", "8x512")
"""Batch x sequence."""
HEADS, WIDTH, LAYERS = 12, 64, 4

MASKS = ("none", "causal", "padding", "padding and causal")


def mask_of(kind: str, batch: int, length: int) -> torch.Tensor | None:
    """Where a query may attend, [batch, 1, 1 or length, length]: all of the first half of a batch, the rest shorter."""
    if kind in ("none", "causal"):
        return None
    ends = torch.full((batch, 1, 1, 1), length)
    ends[batch // 2 :] = max(length * 3 // 4, 1)
    allowed = torch.arange(length) < ends
    return allowed & torch.ones(length, length, dtype=torch.bool).tril() if "causal" in kind else allowed


class Attentions(nn.Module):
    """Attentions one after the other, in one of the forms; a mask is given as bools."""

    def __init__(self, form: Callable[..., torch.Tensor], causal: bool) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.form, self.causal = form, causal
        self.qkv = nn.ModuleList(nn.Linear(size, 3 * size) for _ in range(LAYERS))
        self.out = nn.ModuleList(nn.Linear(size, size) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[N, S, HEADS * WIDTH] -> [N, S, HEADS * WIDTH]"""
        for qkv, out in zip(self.qkv, self.out, strict=True):
            parts = qkv(x).view(*x.shape[:-1], 3 * HEADS, WIDTH).transpose(1, 2).split(HEADS, 1)
            x = x + out(self.form(*parts, mask, self.causal).transpose(1, 2).flatten(2))
        return x


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool) -> torch.Tensor:
    """PyTorch's own, with a mask of bools."""
    return nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


def with_numbers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool) -> torch.Tensor:
    """PyTorch's own, with a mask of numbers."""
    size = q.shape[-2], k.shape[-2]
    allowed = torch.ones(size, dtype=torch.bool, device=q.device).tril() if causal else mask
    zero, least = (q.new_full((), number) for number in (0.0, -math.inf))
    return attended(q, k, v, None if allowed is None else torch.where(allowed, zero, least), False)


FORMS: dict[str, tuple[Callable[..., torch.Tensor], bool]] = {
    "fused": (attended, False),
    "layer": (attended, True),
    "layer, numbers": (with_numbers, True),
}
"""Each form, and whether it becomes TensorRT's layer."""


def compiled(form: str, kind: str, x: torch.Tensor, mask: torch.Tensor | None) -> tuple[nn.Module, pipeline.Compiled]:
    """The module of a form in float16, and what it is compiled to."""
    function, by_layer = FORMS[form]
    torch.manual_seed(0)
    model = Attentions(function, kind == "causal").eval().half().to(x.device)
    compile = pipeline.default(require_full_compilation=True, **_target()).replace(
        "improve", Improve().without("simplify_masks")
    )
    with patch.object(attention_limits, "BY_LAYER", by_layer):
        return model, compile(model, args=(x,) if mask is None else (x, mask))


def _target() -> dict[str, Any]:
    return {} if torch.cuda.is_available() else {"compute_capabilities": (CAPABILITY,)}


def measured(kind: str, batch: int, length: int) -> list[dict[str, Any]]:
    """A row for each form; on a GPU with its time and its error."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    x = torch.randn(batch, length, HEADS * WIDTH, generator=torch.Generator().manual_seed(1)).half().to(device)
    allowed = mask_of(kind, batch, length)
    mask = None if allowed is None else allowed.to(device)
    inputs = {"x": x} if mask is None else {"x": x, "mask": mask}
    rows: dict[str, dict[str, Any]] = {}
    calls: dict[str, Call] = {}
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()) if gpu else contextlib.nullcontext():
        for form in FORMS if kind != "none" else ("fused", "layer"):
            model, result = compiled(form, kind, x, mask)
            rows[form] = {"form": form, "mask": kind, "batch": batch, "sequence": length, "kernels": len(of(result))}
            if gpu:
                calls[form] = driven(result, inputs, graph=True)
                rows[form]["relative_error"] = error(calls[form](), [model.double()(x.double(), mask)])
        with turn():
            times = in_turns(calls, rest=0.5)
        for form, taken in times.items():
            rows[form]["gpu_ms"] = taken["gpu_ms"]
    return list(rows.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; saves what a GPU took."""
    parser = argparse.ArgumentParser(description="ways to give an attention to TensorRT")
    parser.add_argument("--masks", nargs="+", default=MASKS, choices=MASKS)
    parser.add_argument(
        "--sizes", nargs="+", default=["x".join(map(str, size)) for size in SIZES], help="such as 8x128"
    )
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    cases = [(kind, *map(int, size.split("x"))) for size in options.sizes for kind in options.masks]
    with side_by_side(options.processes) as pool:
        for found in pool.map(measured, *zip(*cases, strict=True)):
            print(*map(json.dumps, found), sep="\n", flush=True)
            rows += found
    if torch.cuda.is_available():
        print(f"written to {save(f'attention-{gpu_name()}', {'attention': rows})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
