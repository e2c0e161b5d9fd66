"""Kernels by CUPTI: each belongs to a row of TensorRT's profiler, and what no kernel takes is told."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from pipeline.profiling import measure
from pipeline.profiling.assemble import assemble_profile
from pipeline.profiling.kernels import Span, assign_kernels, kernels_by_segment, time_rows
from tests.profiling.test_profile import measured
from tests.viewing.models import architecture, fallbacks

DIGEST = "_0x31bf89da657d90b6"
SPIN = "void at::cuda::(anonymous namespace)::spin_kernel(long)"
ROWS = [
    ("__mye12_0_myl0_0", 0.0002),
    ("stem.conv/convolution_U3_myl0_1", 0.03),
    ("__myl_MulAddRelu_myl0_2", 0.006),
    ("__myl_FcAdd_myl0_3", 0.02),
    ("__myl_MulAddRelu_myl0_4", 0.006),
]


def in_a_row(*kernels: tuple[str, float], start: float = 0.0, gap: float = 0.001) -> list[Span]:
    """Kernels one after the other, each so long after the one before it."""
    found = []
    for name, taken in kernels:
        found.append(Span(name, start, taken))
        start += taken + gap
    return found


KERNELS = [
    ("cudnn_conv", 0.026),
    (f"__myl_MulAddRelu_vec{DIGEST}", 0.003),
    ("cublas_split_k", 0.012),
    ("cublas_reduce", 0.004),
    (f"__myl_MulAddRelu{DIGEST}", 0.003),
]


def test_kernels_are_given_to_rows_in_order() -> None:
    assert assign_kernels(ROWS, KERNELS) == [1, 2, 3, 3, 4]
    found = time_rows(ROWS, [in_a_row(*KERNELS)] * 3)
    assert found is not None
    assert [round(taken, 4) for _, taken in found.rows] == [0.0, 0.026, 0.003, 0.016, 0.003]
    assert found.rows[3][0] == ("cublas_split_k", "cublas_reduce")
    assert found.between == pytest.approx(0.004)


def test_kernels_of_other_names_are_not_taken() -> None:
    wrong = [(f"__myl_Other{DIGEST}", 0.003) if "MulAddRelu" in name else (name, taken) for name, taken in KERNELS]
    assert assign_kernels(ROWS, wrong) is None
    assert time_rows(ROWS, [in_a_row(*wrong)]) is None
    assert time_rows(ROWS, []) is None
    assert assign_kernels(ROWS[:1], KERNELS) is None  # more than a row can have


def test_what_tensorrt_wrote_is_no_products() -> None:
    rows = [
        ("layers.0.mlp/linear_U3_myl0_0", 0.02),
        ("__myl_Resh_myl0_1", 0.004),
        ("layers.0.o/linear_U4_myl0_2", 0.02),
    ]
    kernels = [("cudnn_matMul", 0.016), (f"__myl_Resh_vec{DIGEST}", 0.015), ("cudnn_matMul", 0.001)]
    assert assign_kernels(rows, kernels) == [0, 1, 2]
    assert assign_kernels(rows, [*kernels, (f"__myl_Other{DIGEST}", 0.001)]) is None


def test_kernels_side_by_side_count_once_for_the_time_between() -> None:
    runs = [[Span("a", 0.0, 2.0), Span("b", 0.5, 1.0), Span("c", 3.0, 1.0)]]
    found = time_rows([("a", 2.0), ("b", 1.0), ("c", 1.0)], runs)
    assert found is not None
    assert found.between == 1.0


def test_segments_lie_between_their_bounds() -> None:
    one = [Span(SPIN, 0, 1), *in_a_row(("a", 1), start=2), Span(SPIN, 9, 1)]
    two = [Span(SPIN, 20, 1), *in_a_row(("b", 1), ("c", 1), start=22), Span(SPIN, 29, 1)]
    again = [Span(span.name, span.start + 100, span.milliseconds) for span in [*one, *two]]
    found = kernels_by_segment(["x", "y", "x", "y"], [*again, *one, *two])
    assert [[span.name for span in run] for run in found["x"]] == [["a"]]
    assert [[span.name for span in run] for run in found["y"]] == [["b", "c"]]
    assert kernels_by_segment(["x"], [*one, *two]) == {}
    assert kernels_by_segment(["x"], []) == {}


@pytest.mark.parametrize("name", ["resnet50", "vit", "bert", "llama"])
def test_a_profile_of_kernels_adds_up_to_the_engine(name: str) -> None:
    given = measured(architecture(name))
    [(engine, runs)] = given.layers.items()
    kernels = [in_a_row(*((row.partition("_myl0_")[0], taken - 0.003) for row, taken in rows)) for rows in runs]
    found = assemble_profile(architecture(name), attrs.evolve(given, kernels={engine: kernels}))
    [segment] = found.segments
    last = kernels[0][-1]
    assert segment.timed == "kernels"
    assert segment.layers_sum == pytest.approx(last.start + last.milliseconds)
    assert segment.layers[-1].by == "between"
    assert all(len(layer.kernels) == 1 for layer in segment.layers[:-1])
    named = sum(layer.milliseconds for layer in found.unassigned)
    assert sum(node.milliseconds for node in found.nodes) + named == pytest.approx(found.layers_sum)
    assert "between kernels" in str(found)


def test_the_time_between_kernels_is_no_more_than_the_engine_leaves() -> None:
    given = measured(architecture("bert"))
    [(engine, runs)] = given.layers.items()
    kernels = [in_a_row(*((row.partition("_myl0_")[0], taken - 0.003) for row, taken in rows)) for rows in runs]
    own = sum(span.milliseconds for span in kernels[0])
    for whole, between in ((own + 0.001, 0.001), (0.9 * own, 0.0), (2 * own + 1.0, None)):
        found = assemble_profile(
            architecture("bert"), attrs.evolve(given, kernels={engine: kernels}, segments={engine: [whole]})
        )
        [segment] = found.segments
        seen = kernels[0][-1].start + kernels[0][-1].milliseconds - own
        assert segment.layers[-1].milliseconds == pytest.approx(seen if between is None else between)


def test_every_segment_is_bounded(monkeypatch: Any) -> None:
    order, kept_busy = list[str](), list[int]()
    monkeypatch.setattr(measure, "keep_busy", kept_busy.append)
    monkeypatch.setattr(measure, "record_event", lambda: None)
    module = fallbacks().module("reference")
    ahead = measure.SegmentTimer()
    run = lambda inputs, turn: [*inputs]  # noqa: E731
    for _ in range(3):
        measure.run_between_markers(order, "x", ahead, run, [torch.ones(1)], None)  # type: ignore[arg-type]
    assert order == ["x"] * 3
    assert len(kept_busy) == 6
    assert module.refused_graphs == ()
