"""``torch.vmap``, ``torch.func`` and forward-mode derivatives in a model compile as what they come to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.export_fixes.patching import VERSION

FULL = pipeline.default(require_full_compilation=True, min_block_size=1)
DYNAMIC = ({0: torch.export.Dim("n", min=2, max=9)},)


class Model(nn.Module):
    """A module that calls a function of itself and its input."""

    weight: torch.Tensor

    def __init__(self, function: Callable[[Model, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.register_buffer("weight", torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def written(row: torch.Tensor) -> torch.Tensor:
    row = row.clone()
    row[0] = 1
    return row


def energy(model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.linear(x).tanh().pow(2).sum()


def forces(model: Model, x: torch.Tensor) -> torch.Tensor:
    """As models of atoms compute them."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return -torch.autograd.grad(energy(model, x), x)[0]


def tangent(model: Model, x: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(lambda v: v.sin() * v, (x,), (torch.ones_like(x),))[1] @ model.weight.mT


FUNCTIONS: dict[str, Callable[[Model, torch.Tensor], Any]] = {
    "vmap": lambda m, x: torch.vmap(lambda row: (m.weight @ row).softmax(0))(x),
    "vmap of a module": lambda m, x: torch.vmap(m.linear)(x),
    "vmap along another dim": lambda m, x: torch.vmap(lambda column: column.sin(), in_dims=1, out_dims=1)(x),
    "vmap with a write": lambda m, x: torch.vmap(written)(x),
    "vmap in vmap": lambda m, x: torch.vmap(lambda row: torch.vmap(lambda w: (w * row).sum())(m.weight))(x),
    "grad": lambda m, x: torch.func.grad(lambda v: energy(m, v))(x),
    "grad and value": lambda m, x: torch.func.grad_and_value(lambda v: energy(m, v))(x),
    "vmap of grad": lambda m, x: torch.vmap(torch.func.grad(lambda row: energy(m, row)))(x),
    "jvp": tangent,
    "jacfwd": lambda m, x: torch.func.jacfwd(lambda row: m.linear(row).sin())(x[0]),
    "jacrev": lambda m, x: torch.func.jacrev(lambda row: m.linear(row).sin())(x[0]),
    "hessian": lambda m, x: torch.func.hessian(lambda row: row.pow(3).sum())(x[0]),
    "autograd": forces,
    "functional_call": lambda m, x: torch.func.functional_call(m.linear, {"weight": m.weight[:4]}, (x,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_are_one_engine(name: str) -> None:
    model = Model(FUNCTIONS[name]).eval()
    compiled = FULL(model, (torch.randn(3, 4),), dynamic_shapes=DYNAMIC)
    assert len(compiled.engines) == 1
    for rows in (2, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "autograd"])
def test_transforms_in_torch_compile(name: str) -> None:
    """Dynamo writes them into its graph; that of a derivative cannot be exported by Dynamo once more, which crashed."""
    model = Model(FUNCTIONS[name]).eval()
    compiled = torch.compile(model, backend=pipeline.backend(FULL), dynamic=False)
    for x in (torch.randn(3, 4), torch.randn(5, 4)):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.startswith("vmap") and "grad" not in name])
def test_transforms_as_on_a_gpu(name: str) -> None:
    """Without derivatives: for these torch's autograd wants the GPU itself."""
    program = pipeline.capture(Model(FUNCTIONS[name]), (torch.randn(3, 4),), None, DYNAMIC, device="cuda")
    assert len(FULL.until("convert")(program).networks) == 1


def test_an_exported_program_with_vmap() -> None:
    model, x = Model(FUNCTIONS["vmap"]).eval(), torch.randn(3, 4)
    compiled = FULL(torch.export.export(model, (x,)))
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.skipif(VERSION < (2, 13), reason="torch.export fails on it")
def test_an_exported_program_of_a_derivative_is_refused() -> None:
    """torch.export keeps what it has wrapped to derive by as constants without values."""
    model = Model(lambda _, x: torch.func.grad(lambda v: v.sin().sum())(x)).eval()
    exported = torch.export.export(model, (torch.randn(3, 4),))
    with pytest.raises(pipeline.CaptureError, match="pass the module"):
        pipeline.capture(exported)


BRANCHES: dict[str, Callable[[Model, torch.Tensor], Any]] = {
    "vmap": lambda m, x: torch.vmap(lambda row: row if row.sum() > 0 else -row)(x),
    "jvp": lambda m, x: torch.func.jvp(lambda v: v if v.sum() > 0 else -v, (x,), (x,))[1],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_failure_leaves_no_level_entered(name: str) -> None:
    """Where one was left, the next random tensor failed ("vmap: called random operation"), or the next jvp."""
    x = torch.randn(3, 4)
    with pytest.raises(pipeline.CaptureError):
        pipeline.capture(Model(BRANCHES[name]).eval(), (x,))
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0
    model = Model(tangent)
    assert torch.rand(3).shape == (3,) and model(x).shape == (3, 5)
