"""Kernels are searched for before the weights of a plan, which its table of sections locates."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import nn

import pipeline
from pipeline.quirks.plan_detectors import without_weights
from pipeline.trt import CAPABILITIES


def made(start: int, size: int, behind: int = 4) -> bytes:
    """A plan with a table that states such a section of weights; 100 bytes precede the weights, which are 50."""
    head = bytes(64) + b"NGNE\0\0\0\0" + struct.pack("<QQ", 88, 12) + b"THGW\0\0\0\0" + struct.pack("<QQ", start, size)
    return head.ljust(200, b"t") + b"w" * 50 + bytes(behind)


def test_the_part_before_the_weights() -> None:
    assert without_weights(made(200, 50)) == made(200, 50)[:200]


@pytest.mark.parametrize(
    "plan",
    [made(200, 40), made(200, 60), made(200, 50, behind=20), made(50, 200), made(200, 50)[:100], b"weights", b""],
    ids=["too_short", "too_long", "not_the_end", "over_the_table", "cut_off", "no_table", "empty"],
)
def test_another_plan_stays_whole(plan: bytes) -> None:
    assert without_weights(plan) == plan


@pytest.mark.skipif(CAPABILITIES.version_tuple[:2] != (1, 6), reason="plans of TensorRT-RTX 1.6 were looked at")
def test_a_plan_is_split_at_its_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).eval()
    plan = bytes(pipeline.compile(model, args=(torch.randn(2, 256),), min_block_size=1).engines[0].plan)
    text = without_weights(plan)
    bias = bytes(model.state_dict()["0.bias"].numpy())
    assert len(plan) - len(text) > 4 * 2 * 256 * 512
    assert text.count(b"={ name=") == plan.count(b"={ name=") > 0
    assert bias in plan and bias not in text
