"""Where data decides in Python, both branches are computed, and data chooses between what they give."""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from benchmarks import zoo
from pipeline.frontend.branching import both
from pipeline.stages import unbuilt
from tests.frontend import deciding, deciding_refused
from tests.frontend.deciding import RIGHT, Deciding, Decorated, Doubled, Forward
from tests.frontend.deciding_refused import REFUSED
from tests.testing.in_turn import in_turn

X = torch.linspace(-1, 2, 12).reshape(3, 4)
DIMS = ({0: torch.export.Dim("n", min=1, max=9)},)
CALLS = (X, -X, X[:1], X * 3, X * 0, -X.abs(), torch.cat([X, X + 1]), X.masked_fill(X > 1, torch.inf))


@pytest.fixture(autouse=True)
def functions_are_as_they_were() -> Iterator[None]:
    """Their own code, and the profiler that was set."""
    codes = {name: f.__code__ for name, f in vars(deciding).items() if hasattr(f, "__code__")}
    profiler = sys.getprofile()
    yield
    assert all(vars(deciding)[name].__code__ is code for name, code in codes.items())
    assert sys.getprofile() is profiler


def agrees(model: Deciding, device: str | None) -> None:
    compile = pipeline.default(require_full_compilation=True, device=device)
    run = compile(model, (X,), dynamic_shapes=DIMS).module("reference")
    for x in CALLS:
        given, same = x.clone(), x.clone()
        ours, theirs = tree_leaves(run(given)), tree_leaves(model(same))
        for a, b in zip([*ours, given], [*theirs, same], strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)


@in_turn("function, device", RIGHT)
def test_both_branches_are_computed(function: Forward, device: str | None) -> None:
    agrees(Deciding(function).eval(), device)


def test_bart_in_float16_is_one_engine() -> None:
    """It clamps where a number is not finite."""
    bart = next(each for each in zoo.architectures("text") if each.name == "bart")
    program, _ = zoo.captured(bart.case(torch.float16), zoo.known_dims(bart))
    compiled = pipeline.default(require_full_compilation=True).replace("build", unbuilt)(program)
    assert len(compiled.partitioned.engine_segments) == 1
    assert sum(node.target == torch.ops.aten.isfinite.default for node in program.graph.nodes) > 1


def test_a_buffer_is_written_where_data_decides() -> None:
    model = Deciding(deciding.counts_calls).eval()
    run = pipeline.default(require_full_compilation=True)(model, (X,), dynamic_shapes=DIMS).module("reference")
    for x in CALLS[:-1]:
        torch.testing.assert_close(run(x), model(x))
    torch.testing.assert_close(run.get_buffer("calls"), model.calls)


def test_what_a_class_inherits() -> None:
    agrees(Doubled(deciding.returns).eval(), None)


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_would_be_left_behind_is_refused(function: Forward) -> None:
    line = r"Deciding decides by data, .*deciding_refused\.py:\d+, .*both ways cannot be in a program: .*"
    with pytest.raises(pipeline.CaptureError, match=line + REFUSED[function]):
        pipeline.capture(Deciding(function).eval(), (X,))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (deciding_refused.caught, r"decides by data at deciding_refused\.py:\d+, and catches"),
        (deciding_refused.assigns_an_item_elsewhere, r"decides by data, .*deciding_refused\.py:\d+, if x\.sum"),
        (deciding_refused.refused_and_caught, r"the if at deciding_refused\.py:\d+, .* draws random numbers"),
    ],
)
def test_others_are_refused(function: Forward, why: str) -> None:
    """What a model catches, too: torch.export gives the program of the error."""
    with pytest.raises(pipeline.CaptureError, match=why):
        pipeline.capture(Deciding(function).eval(), (X,))


def test_what_is_collected_meanwhile_is_no_effect() -> None:
    seen = types.SimpleNamespace(count=0)

    def counted(phase: str, info: object) -> None:
        seen.count += 1

    gc.callbacks.append(counted)
    try:
        pipeline.capture(Deciding(deciding.collects_garbage).eval(), (X,))
    finally:
        gc.callbacks.remove(counted)
    assert seen.count


@pytest.mark.parametrize("model", [Deciding(deciding.one_way), Decorated()], ids=["function", "method"])
def test_what_a_process_froze_before_it_forks(model: Deciding) -> None:
    gc.freeze()
    try:
        agrees(model.eval(), None)
    finally:
        gc.unfreeze()


def test_a_model_without_source() -> None:
    space: dict[str, Forward] = {}
    exec("def f(m, x):\n    if x.sum() > 0:\n        x = x + 1\n    return x", space)
    with pytest.raises(pipeline.CaptureError, match="decides by data"):
        pipeline.capture(Deciding(space["f"]).eval(), (X,))


def test_other_threads_decide_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written anew asks Python where nothing is traced."""
    model, begins = Deciding(deciding.one_way).eval(), both.Choice.__init__
    expected, found = [model(x) for x in (X, -X)], list[torch.Tensor]()

    def asked(self: both.Choice, *args: Any) -> None:
        begins(self, *args)
        if self.is_open:
            assert deciding.one_way.__code__.co_names[0] == "pipeline.frontend.branching"
            thread = threading.Thread(target=lambda: found.extend(model(x) for x in (X, -X)))
            thread.start()
            thread.join()

    monkeypatch.setattr(both.Choice, "__init__", asked)
    pipeline.capture(Deciding(deciding.one_way).eval(), (X,))
    assert len(found) == 2
    torch.testing.assert_close(found, expected)


def test_it_can_be_profiled() -> None:
    """The profiler goes on after the branches."""
    with cProfile.Profile() as profile:
        pipeline.capture(Deciding(RIGHT[0]).eval(), (X,))
        _marked()
    assert _marked.__name__ in {name for _, _, name in pstats.Stats(profile).stats}


def _marked() -> None: ...
