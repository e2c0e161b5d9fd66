"""Which operands of elementwise operators are broadcast before: those that the kernel of a reduction may keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from pipeline.capture.capture import capture
from pipeline.quirks.applied import find_marks


def _shifted(x: torch.Tensor, y: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return y - shift + (x - shift).exp().sum(-1, keepdim=True)


CASES: dict[str, tuple[Callable[..., torch.Tensor], list[str]]] = {
    "softmax": (lambda x, y: x.softmax(-1) * y, ["softmax"]),
    "through casts and views": (lambda x, y: x.softmax(-1).float().reshape(8).reshape(1, 8) * y, ["reshape_1"]),
    "sums are no elements": (lambda x, y: y / x.exp().sum(-1, keepdim=True), []),
    "what a sum scales": (lambda x, y: x / x.sum(-1, keepdim=True) * y, ["div"]),
    "sums of two kinds": (lambda x, y: (x.sum(-1, keepdim=True) / x.amax(-1, keepdim=True)) * y, []),
    "the same, computed twice": (lambda x, y: (y - x.exp()) / x.exp().sum(-1, keepdim=True), ["exp"]),
    "an input that is reduced": (lambda x, y: (y - x) / x.std(-1, keepdim=True), ["x"]),
    "behind what is reduced": (lambda x, y: y * (x.exp() + 1) / x.exp().amax(-1, keepdim=True), ["add"]),
    "a sum that is reduced": (lambda x, y: y.sum(0) * y / y.sum(0).amax(), ["sum_1"]),
    "a number of another dtype": (lambda x, y: y.half() - (x.softmax(-1) * 2).mean() * x.mean().exp(), []),
    "a parameter's share": (lambda x, y: y * (x.mean(-1, keepdim=True) * torch.ones(1, 1)).sigmoid(), []),
    "added to a product": (lambda x, y: torch.addmm(x.softmax(-1), y, y.mT.repeat(1, 2)), ["softmax"]),
    "a view as another": (lambda x, y: y.sum(0, keepdim=True).reshape_as(x[0]) * y + y.mean().view_as(x[0, 0]), []),
    "logsumexp": (lambda x, y: y[:, :3] - x.logsumexp(-1, keepdim=True), ["logsumexp"]),
    "logsumexp of the same": (lambda x, y: x - x.logsumexp(-1, keepdim=True), []),
    "a shift": (lambda x, y: _shifted(x, y[:, :3], x.amax(-1, keepdim=True) * 2), ["mul"]),
    "a shift of the same": (lambda x, y: _shifted(x, x + 1, x.amax(-1, keepdim=True)), []),
    "a shift of what a product made of it": (
        lambda x, y: (lambda m: (x - m).exp().sum(-1, keepdim=True) * ((x - m) @ y.mT) + m)(x.amax(-1, keepdim=True)),
        [],
    ),
    "a shift of another product": (
        lambda x, y: (lambda m: (x - m).exp().sum(-1, keepdim=True) * (x @ y.mT) + m)(x.amax(-1, keepdim=True)),
        ["amax"],
    ),
    "a sum that others shift": (lambda x, y: _shifted(x, y[:, :3], x.sum(-1, keepdim=True)), ["sum_1"]),
    "a norm of norms": (
        lambda x, y: y * (y.amax(0, keepdim=True) / y.amax(0, keepdim=True).mean()).relu(),
        ["relu"],
    ),
    "a number where a condition is": (lambda x, y: torch.where(y[0] > 0, x[0].logsumexp(0), x[0]), []),
    "a number under a condition": (lambda x, y: torch.where(y[0, :3] > 0, x[0].logsumexp(0), y[0, :3]), ["logsumexp"]),
    "nothing is reduced": (lambda x, y: (x.exp() + 1) * y, []),
    "reduced in another shape": (lambda x, y: (x.exp() * y).sum(-1), []),
    "no broadcast": (lambda x, y: y.softmax(-1) * y, []),
    "a product between": (lambda x, y: (x.softmax(-1) @ x.mT) * y, []),
    "a condition": (lambda x, y: torch.where(y > 0, functional.layer_norm(x, (8,)), y), ["layer_norm"]),
    "the first of several results": (lambda x, y: x.max(-1, keepdim=True).values * y, []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_broadcast_before(name: str) -> None:
    function, due = CASES[name]

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return function(x, y)

    graph = capture(Model().eval(), (torch.randn(1, 8), torch.randn(4, 8))).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    marks = [mark for mark in find_marks(nodes, {}) if mark.form == "expanded"]
    assert [name for mark in marks for name in mark.names] == due
