"""Whole compiled programs on a GPU: devices, segments beside PyTorch, mutation, ranges, the choice of an executor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline import Compiled, ShapeError
from tests.capture.test_mutation import OLD, Delayed

pytestmark = pytest.mark.gpu


def compiled(model: nn.Module, *args: Any, dynamic: Any = None, **options: Any) -> Compiled:
    return pipeline.default(**options)(model.eval(), args=args, dynamic_shapes=dynamic)


class Net(nn.Module):
    """Layers whose results are exact in any precision: no products but by powers of two."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 4.0]))
        self.turned = nn.Parameter(2 * torch.eye(3).roll(1, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3] -> [N, 3]"""
        return torch.relu((x @ self.turned) * self.scale + 1) @ self.turned - x


X = torch.arange(-6.0, 6.0).reshape(4, 3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_outputs_are_where_the_inputs_are(device: str) -> None:
    run = compiled(Net(), X)
    result = run(X.to(device))
    assert result.device.type == device
    assert torch.equal(result.cpu(), Net()(X))


def test_tensorrt_is_the_default_here() -> None:
    run = compiled(Net(), X)
    assert run.module().executor == "tensorrt"
    assert run.module(executor="reference").executor == "reference"
    assert torch.equal(run.module()(X), run.module(executor="reference")(X))


def test_a_model_on_the_gpu_is_compiled_as_it_is() -> None:
    run = compiled(Net().cuda(), X.cuda())
    assert torch.equal(run(X.cuda()).cpu(), Net()(X))


def test_dynamic_batch_and_what_lies_outside() -> None:
    run = compiled(Net(), X, dynamic=({0: Dim("n", min=1, max=8)},))
    for n in (1, 4, 8):
        x = torch.arange(-3.0 * n, 0.0).reshape(n, 3)
        assert torch.equal(run(x), Net()(x)), f"at batch {n}"
    with pytest.raises(ShapeError, match="compiled for"):
        run(torch.ones(9, 3))


@pytest.mark.parametrize(
    "operators",
    [{"aten.relu.default"}, {"aten.mul.Tensor"}, {"aten.relu.default", "aten.mul.Tensor"}],
    ids=lambda ops: ",".join(sorted(ops)),
)
def test_torch_segments_run_beside_engines(operators: set[str]) -> None:
    run = compiled(Net(), X, torch_executed_ops=operators, min_block_size=1)
    kinds = {segment.kind for segment in run.partitioned.segments}
    assert kinds == {"engine", "torch"}, run.report()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results = [run((X + i).cuda()) for i in range(10)]
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        assert torch.equal(result.cpu(), Net()(X + i)), f"run {i}"


class Counter(nn.Module):
    """A buffer that counts, and is part of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3] -> [3]"""
        self.count.add_(x)
        return self.count * 2


def test_buffers_are_written_back() -> None:
    model = Counter()
    run = compiled(model, torch.ones(3), min_block_size=1)
    one, other = run.module(), run.module()
    for i in range(1, 5):
        assert one(torch.ones(3)).tolist() == [2.0 * i] * 3
    assert other(torch.ones(3)).tolist() == [2.0] * 3, "each module has buffers of its own"
    assert not model.count.any()


class Filler(nn.Module):
    """Changes its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N]"""
        x.mul_(2)
        return x + 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inputs_are_written_back(device: str) -> None:
    run = compiled(Filler(), torch.ones(3), min_block_size=1)
    x = torch.full((3,), 4.0, device=device)
    assert run(x).tolist() == [9.0] * 3
    assert x.tolist() == [8.0] * 3


class Sized(nn.Module):
    """Results that depend on sizes as numbers."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        """[N, 3] -> [N, 3], N"""
        return x + x.shape[0], x.shape[0]


def test_sizes_are_numbers() -> None:
    run = compiled(Sized(), X, dynamic=({0: Dim("n", min=1, max=8)},), min_block_size=1)
    for n in (1, 5, 8):
        y, size = run(torch.zeros(n, 3))
        assert torch.equal(y, torch.full((n, 3), float(n)))
        assert (size, type(size)) == (n, int)


def test_results_are_not_shared_between_calls() -> None:
    run = compiled(Net(), X)
    first = run(X.cuda())
    kept = first.clone()
    run((X + 1).cuda())
    torch.cuda.synchronize()
    assert torch.equal(first, kept)


@pytest.mark.parametrize("form", OLD)
def test_old_values_in_graphs(form: str) -> None:
    """Buffers and inputs that are written with the old values of others."""
    eager = Delayed(form).eval().cuda()
    run = compiled(Delayed(form), torch.zeros(6, 6)).module(cuda_graphs=True)
    for step in range(5):
        x = torch.arange(36.0, device="cuda").reshape(6, 6) + step
        ours, theirs = x.clone(), x.clone()
        assert torch.equal(run(ours), eager(theirs)) and torch.equal(ours, theirs)
        assert all(torch.equal(value, eager.get_buffer(name)) for name, value in run.named_buffers())
