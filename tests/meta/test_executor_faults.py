"""`pipeline.bisect` names the node of every fault that is planted in the executor, in few builds."""

from __future__ import annotations

import math

import pytest

import pipeline
from tests.meta.executor_faults import ROWS, Wrong, factor, planted
from tests.meta.executor_models import compiled


def node(layer: str) -> str:
    """The node that a layer is called after."""
    return layer.split("/")[-1].split(":")[0]


def called(program: pipeline.Compiled, name: str, kind: str) -> str:
    """The layer of this kind and name; its kind is behind the name where a version needs more layers for the node."""
    names = {layer.name for network in program.networks for layer in network.layers if layer.kind == kind}
    if name in names:
        return name
    [layer] = [each for each in names if each.startswith(f"{name}:{kind.lower()}")]
    return layer


def few(program: pipeline.Compiled) -> float:
    return math.log2(len(program.coverage.converted)) + 4


def test_there_are_fifty() -> None:
    assert len(ROWS) >= 50


@pytest.mark.parametrize(
    ("toy", "layer", "kind", "wrong"), ROWS, ids=[f"{r[0]}-{r[1]}-{i}" for i, r in enumerate(ROWS)]
)
def test_a_planted_fault_is_found(toy: str, layer: str, kind: str, wrong: Wrong) -> None:
    program = compiled(toy)
    with planted(wrong, kind, frozenset({called(program, layer, kind)})):
        found = pipeline.bisect(program, executor="reference")
    assert found.nodes == (node(layer),)
    assert found.complete
    assert found.builds <= few(program)


@pytest.mark.parametrize("toy", ["images", "tokens", "choices"])
def test_without_a_fault_nothing_is_found(toy: str) -> None:
    found = pipeline.bisect(compiled(toy), executor="reference")
    assert (found.nodes, found.builds, found.complete) == ((), 1, True)


@pytest.mark.parametrize(
    ("toy", "kind", "nodes"),
    [
        ("tokens", "SOFTMAX", {"softmax"}),
        ("tokens", "MATRIX_MULTIPLY", {"linear_default", "matmul", "matmul_1", "linear_3", "linear_4"}),
        ("images", "ACTIVATION", {"leaky_relu"}),
        ("images", "POOLING", {"avg_pool2d", "max_pool2d"}),
    ],
)
def test_every_node_of_a_layer_kind_that_is_wrong_is_found(toy: str, kind: str, nodes: set[str]) -> None:
    program = compiled(toy)
    with planted(factor, kind):
        found = pipeline.bisect(program, executor="reference")
    assert set(found.nodes) == nodes
    assert found.complete
    assert found.builds <= 1 + len(nodes) * few(program)
