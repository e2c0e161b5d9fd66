"""The laws of composition, over random chains of toy stages: joins, `|`, replace, insert, without, until."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.compose.pipelines import Pipeline
from pipeline.settings import CompilationSettings
from tests.compose.toys import Finer, Left, Right, Walk, chains, left_to_right, plain, right_to_left, said, start


@st.composite
def split(draw: st.DrawFn) -> tuple[Pipeline, Pipeline, Pipeline]:
    """One chain in three parts, each with settings of its own."""
    whole = draw(chains())
    first, second = sorted(draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
    parts = whole.stages[:first], whole.stages[first:second], whole.stages[second:]
    return tuple(attrs.evolve(draw(chains()), stages=part) for part in parts)  # the settings are of random chains


@given(split())
def test_or_is_associative(parts: tuple[Pipeline, Pipeline, Pipeline]) -> None:
    a, b, c = parts
    assert (a | b) | c == a | (b | c)
    assert ((a | b) | c).settings == (a | (b | c)).settings
    assert repr((a | b) | c) == repr(a | (b | c))


@given(chains())
def test_the_empty_pipeline_is_the_identity(pipeline: Pipeline) -> None:
    assert Pipeline() | pipeline == pipeline == pipeline | Pipeline()
    assert Pipeline()(Left()) == Left()


@given(chains())
def test_a_pipeline_runs_its_stages_in_order(pipeline: Pipeline) -> None:
    assert said(pipeline(start(pipeline))) == pipeline.names


@given(chains())
def test_joining_the_stages_one_by_one_makes_the_same_pipeline(pipeline: Pipeline) -> None:
    joined = Pipeline(settings=pipeline._settings)
    for step in pipeline:
        joined = joined | step
    assert joined == pipeline
    assert hash(joined) == hash(pipeline)


@given(split())
def test_running_a_join_is_running_one_after_the_other(parts: tuple[Pipeline, Pipeline, Pipeline]) -> None:
    a, b, c = parts
    whole = a | b | c
    assert whole(start(whole)) == c(b(a(start(whole))))


@given(split())
def test_the_leftmost_settings_win(parts: tuple[Pipeline, Pipeline, Pipeline]) -> None:
    given_settings = [part.settings for part in parts if part._settings is not None]
    a, b, c = parts
    assert (a | b | c).settings == (given_settings or [CompilationSettings()])[0]


@given(chains(1), st.data())
def test_replace_keeps_the_place_and_its_name(pipeline: Pipeline, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(pipeline.names))
    at, old = pipeline.names.index(name), pipeline[name]
    changed = pipeline.replace(name, Walk("other", old.takes, old.gives))
    assert changed.names == pipeline.names
    assert said(changed(start(pipeline))) == (*pipeline.names[:at], "other", *pipeline.names[at + 1 :])
    assert changed.replace(name, old) == pipeline
    assert pipeline.replace(name, old) == pipeline
    again = Walk("again", old.takes, old.gives)
    assert changed.replace(name, again) == pipeline.replace(name, again)


@given(chains(1), st.data())
def test_what_is_inserted_can_be_taken_out(pipeline: Pipeline, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(pipeline.names))
    at, old = pipeline.names.index(name), pipeline[name]
    before = pipeline.insert(Walk("new", old.takes, old.takes), before=name)
    after = pipeline.insert(Walk("new", old.gives, old.gives), after=name)
    assert before.names == (*pipeline.names[:at], "new", *pipeline.names[at:])
    assert after.names == (*pipeline.names[: at + 1], "new", *pipeline.names[at + 1 :])
    assert before.without("new") == pipeline == after.without("new")


@given(chains(1), st.data())
def test_until_is_inclusive_and_leaves_a_prefix(pipeline: Pipeline, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(pipeline.names))
    head = pipeline.until(name)
    assert head.names[-1] == name
    assert head.until(name) == head
    rest = Pipeline(pipeline.stages[len(head) :])
    assert head | rest == pipeline


@given(chains(1), st.data())
def test_a_pipeline_in_the_place_of_a_stage_is_one_stage(pipeline: Pipeline, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(pipeline.names))
    old = pipeline[name]
    both = Pipeline([Walk("x", old.takes, old.takes), Walk("y", old.takes, old.gives)])
    changed = pipeline.replace(name, both)
    assert changed.names == pipeline.names
    assert {"x", "y"} < {*said(changed(start(pipeline))), "z"}


@given(chains(1), st.data())
def test_no_operation_changes_the_pipeline(pipeline: Pipeline, data: st.DataObject) -> None:
    name, printed, fingerprint = data.draw(st.sampled_from(pipeline.names)), repr(pipeline), hash(pipeline)
    pipeline.until(name), pipeline.replace(name, pipeline[name]), pipeline.observed_by(print)
    pipeline | Walk("new", pipeline.gives, Left)
    pipeline(start(pipeline))
    assert (repr(pipeline), hash(pipeline)) == (printed, fingerprint)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        pipeline.stages = ()


@given(chains())
def test_repr_has_a_line_for_each_stage(pipeline: Pipeline) -> None:
    lines = repr(pipeline).splitlines()
    assert len(lines) == len(pipeline) + 1
    for line, step in zip(lines[1:], pipeline, strict=True):
        assert line == f"  {step.name}: {step.takes.__name__} -> {step.gives.__name__}"


@given(chains(), chains())
def test_a_join_fits_or_is_refused_by_name(a: Pipeline, b: Pipeline) -> None:
    b = Pipeline([attrs.evolve(step, name=f"t{step.name}") for step in b])
    if not len(a) or not len(b) or a.gives is b.takes:
        assert (a | b).names == a.names + b.names
        return
    with pytest.raises(TypeError) as error:
        a | b
    for part in (a.names[-1], b.names[0], a.gives.__name__, b.takes.__name__):
        assert part in str(error.value)


def test_a_subclass_fits_and_a_superclass_does_not() -> None:
    finer, coarse = Walk("finer", Right, Finer), Walk("coarse", Right, Left)
    only_finer = Walk("only_finer", Finer, Right)
    assert len(Pipeline() | finer | left_to_right) == 2
    with pytest.raises(TypeError, match="'coarse' returns Left, but the next stage, 'only_finer', takes Finer"):
        Pipeline() | coarse | only_finer


def test_unknown_and_double_names_are_answered_with_the_known_ones() -> None:
    whole = Pipeline([left_to_right, right_to_left])
    for operation in (whole.without, whole.until, whole.__getitem__, lambda n: whole.insert(plain, after=n)):
        with pytest.raises(KeyError, match="no stage is called 'build'; the stages are left_to_right, back"):
            operation("build")
    with pytest.raises(ValueError, match="have the name 'left_to_right'"):
        whole | left_to_right
    for places in ({}, {"before": "back", "after": "back"}):
        with pytest.raises(TypeError, match="either as before= or as after="):
            whole.insert(plain, **places)


def test_without_a_program_models_are_sent_away_before_they_are_captured() -> None:
    with pytest.raises(TypeError, match="starts with 'left_to_right', which takes Left"):
        Pipeline([left_to_right])(torch.nn.ReLU(), (torch.zeros(1),))
    with pytest.raises(TypeError, match="starts with nothing"):
        Pipeline()(torch.nn.ReLU(), (torch.zeros(1),))


@pytest.mark.parametrize(("field", "value"), [("settings", {}), ("observers", [3]), ("stages", [3])])
def test_the_parts_of_a_pipeline_are_checked(field: str, value: Any) -> None:
    with pytest.raises(TypeError):
        Pipeline(**{field: value})
