"""Differences of two programs: none of the same, and those that a changed setting makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attrs import evolve

import pipeline
from pipeline.records.agreement import Agreement, OutputAgreement
from pipeline.records.profile import NodeTime, Profile, SegmentTime
from pipeline.viewing.collect import view_program
from pipeline.viewing.differences import find_differences, format_changes
from pipeline.viewing.records import KernelView, ProgramView
from pipeline.viewing.sources import open_view


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).softmax(-1)


def seen(model: torch.nn.Module | None = None, **settings: object) -> ProgramView:
    torch.manual_seed(0)
    compile = pipeline.default(min_block_size=1, **settings)
    return view_program(compile((model or Two()).eval(), args=(torch.randn(2, 8),)))


def kinds(before: ProgramView, after: ProgramView) -> set[str]:
    return {change.title for change in find_differences(before, after)}


def test_two_runs_of_the_same_do_not_differ() -> None:
    first, second = seen(), seen()
    assert first.stages != second.stages
    assert find_differences(first, second) == ()
    assert format_changes(find_differences(first, second)) == ""


def test_a_setting_is_named_with_its_effects() -> None:
    text = format_changes(find_differences(seen(), seen(torch_executed_ops={"aten.relu.default"})))
    assert "torch_executed_ops: as by default -> {'aten.relu.default'}" in text
    assert "engines: 1 -> 2" in text
    assert "0 bytes" not in text
    assert "relu (aten.relu.default): TensorRT -> PyTorch: " in text
    assert "layers: 12 -> 11" in text or "ACTIVATION: 1 -> 0" in text
    assert "cut engine_0 -> torch_1: - -> 64 bytes" in text
    assert "kernels:" in text


def test_other_numbers_in_the_weights_of_a_file_are_a_difference(tmp_path: Path) -> None:
    for name in ("one", "same", "other"):
        model = Two().eval()
        if name == "other":
            torch.nn.init.ones_(model.first.bias)
        pipeline.default(min_block_size=1)(model, args=(torch.ones(2, 8),)).save(tmp_path / f"{name}.trtp")
    one, same, other = (evolve(open_view(tmp_path / f"{n}.trtp"), title="") for n in ("one", "same", "other"))
    assert find_differences(one, same) == ()
    assert "weights:\n  their values differ: SHA-256" in format_changes(find_differences(one, other))
    assert kinds(one, evolve(other, weights_digest="")) == set()


def test_the_number_that_a_plan_gives_a_kernel_is_no_difference() -> None:
    program = seen()
    one, two, other = (
        evolve(program, kernels=(KernelView("engine_0", "corrltn", name),))
        for name in ("a/conv_U2", "a/conv_U3", "b_U2")
    )
    assert find_differences(one, two) == ()
    assert format_changes(find_differences(one, other)) == "kernels:\n  a/conv: 1 -> 0\n  b: 0 -> 1"


def test_another_model() -> None:
    wide = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU())
    found = kinds(seen(), seen(wide))
    assert {"inputs and outputs", "nodes", "layers", "sizes"} <= found
    assert "settings" not in found


def profiled(program: ProgramView, milliseconds: float) -> ProgramView:
    times = (NodeTime("relu", milliseconds),)
    segments = (SegmentTime("engine_0", "tensorrt", milliseconds),)
    return evolve(program, profile=Profile(segments, times, call=milliseconds))


def test_times_beyond_noise() -> None:
    program = seen()
    assert not find_differences(profiled(program, 1.0), profiled(program, 1.05))
    text = format_changes(find_differences(profiled(program, 1.0), profiled(program, 1.5)))
    assert "call: 1 -> 1.5 ms" in text
    assert "relu: 1 -> 1.5 ms" in text
    assert not find_differences(program, profiled(program, 1.0))


@pytest.mark.parametrize(("error", "differs"), [(1e-6, False), (1.5e-6, False), (1e-3, True), (float("inf"), True)])
def test_errors(error: float, differs: bool) -> None:
    program = seen()
    before, after = (
        evolve(program, agreement=Agreement((OutputAgreement("output", "optimal", each, 1e-6, 4e-6),), "reference"))
        for each in (1e-6, error)
    )
    assert bool(find_differences(before, after)) is differs
    if differs:
        assert "beyond its bound" in format_changes(find_differences(before, after))


def test_long_lists_are_cut_in_text_alone() -> None:
    changes = find_differences(seen(), seen(torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(40)])))
    nodes = next(change for change in changes if change.title == "nodes")
    assert len(nodes.rows) > 40
    assert f"and {len(nodes.rows) - 20} more" in format_changes(changes)
