"""A captured program runs as the module that it was captured from, without it, in any dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.verification.eager import EagerRun, values_freed_after

CPU = torch.device("cpu")


class Everything(nn.Module):
    """A buffer that is written to, a branch, a cast, an input of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: torch.Tensor, ids: torch.Tensor, scale: float) -> dict[str, Any]:
        """[N, 6], [N] -> results"""
        y = self.norm(self.linear(x)) * scale
        self.count += y.sum(0)
        z = torch.cond(x.shape[0] > 2, lambda v: v.sin(), lambda v: v.cos(), (y,))
        return {"y": z.to(torch.float16), "ids": ids + y.argmax(1), "rows": x.shape[0]}


def test_eager_gives_what_the_module_gives() -> None:
    model = Everything().eval()
    x, ids = torch.randn(3, 6), torch.arange(3)
    program = pipeline.capture(model, (x, ids, 2.0))
    found = EagerRun(program, program.parameters, CPU)((x, ids, 2.0))
    with torch.no_grad():
        want = model(x, ids, 2.0)
    by_kind = dict(zip((o.kind for o in program.outputs), found, strict=True))
    assert torch.equal(by_kind["buffer"], model.count)
    users = [v for o, v in zip(program.outputs, found, strict=True) if o.kind == "user"]
    assert torch.equal(users[0], want["y"]) and users[0].dtype == torch.float16
    assert torch.equal(users[1], want["ids"]) and users[2] == 3


def test_a_wider_dtype_is_computed_in_throughout() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).eval().half()
    x = torch.randn(4, 8).half()
    program = pipeline.capture(model, (x,))
    (exact,) = EagerRun(program, program.parameters, CPU, torch.float64)((x,))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, model.double()(x.double()).detach())


def test_the_source_has_no_weights_and_is_kept_through_the_stages() -> None:
    model = nn.Linear(4, 4).eval()
    compiled = pipeline.default()(model, (torch.randn(2, 4),))
    source = compiled.program.source
    assert source is not None and not source.parameters and not source.examples and source.source is None
    assert "aten.linear" in str(source)
    assert not compiled.module("reference").program.source


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_noise_changes_products_only_as_much(noise: float) -> None:
    model, x = nn.Linear(16, 16).eval(), torch.randn(4, 16)
    program = pipeline.capture(model, (x,))
    runs = [
        EagerRun(program, program.parameters, CPU, torch.float64, noise=noise, seed=seed)((x,))[0] for seed in (0, 0, 1)
    ]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2]) == (noise == 0)
    assert float(((runs[2] - runs[0]) / runs[0]).abs().max()) <= 2.1 * noise


def test_values_are_let_go_of_after_their_last_use_and_results_are_kept() -> None:
    program = pipeline.capture(Everything().eval(), (torch.randn(3, 6), torch.arange(3), 2.0))
    order, gone = [n for n in program.graph.nodes if n.op != "output"], values_freed_after(program.graph)
    returned = set(program.graph.output_node().all_input_nodes)
    let_go = [n for node in order for n in gone[node]]
    assert len(let_go) == len(set(let_go)) and set(let_go) == set(order) - returned
    for place in range(len(order)):
        left = {n for later in order[place + 1 :] for n in later.all_input_nodes}
        assert not left & {n for before in order[: place + 1] for n in gone[before]}
