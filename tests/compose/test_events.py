"""What observers are told, and that they change nothing."""

from __future__ import annotations

import logging
import threading
from contextvars import copy_context
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given

from pipeline.compose.pipelines import Event, Pipeline, report, stage
from pipeline.program import Program
from pipeline.settings import CompilationSettings
from tests.compose.toys import Left, chains, left_to_right, right_to_left, start


@given(chains())
def test_observers_see_every_stage_in_order(pipeline: Pipeline) -> None:
    seen: list[Event] = []
    result = pipeline.observed_by(seen.append)(start(pipeline))
    assert [(e.stage, e.kind) for e in seen] == [(n, k) for n in pipeline.names for k in ("started", "finished")]
    assert all((event.seconds is None) == (event.kind == "started") for event in seen)
    assert all(event.seconds is None or event.seconds >= 0 for event in seen)
    assert result == pipeline(start(pipeline))
    assert not seen or seen[-1].record is result


@stage
def counts(record: Left) -> Left:
    """Reports its progress, from a thread too."""
    report(1, 2, "half")
    thread = threading.Thread(target=copy_context().run, args=(report, 2, 2))
    thread.start()
    thread.join()
    return record


@stage
def breaks(record: Left) -> Left:
    """Fails."""
    raise ZeroDivisionError("as planned")


def test_progress_reaches_the_observers_of_the_running_stage_only() -> None:
    seen: list[Event] = []
    report(1, 2, "nobody listens")
    Pipeline([counts]).observed_by(seen.append, lambda event: report(0, 0, "observers do not report"))(Left())
    progress = [(e.stage, e.done, e.total, e.detail) for e in seen if e.kind == "progress"]
    assert progress == [("counts", 1, 2, "half"), ("counts", 2, 2, "")]
    assert len(seen) == 4


def test_an_error_passes_unchanged_with_a_note_and_an_event() -> None:
    seen: list[Event] = []
    with pytest.raises(ZeroDivisionError, match="as planned") as error:
        Pipeline([counts, breaks]).observed_by(seen.append)(Left())
    assert error.value.__notes__ == ["in stage 'breaks' of the pipeline"]
    assert (seen[-1].kind, seen[-1].stage, seen[-1].detail) == ("failed", "breaks", "ZeroDivisionError: as planned")


def test_an_observer_that_fails_is_logged_once_and_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def clumsy(event: Event) -> None:
        raise OSError("disk full")

    seen: list[Event] = []
    with caplog.at_level(logging.WARNING, "pipeline"):
        assert Pipeline([counts]).observed_by(clumsy, seen.append)(Left()) == Left()
    assert len(caplog.records) == 1
    assert len(seen) == 4


def test_observers_of_both_sides_are_called() -> None:
    first: list[str] = []
    second: list[str] = []
    a = Pipeline([left_to_right]).observed_by(lambda e: first.append(e.stage))
    b = Pipeline([right_to_left]).observed_by(lambda e: second.append(e.stage))
    (a | b)(Left())
    assert first == second == ["left_to_right"] * 2 + ["back"] * 2


def test_events_are_frozen_and_do_not_print_their_records() -> None:
    event = Event("started", "build", record=Left(("long",)))
    assert "long" not in repr(event)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.stage = "other"


@stage
def looks(program: Program) -> Program:
    """Gives the program back."""
    return program


def test_the_front_door_captures_and_is_told_as_a_stage() -> None:
    seen: list[Event] = []
    pipeline = Pipeline([looks], settings=CompilationSettings(min_block_size=2)).observed_by(seen.append)
    program = pipeline(torch.nn.ReLU(), (torch.zeros(2),))
    assert [event.stage for event in seen] == ["capture", "capture", "looks", "looks"]
    assert program.settings.min_block_size == 2
    assert pipeline(program) is program
    assert len(seen) == 6


@pytest.mark.parametrize("arguments", [(3,), (Left(), (3,))])
def test_the_front_door_says_what_it_takes(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="cannot be compiled: pass an"):
        Pipeline([looks])(*arguments)
