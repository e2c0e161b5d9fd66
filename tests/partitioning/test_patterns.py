"""What TensorRT fuses stays whole where a border between submodules runs through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from benchmarks.partitions import unbuilt
from pipeline.aten.naming import module_path
from pipeline.program import Partitioned, is_operator
from pipeline.stages.partition import BySubmodule


class Sorted(nn.Module):
    """What follows a convolution, in a module that sorts as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4, H, W] -> [N, 4, H, W]"""
        y = torch.relu(self.norm(x))
        return torch.tanh(y.sort(-1).values)


class Convolutional(nn.Module):
    """A convolution whose norm and activation are its sibling's, and one whose activation is its parent's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 4, 3))
        self.tail, self.head = Sorted(), nn.Sequential(nn.Conv2d(4, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 2, H - 4, W - 4]"""
        return torch.relu(self.head(self.tail(self.body(x))))


class Scores(nn.Module):
    """The first half of attention, and a sort of what it is given if asked for."""

    def __init__(self, sorts: bool) -> None:
        super().__init__()
        self.query, self.key, self.sorts = nn.Linear(8, 8), nn.Linear(8, 8), sorts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 8] -> [N, S, S]"""
        x = x.sort(-1).values if self.sorts else x
        return self.query(x) @ self.key(x).mT


class Weights(nn.Module):
    """The softmax of attention, and a sum over a sort of what it is given if asked for."""

    def __init__(self, sorts: bool) -> None:
        super().__init__()
        self.sorts = sorts

    def forward(self, scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """[N, S, S], [N, S, 8] -> [N, S, S]"""
        bias = x.sort(-1).values.sum(-1, keepdim=True) if self.sorts else x.sum(-1, keepdim=True)
        return torch.softmax(scores * 0.5 + bias, -1)


class Attention(nn.Module):
    """Attention spelled out, its parts in three modules and their parent."""

    def __init__(self, sorts: str = "") -> None:
        super().__init__()
        self.scores, self.weights = Scores(sorts == "scores"), Weights(sorts == "weights")
        self.value, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, S, 8] -> [N, S, 8]"""
        return self.out(self.weights(self.scores(x), x) @ self.value(x))


def cut(model: nn.Module, x: torch.Tensor, partitioner: Any, **settings: Any) -> Partitioned:
    compile = pipeline.default(**{"min_block_size": 1, "torch_executed_ops": {"aten.sort.default"}, **settings})
    compile = compile.replace("partition", partitioner).replace("build", unbuilt)
    compiled = compile(model.eval(), args=(x,))
    torch.testing.assert_close(compiled.module("reference")(x), model(x))
    record: Partitioned = compiled.partitioned
    return record


def places(record: Partitioned) -> dict[str, str]:
    """Segment by operator."""
    return {name: s.name for s in record.segments for name in s.nodes}


def kinds(record: Partitioned, path: str) -> set[str]:
    """The kinds of segments in which the operators of a module run."""
    own = {n.name for n in record.program.graph.nodes if is_operator(n) and module_path(n).startswith(path)}
    return {s.kind for s in record.segments if own & set(s.nodes)}


@pytest.mark.parametrize("partitioner", [pipeline.by_submodule(d) for d in (1, 2)], ids=["depth 1", "depth 2"])
def test_a_convolution_takes_its_norm_and_activation_along(partitioner: BySubmodule) -> None:
    record = cut(Convolutional(), torch.randn(2, 3, 8, 8), partitioner)
    assert [s.kind for s in record.segments] == ["engine", "torch", "engine"]
    first, middle, last = record.segments
    assert {"convolution_default_1", "mul_tensor_2", "add_tensor_1", "relu"} <= set(first.nodes), record
    assert set(middle.nodes) >= {"sort", "tanh"}
    assert {"convolution_default_2", "relu_1"} == set(last.nodes)
    reason = {f.node: f.reason for f in record.fallbacks}["tanh"]
    assert reason == "tail stays in one segment, and its operator sort runs in PyTorch"


def test_what_goes_with_a_convolution_says_so_in_pytorch() -> None:
    refused = {"aten.sort.default", "aten.sigmoid.default"}
    record = cut(Convolutional(), torch.randn(2, 3, 8, 8), pipeline.by_submodule(1), torch_executed_ops=refused)
    reasons = {f.node: f.reason for f in record.fallbacks}
    whole = "body stays in one segment, and its operator sigmoid runs in PyTorch"
    assert reasons["convolution_default_1"] == whole
    assert reasons["relu"] == f"it is fused with convolution_default_1: {whole}"


def test_what_engines_refuse_ends_a_pattern() -> None:
    """A norm or an activation that runs in PyTorch anyhow is fused with nothing."""
    refused = {"aten.sort.default", "aten.relu.default"}
    record = cut(Convolutional(), torch.randn(2, 3, 8, 8), pipeline.by_submodule(1), torch_executed_ops=refused)
    place = places(record)
    assert place["convolution_default_1"] == place["add_tensor_1"] != place["relu"]
    assert kinds(record, "body") == {"engine"}


ATTENTION = ("matmul", "mul", "add", "softmax", "matmul_1")


@pytest.mark.parametrize("sorts", ["", "scores", "weights"])
def test_attention_is_whole_wherever_its_parts_are(sorts: str) -> None:
    record = cut(Attention(sorts), torch.randn(2, 3, 8), pipeline.by_submodule(1))
    [home] = {places(record)[name] for name in ATTENTION}
    assert home.startswith("torch" if sorts == "scores" else "engine"), record
    assert kinds(record, "out") == kinds(record, "value") == {"engine"}
