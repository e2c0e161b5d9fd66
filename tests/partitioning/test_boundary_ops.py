"""Cheap operators beside PyTorch: on the side on which fewer bytes cross, and never alone in an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from benchmarks.partitions import unbuilt
from pipeline.program import Partitioned

X = torch.randn(4, 8)
SETTINGS = {"min_block_size": 1, "torch_executed_ops": {"aten.erfinv.default"}}


class Between(nn.Module):
    """Products for engines, with something of PyTorch's between them: ``erfinv``, which is kept out of engines."""

    def __init__(self, before: Any, after: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        cut = torch.erfinv(self.before(torch.tanh(self.first(x))))
        return self.last(self.after(cut)).softmax(-1)


def same(x: torch.Tensor) -> torch.Tensor:
    return x


def partitioned(model: nn.Module, *args: torch.Tensor, **settings: Any) -> Partitioned:
    record: Partitioned = pipeline.default(**{**SETTINGS, **settings}).until("partition")(model.eval(), args)
    return record


def in_torch(record: Partitioned) -> dict[str, str]:
    return {f.target: f.reason for f in record.fallbacks}


MOVES = {
    "an expand after engines": (Between(lambda x: x[None].expand(6, 4, 8), lambda x: x.sum(0)), "aten.expand.default"),
    "a wider cast after engines": (Between(lambda x: x.half().float(), same), "aten._to_copy.default"),
    "a narrower cast before engines": (Between(same, lambda x: x.half().relu().float()), "aten._to_copy.default"),
    "a slice before engines": (Between(lambda x: x.repeat(2, 1), lambda x: x[:2]), "aten.slice.Tensor"),
    "a sum of two before engines": (Between(same, lambda x: x + torch.erfinv(x)), "aten.add.Tensor"),
}


@pytest.mark.parametrize("case", MOVES)
def test_fewer_bytes_cross_in_pytorch(case: str) -> None:
    model, target = MOVES[case]
    record = partitioned(model, X)
    reason = in_torch(record)[target]
    assert reason.startswith("neighbours in PyTorch: ")
    assert reason.endswith(" fewer bytes cross between segments")
    assert len(record.engine_segments) == 2
    compiled = pipeline.default(**SETTINGS).replace("build", unbuilt)(model, (X,))
    torch.testing.assert_close(compiled.module("reference")(X), model(X), equal_nan=True)


STAYS = {
    "a relu": Between(torch.relu, torch.relu),
    "a view": Between(lambda x: x.reshape(8, 4), lambda x: x.reshape(4, 8)),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_saves_nothing_stays_in_engines(case: str) -> None:
    record = partitioned(STAYS[case], X)
    assert in_torch(record).keys() == {"aten.erfinv.default"}
    assert [s.kind for s in record.segments] == ["engine", "torch", "engine"]


class Island(nn.Module):
    """Something cheap alone between two operators that PyTorch runs."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4, 8] -> [...]"""
        return torch.erfinv(self.between(torch.erfinv(x)))


@pytest.mark.parametrize(
    "between",
    [lambda x: x.reshape(8, 4), lambda x: x.mT.reshape(8, 4), lambda x: x.half(), torch.relu, lambda x: x[None][:, :2]],
    ids=["reshape", "two views", "cast", "relu", "slice"],
)
def test_nothing_cheap_is_an_engine_between_two_operators_of_pytorch(between: Any) -> None:
    assert [s.kind for s in partitioned(Island(between), X).segments] == ["torch"]


def test_an_engine_keeps_what_it_needs_to_be_large_enough() -> None:
    model = Between(lambda x: x[None].expand(6, 4, 8), lambda x: x.sum(0))
    least = {n: len(partitioned(model, X, min_block_size=n).engine_segments[0].nodes) for n in (1, 2, 3, 4)}
    assert least[1] < least[4]
    assert all(found >= n for n, found in least.items())


class Filled(nn.Module):
    """Two engines that need the same range, and PyTorch between them that needs it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        rows = torch.arange(x.shape[0])[:, None].float()
        y = torch.erfinv(torch.tanh(self.first(x) / (rows + 1))) + rows
        return self.last(y * rows)


def test_constants_and_sizes_are_copied_and_not_cut_for() -> None:
    dims = ({0: torch.export.Dim("n", min=2, max=9)},)
    model = Filled().eval()
    compiled = pipeline.default(**SETTINGS).replace("build", unbuilt)(model, args=(X,), dynamic_shapes=dims)
    first, _, last = compiled.partitioned.segments
    assert all("arange" in s.nodes for s in (first, last))
    assert {p.name for c in compiled.partitioned.cuts for p in c.tensors}.isdisjoint({"arange", "unsqueeze"})
    assert [row.node for row in compiled.coverage.converted].count("arange") == 1
    assert "arange" not in {f.node for f in compiled.coverage.fallback}
    for n in (2, 5, 9):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled.module("reference")(x), model(x))


def test_what_only_pytorch_reads_is_pytorchs() -> None:
    class Only(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N] -> [N]"""
            return torch.erfinv(x) + torch.arange(x.shape[0])

    dims = ({0: torch.export.Dim("n", min=2, max=9)},)
    compile = pipeline.default(**SETTINGS).until("partition")
    record = compile(Only().eval(), (X[0],), dynamic_shapes=dims)
    assert in_torch(record)["aten.arange.default"] == "only operators that run in PyTorch read it"
