"""Validators' limits, tried from both sides: what they take is right, what they refuse fails once nobody refuses it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

import pipeline
from pipeline.aten.support import Rejection, function_name
from pipeline.converters import DYNAMO_CONVERTERS, index
from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter
from pipeline.settings import CompilationSettings
from pipeline.testing import Call, Checked, CheckError, TensorSpec, check
from pipeline.testing.programs import build_call_program
from pipeline.trt import CAPABILITIES, LIBRARY, Log, new_network, to_trt, trt
from tests.converters.limits import LIMITS, MODELS, Limit, Model

aten = torch.ops.aten
ROOT = Path(__file__).parents[2]
STATED = [*sorted((ROOT / "pipeline/converters").glob("*.py")), ROOT / "pipeline/stages/validate.py"]
MECHANISM = {"lookup.py", "declare.py"}
ELSEWHERE = {"quantized.py": "tests/quantized/test_limits.py", "collectives.py": "tests/distributed/cases.py"}
"""Limits of what the TensorRT of our tests builds none of, whose tests look at verdicts alone; and of what takes
several processes."""

HAND_MADE = {
    "the number of classes is data-dependent": "test_one_hot_needs_its_number_of_classes",
    "has no layer for cumulative sums": "test_without_cumulative_sums_nothing_is_scattered_by_mask",
    "has no implementation on pairs of reals": "tests/stages/test_complex.py",
    "has layout": "test_sparse_tensors_are_refused",
    "attention is faster than TensorRT's on this kind of GPU": "tests/converters/test_attention.py",
    "is a Python bool of dynamic sizes, which engines do not support": "test_a_condition_on_sizes_is_refused",
    "that depends on data and has no bound": "tests/shapes/test_data_dependent.py",
    "only the data decides whether they are equal": "tests/shapes/test_data_dependent.py",
}
"""Reasons for nodes that no call or model here leads to, each with its test, below or elsewhere."""


def of_limit(limit: Any) -> str:
    return str(limit.says).replace(" ", "_")


def node_of(call: Call) -> torch.fx.Node:
    graph = build_call_program(call, CompilationSettings()).program.graph
    return next(node for node in graph.nodes if node.target is call.target)


def reasons(call: Call) -> list[str]:
    """Why no converter takes the call as it stands."""
    return [str(each.reason) for each in getattr(DYNAMO_CONVERTERS.choose(node_of(call)), "reasons", ())]


def without_validator(target: Any) -> ConverterRegistry:
    """The registry with the last converter of an operator, which then takes every call."""
    *_, support = DYNAMO_CONVERTERS.get_all_converters_with_target(target)

    @dynamo_tensorrt_converter(target, supports_dynamic_shapes=True)
    def convert(*args: Any) -> Any:
        return support.converter_implementation(*args)

    return DYNAMO_CONVERTERS.override(convert)


@pytest.mark.parametrize("limit", LIMITS, ids=of_limit)
def test_what_is_taken_builds_and_is_right(limit: Limit) -> None:
    result = check(limit.inside, build=True)
    assert isinstance(result, Checked), result.reasons
    assert result.used


@pytest.mark.parametrize("limit", LIMITS, ids=of_limit)
def test_what_is_refused_fails_once_nobody_refuses(limit: Limit) -> None:
    assert limit.says in " ".join(reasons(limit.outside))
    if limit.measured:
        assert limit.measured in " ".join((ROOT / "docs/notes/2026-11-29-tensorrt.md").read_text().split())
        return
    if CAPABILITIES.version_tuple >= limit.before:
        pytest.skip(f"{LIBRARY} builds it")
    with pytest.raises(CheckError) as failed:
        check(limit.outside, registry=without_validator(limit.outside.target), build=True)
    assert re.fullmatch(limit.fails, failed.value.kind)


@cache
def refusals(model: Model) -> tuple[str, ...]:
    """Every reason that a model's nodes are given for running in PyTorch."""
    validated = pipeline.default().until("validate")(model.module(), args=model.args, dynamic_shapes=model.dynamic)
    return tuple(reason.reason for verdict in validated.verdicts.values() for reason in verdict.reasons)


@pytest.mark.parametrize("model", MODELS, ids=of_limit)
def test_a_model_is_told_why(model: Model) -> None:
    assert model.says in " ".join(refusals(model))


@pytest.mark.parametrize("model", MODELS, ids=of_limit)
def test_what_stays_in_pytorch_is_right(model: Model) -> None:
    compiled = pipeline.default()(model.module(), args=model.args, dynamic_shapes=model.dynamic)
    torch.testing.assert_close(compiled.module("reference")(*model.args), model.module()(*model.args))


def stated() -> Iterator[tuple[str, str]]:
    """Where a reason is stated, and a pattern that it matches."""
    for path in STATED:
        for call in ast.walk(ast.parse(path.read_text())) if path.name not in {*MECHANISM, *ELSEWHERE} else ():
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Rejection":
                yield f"{path.name}:{call.lineno}", _pattern(call.args[0])


def _pattern(text: ast.expr) -> str:
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in parts)  # type: ignore[arg-type]


def test_every_reason_has_a_row() -> None:
    given = [reason for limit in LIMITS for reason in reasons(limit.outside)]
    given += [reason for model in MODELS for reason in refusals(model)]
    rows = [limit.says for limit in LIMITS] + [model.says for model in MODELS]
    shown = {reason for reason in given if any(says in reason for says in rows)}
    missing = [
        f"{place}: {pattern}"
        for place, pattern in stated()
        if not any(re.fullmatch(pattern, reason) for reason in shown)
        and not any(re.search(re.escape(re.escape(says)), pattern) for says in HAND_MADE)
    ]
    assert not missing


def test_every_validator_has_a_row() -> None:
    supports = [s for t in DYNAMO_CONVERTERS for s in DYNAMO_CONVERTERS.get_all_converters_with_target(t)]
    validators = {function_name(s.capability_validator) for s in supports if s.capability_validator}
    validators -= {name for name in validators if f"{name.split('.')[-2]}.py" in ELSEWHERE}
    tried = {limit.outside.target for limit in LIMITS} | {target for m in MODELS for target in m.targets}
    tried |= {aten.one_hot.default, aten.masked_scatter.default, torch.sym_not}
    covered = {
        function_name(s.capability_validator)
        for target in tried
        for s in DYNAMO_CONVERTERS.get_all_converters_with_target(target)
        if s.capability_validator
    }
    assert validators == covered


def test_hand_made_reasons_have_their_test() -> None:
    assert all(name in globals() or (ROOT / name).exists() for name in HAND_MADE.values())


def made(target: Any, *args: Any, value: Any) -> torch.fx.Node:
    node = torch.fx.Graph().call_function(target, args)
    node.meta["val"] = value
    return node


def refused(node: torch.fx.Node) -> str:
    found = DYNAMO_CONVERTERS.explain(node)
    assert isinstance(found, tuple) and isinstance(found[0], Rejection)
    return found[0].reason


def test_one_hot_needs_its_number_of_classes() -> None:
    assert "largest index" in refused(made(aten.one_hot.default, None, -1, value=torch.empty(3, 2)))


def test_a_condition_on_sizes_is_refused() -> None:
    assert "is a Python bool of dynamic sizes" in refused(made(torch.sym_not, None, value=torch.empty(0)))


def test_without_cumulative_sums_nothing_is_scattered_by_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CAPABILITIES", attrs.evolve(index.CAPABILITIES, cumulative=False))
    call = Call(aten.masked_scatter.default, (TensorSpec((3,)), TensorSpec((3,), torch.bool), TensorSpec((3,))))
    assert reasons(call) == [f"{LIBRARY} has no layer for cumulative sums, which the operator needs"]


def test_sparse_tensors_are_refused() -> None:
    from pipeline.stages.validate import _tensor_rejections

    (why,) = _tensor_rejections("x", torch.eye(2).to_sparse(), CompilationSettings())
    assert "dense tensors only" in why.reason


@pytest.mark.parametrize(("rank", "taken"), [(8, True), (9, False)])
def test_tensorrt_takes_ranks_up_to_8(rank: int, taken: bool) -> None:
    network = new_network(trt.Builder(Log()))
    try:
        x = network.add_input("x", trt.float32, (1,) * rank)
    except (TypeError, ValueError):
        x = None
    assert (x is not None and len(x.shape) == rank) == taken


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16, torch.complex64])
def test_tensorrt_has_no_such_dtype(dtype: torch.dtype) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        to_trt(dtype)


def test_int8_does_not_build_where_it_is_refused() -> None:
    builder = trt.Builder(Log())
    network = new_network(builder)
    x = network.add_input("x", trt.int8, (4,))
    layer = network.add_elementwise(x, x, trt.ElementWiseOperation.SUM)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    built = builder.build_serialized_network(network, builder.create_builder_config())
    builds_anyway = CAPABILITIES.version_tuple >= (1, 5)  # NVIDIA's matrix has INT8 weights only
    assert (built is not None) == (CAPABILITIES.int8_activations or builds_anyway)
