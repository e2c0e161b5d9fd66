"""What a program from a file may call: a rule decides every operator that torch has, and each rule decides some."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.inductor_prims  # which registers operators that rules name
from torch._ops import OpOverload

import pipeline
from pipeline.aten import effects
from pipeline.aten.effects import SPACES, _reason_by_rules, reason_to_refuse
from pipeline.aten.traits import ROWS, Kind, op_kind
from tests.artifact import own_operators

aten = torch.ops.aten
ROOT = Path(__file__).parents[2]


def overloads() -> Iterator[OpOverload]:
    """Every overload of the namespaces that the rules decide, registered with the dispatcher or by TorchScript."""
    found = {*torch._C._dispatch_get_all_op_names()} | {s.name for s in torch._C._jit_get_all_schemas()}
    for space, name in sorted({tuple(each.split(".")[0].split("::")) for each in found}):
        packet = getattr(getattr(torch.ops, space), name, None) if space in SPACES else None
        if isinstance(packet, torch._ops.OpOverloadPacket):
            yield from (getattr(packet, each) for each in packet.overloads())


OVERLOADS = [*overloads()]


OF_CONSTRAINTS = pytest.mark.skipif(
    f"torch=={str(torch.__version__).partition('+')[0]}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="the rules are of the operators of the torch in constraints.txt",
)


@OF_CONSTRAINTS
def test_every_operator_is_decided() -> None:
    assert len(OVERLOADS) > 3000 and pipeline.load
    undecided = [op.name() for op in OVERLOADS if _reason_by_rules(op) is None]
    assert not undecided, (
        "an operator of this torch: does it only compute? Put it into REFUSED or PURE of aten/effects.py"
    )


def test_what_traits_list_may_be_called_unless_it_writes() -> None:
    listed = {name.partition(".")[0] for name in ROWS if name.partition(".")[0] not in SPACES}
    known = [op for op in OVERLOADS if op._schema.name.removeprefix("aten::") in listed]
    refused = {
        op for op in known if _reason_by_rules(op) not in ("", "is TorchScript's own", "writes to its arguments")
    }
    assert {op.overloadpacket for op in refused if op_kind(op) is not Kind.ELSEWHERE} == {aten.pin_memory}


@OF_CONSTRAINTS
def test_every_pattern_of_a_name_matches_some() -> None:
    names = {op._schema.name.removeprefix("aten::").replace("::", ".") for op in OVERLOADS}
    for patterns in (*effects.REFUSED.values(), effects.PURE):
        idle = [pattern for pattern in patterns.split() if not fnmatch.filter(names, pattern)]
        assert not idle


TOUCHING = """
    from_file.default save.default set_.source_Storage set.source_Storage resize_.default _resize_output.default
    record_stream.default _print.default add.out add_.Tensor copy_.default _sparse_coo_tensor_unsafe.default
    _nested_view_from_buffer.default set_data.default _pin_memory.default manual_seed.default
    _cufft_clear_plan_cache.default
"""


@pytest.mark.parametrize("name", TOUCHING.split())
def test_what_touches_more_than_values_is_refused(name: str) -> None:
    packet = getattr(aten, name.split(".")[0], None)
    if packet is None or name.split(".")[1] not in packet.overloads():
        pytest.skip("this torch has no such operator")
    assert reason_to_refuse(getattr(packet, name.split(".")[1]))


def test_other_libraries_are_allowed_by_name() -> None:
    op = own_operators.twice._opoverload
    assert reason_to_refuse(op) == "is of the library tests_artifact, which is not allowed"
    assert not reason_to_refuse(op, {"tests_artifact"})
    assert reason_to_refuse(aten.from_file.default, {"aten"})
    assert reason_to_refuse(torch.ops.pipeline.run.default)
    assert reason_to_refuse(print)
