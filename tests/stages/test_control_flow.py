"""``torch.cond``, ``map`` and ``scan`` are written out, and right in engines, or stay in PyTorch with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

import pipeline
from pipeline.aten.op_predicates import branch_graphs
from pipeline.decomposition import control_flow
from tests.stages.flows import (
    ANY_SIZE,
    DIMS,
    ONE_SIZE,
    Flow,
    Function,
    X,
    chosen,
    convolved,
    nested,
    recurrence,
    repeated,
)
from tests.testing.in_turn import in_turn

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
FULL: Final = pipeline.default(require_full_compilation=True, min_block_size=1)


def agrees(run: Callable[[Tensor], Any], model: nn.Module, *inputs: Tensor) -> None:
    for x in inputs:
        torch.testing.assert_close(run(x), model(x), equal_nan=True)


@in_turn("name, device", [*ANY_SIZE, *ONE_SIZE])
def test_engines_have_it(name: str, device: str | None) -> None:
    model = Flow({**ANY_SIZE, **ONE_SIZE}[name]).eval()
    compile = pipeline.default(require_full_compilation=True, min_block_size=1, device=device)
    run = compile(model, (X,)).module("reference")
    agrees(run, model, X, X + 3, X - 3, X * 5)


@pytest.mark.parametrize("name", ANY_SIZE)
def test_engines_have_it_for_sizes_that_vary(name: str) -> None:
    model = Flow(ANY_SIZE[name]).eval()
    run = FULL(model, (X,), dynamic_shapes=DIMS).module("reference")
    agrees(run, model, X, X[:1] + 3, X[:3] - 3, torch.cat([X, X[:3] * 5]))


def looked_up(m: Flow, y: Tensor) -> Tensor:
    at = torch.arange(6)
    return torch.cond(y.sum() > 0, lambda a, i: m.table(i) + a, lambda a, i: a * 2, (y, at))


def drawn(m: Flow, y: Tensor) -> Tensor:
    return torch.cond(y.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a * 2, (y,))


def divided(m: Flow, y: Tensor) -> Tensor:
    n = y.to(torch.int64)
    return torch.cond((n != 0).all(), lambda a: 12 // a, lambda a: a * 2, (n,))


def by_size(m: Flow, y: Tensor) -> Tensor:
    return torch.cond(y.shape[0] > 4, lambda a: a[:, :2] + 1, lambda a: a[:, 2:] * 2, (y,))


def hidden(m: Flow, y: Tensor) -> Tensor:
    """A draw within what is within a branch."""

    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.mean() > 0.5, lambda b: b + torch.rand_like(b), lambda b: b * 2, (a,))

    return torch.cond(y.sum() > 0, inner, lambda a: a + 1, (y,))


def long(m: Flow, y: Tensor) -> Any:
    return scan(lambda h, row: (h * 0.5 + row, h * 1), m.shift * 0, y.repeat(100, 1))


def literal(m: Flow, y: Tensor) -> Any:
    return scan(lambda h, row: (h + row * torch.tensor([1.0, 2, 3, 4]), h * 1), m.shift * 0, y)


def written_numbers(m: Flow, y: Tensor) -> Any:
    """A step writes a number to what it is given a copy of."""

    def step(h: Tensor, row: Tensor) -> Any:
        copy = h + row
        copy[0] = 5
        return copy, h * 1

    return scan(step, m.shift * 0, y)


def within(m: Flow, y: Tensor) -> Any:
    """A loop within a branch."""
    return torch.cond(y.sum() > 0, lambda a: repeated(m, a), lambda a: a + 1, (y,))


@pytest.mark.parametrize(
    ("flow", "why", "varies"),
    [
        (looked_up, "aten.embedding.default in a branch reads or writes at indices", False),
        (drawn, "aten.rand_like.default in a branch draws random numbers", False),
        (divided, "in a branch divides by integers that may be 0 if another branch is taken", False),
        (hidden, "aten.rand_like.default in a branch draws random numbers", False),
        (by_size, "a size decides which branch runs", True),
        (long, "the 600 loop steps have 1800 operators, more than 1024", False),
        (literal, "is a tensor that the inner graph creates from numbers", False),
        (written_numbers, "is a tensor that the inner graph creates from numbers", False),
        (recurrence, "the number of loop steps is a dynamic size", True),
        (convolved, "torch.vmap cannot turn this control flow into one call for any number of rows", True),
        (repeated, "control flow: which of its graphs runs, and how often, is known only at run time", False),
        (within, "while_loop cannot be expanded", False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_stays_in_pytorch_says_why(flow: Function, why: str, varies: bool) -> None:
    model = Flow(flow).eval()
    compiled = pipeline.default(min_block_size=1)(model, (X,), dynamic_shapes=DIMS if varies else None)
    [fallback] = [f for f in compiled.coverage.fallback if "higher_order" in f.target]
    assert why in fallback.reason and fallback.where.startswith("flows.py:")
    if flow not in (drawn, hidden):
        agrees(compiled.module("reference"), model, X, X + 3, X - 3)


@pytest.mark.parametrize("entry", [torch.cond, torch.ops.higher_order.cond, "torch.ops.higher_order.cond"])
def test_the_user_keeps_it_in_pytorch(entry: Any, tmp_path: Path) -> None:
    """Where a branch is much work, and seldom runs."""
    model = Flow(chosen).eval()
    compiled = pipeline.default(min_block_size=1, torch_executed_ops={entry})(model, (X,))
    assert [f.target for f in compiled.coverage.fallback] == ["torch.ops.higher_order.cond"]
    agrees(compiled.module("reference"), model, X, X - 3)
    compiled.save(tmp_path / "net.trtp")
    agrees(pipeline.load(tmp_path / "net.trtp").module("reference"), model, X, X - 3)


def test_a_kept_operator_keeps_what_it_is_in() -> None:
    """One that is within a map: a map of single rows cannot be cut."""
    compiled = pipeline.default(min_block_size=1, torch_executed_ops={torch.cond})(Flow(nested).eval(), (X,))
    assert [f.target for f in compiled.coverage.fallback] == ["torch.ops.higher_order.cond"]


def test_networks_print_alike() -> None:
    texts = {str(FULL(Flow(nested).eval(), (X,)).networks[0]) for _ in range(2)}
    assert len(texts) == 1


def test_verify_compares_with_the_branch_that_eager_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    verified = FULL | pipeline.verify()
    assert verified(Flow(chosen).eval(), (X,)).agreement
    monkeypatch.setattr(control_flow, "branch_graphs", lambda node: branch_graphs(node)[::-1])
    with pytest.raises(pipeline.AgreementError):
        verified(Flow(chosen).eval(), (X,))


def test_weights_of_both_branches_are_refitted() -> None:
    compiled, other = FULL(Flow(chosen).eval(), (X,)), Flow(chosen).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
    agrees(pipeline.refit_module_weights(compiled, other).module("reference"), other, X, X + 3, X - 3)


def test_dynamo_has_it() -> None:
    model = Flow(chosen).eval()
    run = torch.compile(model, backend=pipeline.backend(FULL))
    with torch.no_grad():
        agrees(run, model, X, X - 3)
