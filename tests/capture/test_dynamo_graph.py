"""``torch.compile`` with our backend runs what every backend of torch runs: compiled, or in PyTorch with a warning."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import pipeline
from pipeline.capture import dynamo_graph
from pipeline.runtime import data_writes
from tests.test_dynamo import fresh  # noqa: F401 - every test begins with an empty cache of Dynamo's

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, -2.5]])


def backend(**fields: Any) -> Any:
    return pipeline.backend(pipeline.default(min_block_size=1, **fields), executor="reference")


def data_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.data = y.data / y.data.norm()
    y.data.mul_(2)
    return y + 1


def mask_picks(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] * 2


def number_decides(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x * 3


def sparse(x: torch.Tensor) -> torch.Tensor:
    return torch.sparse.mm(x.mT.to_sparse(), x)


def generator(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


def seed(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + torch.rand(3)


def resized(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.resize_(3, 2)
    return y


def of_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(numpy.sin(x.numpy())) * 2


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def jagged(x: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged).sin().values()


def unique(x: torch.Tensor) -> torch.Tensor:
    return torch.unique(x.round())


GRAPHS = (
    data_in_place,
    mask_picks,
    number_decides,
    sparse,
    generator,
    seed,
    resized,
    of_numpy,
    branches,
    jagged,
    unique,
)


@pytest.mark.parametrize("function", GRAPHS, ids=lambda function: function.__name__)
def test_what_every_backend_runs(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ours = backend()
    compiled = torch.compile(function, backend=ours)
    for x in (X, -X):
        torch.testing.assert_close(compiled(x), function(x))
    assert ours.compiled + ours.refused.total()


class Sizes(nn.Module):
    """Cuts by whole numbers of numpy's (policies of stable-baselines3), and multiplies with them."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.layer, self.sizes, self.times = nn.Linear(3, 5), list(numpy.array([3, 2], dtype)), dtype(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[N, 3] -> [N, 3], [N, 2], [N, 2], [N]"""
        parts = torch.split(self.layer(x), self.sizes, dim=1)
        first = self.layer(x)[:, : self.times]
        return *(part.log_softmax(-1) for part in parts), first * self.times, torch.zeros(self.times).sum() + x[:, 0]


@pytest.mark.parametrize("dtype", [numpy.int64, numpy.int32])
def test_sizes_that_are_numbers_of_numpy(dtype: Any) -> None:
    ours, model = backend(), Sizes(dtype).eval()
    compiled = torch.compile(model, backend=ours, fullgraph=True)
    for sizes in ([3, 2], [1, 4], [3, 2]):
        model.sizes = list(numpy.array(sizes, dtype))
        torch.testing.assert_close(compiled(X), model(X))
    assert ours.compiled <= 2


DERIVATIVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": torch.func.grad(lambda a: (a**3).sum()),
    "vjp": lambda a: torch.func.vjp(torch.sin, a)[1](a)[0],
    "jvp": lambda a: torch.func.jvp(torch.sin, (a,), (a,)),
    "jacrev": torch.func.jacrev(torch.sin),
    "hessian": torch.func.hessian(lambda a: (a**3).sum()),
    "vmap of grad": lambda a: torch.vmap(torch.func.grad(lambda b: b**3))(a),
}


@pytest.mark.parametrize(
    ("name", "dtype", "dynamic"),
    [
        *((name, torch.float32, False) for name in DERIVATIVES),
        ("grad", torch.float32, True),
        ("vmap of grad", torch.float64, True),
    ],
)
def test_derivatives_by_torch_func(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    function, compiled = DERIVATIVES[name], torch.compile(DERIVATIVES[name], backend=backend(), dynamic=dynamic)
    for mode in (torch.enable_grad, torch.no_grad):
        for x in (X[0].to(dtype), X[0, :2].to(dtype))[: 1 + dynamic]:
            with mode():
                torch.testing.assert_close(compiled(x), function(x))


def test_an_input_that_requires_a_gradient_gets_one() -> None:
    ours, layer = backend(), nn.Linear(3, 1)
    compiled = torch.compile(lambda x: layer(x).pow(2).sum(), backend=ours)
    x = X.clone().requires_grad_()
    with torch.enable_grad():
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(layer(x).pow(2).sum(), x))
    assert "an input requires a gradient" in ours.report()
    compiled(x)
    assert ours.compiled == 1


class Shares(nn.Module):
    """Writes a buffer, and reads a view of it that is a buffer too, which no program follows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("whole", torch.zeros(3))
        self.register_buffer("part", self.whole[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3] -> [N, 3]"""
        y = self.layer(x).relu()
        torch._dynamo.graph_break()
        self.whole.add_(x.sum(0))
        return y + self.part.sum()


def test_what_is_not_captured_runs_in_pytorch_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    ours, model = backend(), Shares().eval()
    compiled = torch.compile(model, backend=ours)
    with caplog.at_level(logging.WARNING):
        for total in (1, 2, 3):
            compiled(torch.ones(2, 3))
            assert model.whole.tolist() == [2.0 * total] * 3
    [told] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "runs a graph in PyTorch, without TensorRT: the model writes to" in told
    assert "test_dynamo_graph.py" in told
    assert "self.whole.add_(x.sum(0))" in told
    first, reason, *_ = ours.report().splitlines()
    assert first.startswith("2 graphs compiled, ")
    assert reason.strip().removesuffix(" (2 times)") in told


def test_what_the_user_asked_for_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Shares()
    with pytest.raises(Exception, match=r"the model writes to .* shares its memory"):
        torch.compile(lambda x: (shares.whole.add_(x.sum(0)), shares.part * 2)[1], backend=backend(), fullgraph=True)(X)
    torch.compiler.reset()
    with pytest.raises(Exception, match=r"the model writes to .* shares its memory"):
        torch.compile(shares, backend=backend(require_full_compilation=True))(X)
    torch.compiler.reset()

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("a fault of ours")

    monkeypatch.setattr(dynamo_graph, "capture", fails)
    with pytest.raises(Exception, match="a fault of ours"):
        torch.compile(torch.tanh, backend=backend())(X)


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "assigned": lambda m: setattr(m[0].weight, "data", torch.randn(3, 3)),
    "merged": lambda m: setattr(m[0].weight, "data", m[0].weight.data.add_(1)),
    "in place": lambda m: m[0].weight.data.add_(1),
    "by a view of it": lambda m: m[0].weight.data[1].zero_(),
    "a buffer": lambda m: m[1].running_mean.data.fill_(2),
    "counted by torch": lambda m: m[0].weight.mul_(2),
}


def test_weights_that_change_through_data_are_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    refitted: list[str] = []
    own = pipeline.dynamo.refit_module_weights

    def refit(*args: Any) -> pipeline.Compiled:
        """Engines have other weights, which the reference executor reads from the model."""
        result = own(*args)
        refitted.append(result.engines[0].digest)
        assert refitted[-1] != args[0].engines[0].digest
        return result

    monkeypatch.setattr("pipeline.dynamo.refit_module_weights", refit)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    compiled = torch.compile(model, backend=backend())

    def check(times: int) -> None:
        """Results are eager's; whoever only reads through ``.data`` causes no refit."""
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
            assert model[0].weight.data.isfinite().all()
        assert len(refitted) == times

    check(0)
    for times, change in enumerate(CHANGES.values(), 1):
        change(model)
        check(times)
    alias = model[0].weight.data
    check(times)
    alias.copy_(torch.randn(3, 3))
    check(times + 1)


def test_torch_has_its_own_data_again_once_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_writes, "_living", weakref.WeakSet())  # logs of pytest keep graphs of other tests
    one, other = torch.zeros(2), torch.zeros(2)
    watched = [data_writes.watch_data_writes(tensor) for tensor in (one, other, one)]
    assert watched[0] is watched[2]
    for _ in range(2):
        assert "data" in vars(torch.Tensor)
        one.data.add_(1)
        del watched[0]
    assert watched[0].count != (0, 0)
    del watched[0]
    assert "data" not in vars(torch.Tensor)
    one.data.add_(1)
    assert one.tolist() == [3, 3]
