"""Every operator of the list runs in an engine, comes apart into what does, or has its reason written down."""

from __future__ import annotations

import csv
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._ops import OpOverload, OpOverloadPacket

from pipeline import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import get_decompositions
from pipeline.converters.unsupported import REASONS

TARGETS = [row["target"] for row in csv.DictReader((Path(__file__).parent / "targets.csv").open())]
DECOMPOSED = get_decompositions(DECOMPOSITIONS)
AT_LEAST = 225
"""How many of them must run in an engine."""


def overloads(name: str) -> Iterator[Any]:
    """The operators that a row names: one, or every functional overload of a packet."""
    root: Any = {"operator": operator, "torch": torch}.get(name.split(".")[0])
    if root is not None:
        yield getattr(root, name.split(".")[1])
        return
    found = operator.attrgetter(name)(torch.ops)
    if isinstance(found, OpOverloadPacket):
        yield from (getattr(found, o) for o in found.overloads() if "out" not in o)
    else:
        yield found


def functional(target: Any) -> Any:
    """What functionalisation makes of ``.out`` and in-place forms."""
    if isinstance(target, OpOverload) and target._schema.is_mutable:
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::").removesuffix("_"))
        return packet.default
    return target


def in_engine(target: Any) -> bool:
    """Whether a converter takes it, or a decomposition takes it apart."""
    if target in DYNAMO_CONVERTERS or target in DECOMPOSED:
        return True
    return isinstance(target, OpOverload) and target.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_in_one_of_three_classes(name: str) -> None:
    for target in map(functional, overloads(name)):
        assert in_engine(target) or REASONS.get(target), f"{name} is neither converted, nor decomposed, nor explained"


def test_most_run_in_an_engine() -> None:
    running = [name for name in TARGETS if all(in_engine(functional(t)) for t in overloads(name))]
    assert len(running) >= AT_LEAST


def test_no_operator_has_both_a_converter_and_a_reason() -> None:
    assert not REASONS.keys() & set(DYNAMO_CONVERTERS)
