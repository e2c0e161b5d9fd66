"""What a program says that it takes, it takes: sizes that a model computes by ``int`` and ``/`` included."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.export import Dim

import pipeline
from pipeline.runtime.inputs import bind_symbols
from tests.improvements.programs import values

BATCHES: Mapping[str, Callable[..., Any]] = {
    "int of a quotient of a quotient": lambda n, h, w, k: int(n / (h * w / k / k)),
    "int of a quotient of a product": lambda n, h, w, k: int(n * k * k / (h * w)),
    "floor of a quotient": lambda n, h, w, k: math.floor(n / ((h // k) * (w // k))),
    "a quotient of ints": lambda n, h, w, k: n // (h * w // k // k),
    "int of what is whole": lambda n, h, w, k: int(n // (h // k) // (w // k)),
}
"""How models tell the batch from the number of windows."""


class Windows(torch.nn.Module):
    """Cuts images into windows and puts them together again, as Swin and HAT do."""

    def __init__(self, batch: str, k: int) -> None:
        super().__init__()
        self.batch, self.k = BATCHES[batch], k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [batch, height, width, channels]."""
        k = self.k
        b, h, w, c = x.shape
        windows = x.view(b, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k, k, c).relu()
        n = self.batch(windows.shape[0], h, w, k)
        y = windows.view(n, h // k, w // k, k, k, -1).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, -1)
        return y.view(b, h * w, c) + x.view(b, h * w, c)


def promised(model: torch.nn.Module, x: torch.Tensor, ends: Mapping[int, tuple[int, int]], step: int) -> None:
    """Capture for sizes between ends, in steps behind the first dim, and call with each of the ends."""
    names = {d: Dim(f"s{d}", min=low, max=high) for d, (low, high) in ends.items()}
    dims = {d: step * dim if d and step > 1 else dim for d, dim in names.items()}
    program = pipeline.capture(model.eval(), (x,), dynamic_shapes=(dims,))
    for point in itertools.product(*ends.values()):
        shape = list(x.shape)
        for dim, size in zip(ends, point, strict=True):
            shape[dim] = size * (step if dim else 1)
        y = torch.randn(shape)
        bind_symbols(program, (y,))
        torch.testing.assert_close(values(program, y)[0], model(y), rtol=0, atol=0)


@settings(phases=[Phase.generate], max_examples=max(3, settings.default.max_examples // 4))
@given(st.sampled_from([*BATCHES]), st.sampled_from([2, 4]), st.data())
def test_what_a_program_promises_it_takes(batch: str, k: int, data: st.DataObject) -> None:
    """For windows of images whose batch, height and width vary, all or some of them."""
    dims = data.draw(st.sets(st.integers(0, 2), min_size=1))
    low = {d: data.draw(st.integers(1, 2)) for d in sorted(dims)}
    ends = {d: (first, first + data.draw(st.integers(2, 5))) for d, first in low.items()}
    shape = [data.draw(st.integers(*ends[d])) if d in dims else 3 for d in range(3)]
    promised(Windows(batch, k), torch.randn(shape[0], k * shape[1], k * shape[2], 4), ends, k)


class Halves(torch.nn.Module):
    """Takes a part of the rows."""

    def __init__(self, count: Callable[[Any], Any]) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The first rows."""
        return x[: self.count(x.shape[0])] * 2


@pytest.mark.parametrize(
    "count",
    [
        lambda n: int(n / 2),
        lambda n: int((n + 6) // 4),
        lambda n: int(math.sqrt(n)),
        lambda n: int(n * 0.7),
        lambda n: math.ceil(n / 3),
        lambda n: int(n**0.5),
    ],
)
def test_numbers_that_do_not_divide_evenly_vary_too(count: Callable[[Any], Any]) -> None:
    promised(Halves(count), torch.randn(6, 4), {0: (1, 9)}, 1)


def test_a_constant_that_the_model_makes_of_sizes_is_no_promise() -> None:
    """A loop over a quotient has as many turns as in the example: what is left of the range is said."""

    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """As many times as there are rows of windows."""
            for _ in range(int(x.shape[0] * x.shape[1] / x.shape[1])):
                x = x + 1
            return x

    dims = ({0: Dim("n", min=1, max=4), 1: Dim("m", min=1, max=4)},)
    with pytest.raises(pipeline.CaptureError, match="2"):
        pipeline.capture(Loop(), (torch.randn(2, 3),), dynamic_shapes=dims)


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(
    "entry", [Dim("n", min=2, max=4), Dim.AUTO(min=2, max=4), Dim.DYNAMIC(min=2, max=4), 2 * Dim("m", min=1, max=2)]
)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_an_example_outside_of_its_range_is_refused(size: int, entry: Any, device: str | None) -> None:
    says = rf"input x\['a'\] has size {size} in dimension 1, and .* goes from 2 to 4"

    class Takes(torch.nn.Module):
        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            """A sum."""
            return x["a"] + 1

    with pytest.raises(pipeline.CaptureError, match=says):
        given = {"a": torch.randn(3, size)}
        pipeline.capture(Takes(), (given,), dynamic_shapes=({"a": {1: entry}},), device=device)
