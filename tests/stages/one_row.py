"""A decoder's layer without its attention, whose engine for one row reads weights where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.nn.functional import rms_norm

import pipeline
from pipeline.improvements import FOR_ONE_ROW
from pipeline.stages.improve import Improve

Act = Callable[[torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    """Two norms, four linear layers, a gate, and two sums."""

    def __init__(self, width: int = 128, feed: int = 256, act: Act = nn.functional.silu, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act, self.width = act, width
        self.gains = nn.ParameterList(torch.rand(width) + 0.5 for _ in range(2))
        self.value, self.out = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 2 * feed, bias=bias), nn.Linear(feed, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, rows, width] -> the same"""
        x = x + self.out(self.value(rms_norm(x, [self.width], self.gains[0], 1e-6)))
        gate, up = self.up(rms_norm(x, [self.width], self.gains[1], 1e-6)).chunk(2, -1)
        return x + self.down(self.act(gate) * up)


def compile_layers(model: nn.Module, width: int, dtype: torch.dtype, device: str = "cpu", **settings: Any) -> Any:
    """A program with an engine for one row, and one for two to eight."""
    compile = pipeline.default(min_block_size=1, **settings)
    compile = compile.insert(Improve(passes=FOR_ONE_ROW, name="for_one_row"), after="improve")
    compile = compile.insert(pipeline.engine_per_profile(), after="partition")
    compile = compile.insert(pipeline.shared_weights(0), after="partition")
    shapes: list[Mapping[str, Any]] = [{"x": {1: 1}}, {"x": {1: Dim("rows", min=2, max=8)}}]
    x = torch.randn(1, 3, width, dtype=dtype, device=device)
    return compile(model.to(device, dtype).eval(), args=(x,), profiles=shapes)
