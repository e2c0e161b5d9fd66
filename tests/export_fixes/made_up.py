"""What torch makes up of operators' results: sizes that data has, and sums of windows."""

from __future__ import annotations

import warnings

import torch
from torch._decomp import decomposition_table
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import pipeline
from pipeline.export_fixes import patch_contexts

aten = torch.ops.aten


@torch.library.custom_op("tests::above", mutates_args=())
def above(x: torch.Tensor) -> torch.Tensor:
    """The elements above 0."""
    return x[x > 0]


@above.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and torchvision calls it
        return x.new_empty(torch.library.get_ctx().create_unbacked_symint())


class Above(torch.nn.Module):
    """Calls it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return above(x) * 2


def there_are_two() -> bool:
    """Whether a size that data has is taken to be 2 or more."""
    program = pipeline.capture(Above(), (torch.randn(4, 3),))
    return [each.min for each in program.shapes.values()] == [2]


def adds_elements() -> bool:
    """Whether windows are added up an element at a time."""
    with patch_contexts.patch_for_export():
        made = make_fx(decomposition_table[aten.unfold_backward.default])(torch.ones(1, 5, 64), [2, 80], 1, 64, 4)
    return len(made.graph.nodes) > 99


def takes_windows_to_fit() -> bool:
    """Whether windows of two have to fit into a dim of 6 whenever it varies."""
    program = pipeline.capture(
        torch.nn.MaxPool1d(2), (torch.rand(2, 3, 6),), dynamic_shapes=({2: Dim("n", min=2, max=9)},)
    )
    return [symbol.range.max for symbol in program.shapes.symbols.values()] == [8]


def one_of_two(x: torch.Tensor) -> torch.Tensor:
    """Repeat rows by a number of a constant."""
    return x.repeat(torch.tensor([[1, 2]])[0].flip(0)[0].item(), 1)
