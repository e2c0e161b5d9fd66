"""What is a stage and what is not: functions, frozen records, annotations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import attrs
import pytest

from pipeline.compose.pipelines import FunctionStage, Pipeline, as_stage, stage
from pipeline.settings import CompilationSettings
from tests.compose.toys import Left, Right, TurnRound, left_to_right, plain, right_to_left, said


def test_stages_functions_and_records_join_from_both_sides() -> None:
    chain = left_to_right | TurnRound() | as_stage(plain)
    assert chain == left_to_right | (TurnRound() | Pipeline([plain]))
    assert chain.names == ("left_to_right", "turn_round", "plain")
    assert (plain | Pipeline([right_to_left])).names == ("plain", "back")
    assert said(chain(Left())) == ("left_to_right", "plain")
    assert list(chain) == [chain[name] for name in chain.names]
    assert "plain" in chain
    assert "partition" not in chain


def test_a_stage_is_still_its_function() -> None:
    assert left_to_right.__doc__ == "Turns a Left into a Right."
    assert left_to_right(Left()) == Right(("left_to_right",))
    assert (right_to_left.name, right_to_left.takes, right_to_left.gives) == ("back", Right, Left)
    assert repr(right_to_left) == "<stage back (right_to_left): Right -> Left>"


def test_pipelines_can_be_copied_and_sent_to_another_process() -> None:
    whole = (left_to_right | TurnRound() | right_to_left).replace("turn_round", plain)
    assert pickle.loads(pickle.dumps(whole)) == whole == copy.deepcopy(whole)
    assert pickle.loads(pickle.dumps(left_to_right)) is left_to_right


def test_repr_shows_what_was_swapped_and_the_settings() -> None:
    whole = Pipeline([left_to_right, TurnRound()], settings=CompilationSettings(min_block_size=1)).observed_by(print)
    assert repr(whole.replace("turn_round", plain)) == (
        "Pipeline(CompilationSettings(min_block_size=1), 1 observer)\n"
        "  left_to_right: Left -> Right\n"
        "  turn_round (plain): Right -> Right"
    )


def no_result(record: Left):
    """Not a stage."""


def no_record(record) -> Left:
    """Not a stage."""


def unknown(record: Nowhere) -> Left:  # noqa: F821
    """Not a stage."""


def two(record: Left, other: Right) -> Left:
    """Not a stage."""


class Bare:
    """Not a stage: nothing is annotated."""

    def __call__(self, record):
        """Nothing."""


@attrs.define
class Mutable:
    """Not a stage: it can be changed."""

    def __call__(self, record: Left) -> Left:
        """The same."""
        return record


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (no_result, r"'no_result' does not declare its return type"),
        (no_record, r"'no_record' does not declare the type of its parameter 'record'"),
        (lambda: 1, "needs a positional parameter"),
        (two, "'other' has no default"),
        (Bare(), "'bare' does not declare"),
        (Mutable(), "Mutable is mutable"),
        (TurnRound, r"TurnRound is a class: pass an instance as the stage"),
        (3, "3 is not a stage"),
    ],
)
def test_what_is_no_stage_is_told_what_is_missing(value: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Pipeline() | value


def test_forward_references_are_resolved_late_and_by_name() -> None:
    made = stage(unknown)
    assert "? -> ?" in repr(Pipeline([made]))
    with pytest.raises(TypeError, match="stage 'unknown': its annotation 'Nowhere' is not defined"):
        Pipeline([made, left_to_right])


def test_a_result_of_another_type_than_declared_is_an_error_of_the_stage() -> None:
    with pytest.raises(TypeError, match="stage 'liar' returned a Left, but declares Right"):
        Pipeline([FunctionStage(lies, "liar")])(Left())


def lies(record: Left) -> Right:
    """Gives what it takes."""
    return record
