"""Two layers on the same inputs that differ in one attribute are two layers: TensorRT gives each its own result."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from pipeline.network.attributes import ATTRIBUTES
from tests.gpu import attribute_pairs, networks
from tests.gpu.attribute_pairs import BASES, NOT_PAIRED, Pair

WRONG = {
    "POOLING average average_count_excludes_padding=False": "one average is computed for both",
    "ACTIVATION elu alpha=1.5": "one alpha is taken for both",
    "RESIZE single selector_for_single_pixel=UPPER": "the nearest to half a pixel is another than either says",
    "ATTENTION_INPUT float16 norm_op=NONE": "attention without softmax is wrong by itself",
    "ATTENTION_INPUT bfloat16 norm_op=NONE": "attention without softmax is wrong by itself",
}
"""Pairs that TensorRT-RTX computes wrongly on an H100. No converter writes one: see docs/tensorrt.md."""
BOUND = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 1.6e-2}
"""Errors relative to the largest value: TF32's for float32, a few units in the last place for halves."""


def test_every_attribute_has_a_pair_or_a_reason() -> None:
    paired = {f"{base.kind}.{attribute}" for base in BASES for attribute in base.values}
    known = {f"{kind}.{row.name}" for kind, rows in ATTRIBUTES.items() for row in rows}
    explained = {name for name in known if name in NOT_PAIRED or name.partition(".")[0] in NOT_PAIRED}
    assert paired <= known
    assert known == paired | explained
    assert {name for name in NOT_PAIRED if "." in name} <= known


def test_pairs_have_names_of_their_own() -> None:
    names = [pair.name for pair in attribute_pairs.pairs()]
    assert len(names) == len(set(names))
    assert WRONG.keys() <= set(names)


@pytest.mark.parametrize("pair", attribute_pairs.pairs(), ids=lambda pair: pair.name)
def test_the_two_results_differ(pair: Pair) -> None:
    """Else nothing would show that they are taken for one."""
    net, network = attribute_pairs.twins(pair)
    assert len(network.layers) >= 2
    first, second = attribute_pairs.halves(attribute_pairs.expected(net, network))
    assert attribute_pairs.error(first, second) > 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("pair", attribute_pairs.pairs(), ids=lambda pair: pair.name)
def test_the_engine_gives_both(
    pair: Pair, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    if pair.name in WRONG:
        request.applymarker(pytest.mark.xfail(reason=WRONG[pair.name], strict=True))
    net, network = attribute_pairs.twins(pair)
    want = attribute_pairs.expected(net, network)
    got = networks.on_gpu(net)
    error = attribute_pairs.error(got, want)
    row = {"kind": pair.base.kind, "base": pair.base.label, "attribute": pair.attribute, "value": pair.value}
    record_property("attribute_pairs", json.dumps({**row, "error": error}))
    bound = max(BOUND.get(result.dtype, 0.0) for result in want)
    assert error <= bound, f"{network}\ngives {got}\nthe reference {want}"
