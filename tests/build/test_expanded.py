"""A loop written out, whose steps read at several places, builds in seconds: no kernel has a step in each term."""

from __future__ import annotations

import time

import pytest
import torch
from torch.export import Dim

import pipeline
from examples.models import small
from pipeline.network.description import Network
from pipeline.quirks.expression_blowup import ExpressionSizes
from tests.build.expanding import STEPS, Stepwise

FULL = pipeline.default(require_full_compilation=True, min_block_size=1)
SECONDS = 15
"""At most, for each; without values computed apart most would not end in minutes, and take gigabytes."""


def apart(network: Network) -> int:
    """How many values the network computes apart."""
    return network.kinds().get("CUMULATIVE", 0)


@pytest.mark.parametrize("rows", ["rows", "any rows"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_build_and_agree(name: str, rows: str) -> None:
    model, shape = Stepwise(name).eval(), STEPS[name][1]
    start = time.process_time()
    dims = ({0: Dim("rows", min=2, max=9)},) if rows == "any rows" else None
    compiled = FULL(model, args=(torch.randn(shape),), dynamic_shapes=dims)
    assert time.process_time() - start < SECONDS
    assert apart(compiled.networks[0])
    for n in (2, 9) if dims else shape[:1]:
        x = torch.randn(n, *shape[1:])
        torch.testing.assert_close(compiled.module("reference")(x), model(x), rtol=1e-4, atol=1e-5)


class Keeps(torch.nn.Module):
    """Values that a sum of one has to keep: infinities and NaN."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x
        for _ in range(12):
            u = torch.maximum(u.roll(1, -1), torch.maximum(u, u.roll(-1, -1)))
        return u


def test_values_apart_stay_what_they_are() -> None:
    x = torch.tensor([[-2.0, -torch.inf], [torch.nan, 1.0], [torch.inf, -torch.inf]])
    compiled = FULL(Keeps().eval(), args=(x,))
    assert apart(compiled.networks[0])
    torch.testing.assert_close(compiled.module("reference")(x), Keeps()(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["resnet18", "bert", "gpt2"])
def test_a_model_of_layers_has_none(name: str) -> None:
    case = small(name)
    program = pipeline.capture(case.model.eval(), (), case.kwargs)
    nodes = list(FULL.until("improve")(program).graph.nodes)
    found = ExpressionSizes(nodes)
    assert not any(node in found for node in nodes)


class Overwritten(torch.nn.Module):
    """A wave within its borders, in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = x.clone()
        for _ in range(20):
            u[:, 1:-1] = u[:, 1:-1] + 0.2 * (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2])
        return u


def test_what_is_joined_has_a_kernel_already() -> None:
    model, x = Overwritten().eval(), torch.randn(3, 32)
    compiled = FULL(model, args=(x,))
    assert apart(compiled.networks[0]) == 0
    torch.testing.assert_close(compiled.module("reference")(x), model(x))
