"""Toy records and stages, and random chains of them, for the tests of composition."""

from __future__ import annotations

from itertools import pairwise

import attrs
from hypothesis import strategies as st

from pipeline.compose.pipelines import Pipeline, stage
from pipeline.settings import CompilationSettings


@attrs.frozen
class Left:
    """A toy record: the names of the stages it went through."""

    trail: tuple[str, ...] = ()


@attrs.frozen
class Right:
    """Another, that no stage of the first takes."""

    trail: tuple[str, ...] = ()


@attrs.frozen
class Finer(Left):
    """A record that may go wherever a Left may."""


@attrs.frozen
class Walk:
    """A stage from one toy record to another."""

    name: str
    takes: type
    gives: type

    def __call__(self, record: Left | Right) -> Left | Right:
        assert isinstance(record, self.takes)
        return self.gives((*record.trail, self.name))


@stage
def left_to_right(record: Left) -> Right:
    """Turns a Left into a Right."""
    return Right((*record.trail, "left_to_right"))


@stage(name="back")
def right_to_left(record: Right) -> Left:
    """Turns a Right into a Left."""
    return Left((*record.trail, "back"))


def plain(record: Right) -> Right:
    """A function that was not made a stage."""
    return Right((*record.trail, "plain"))


@attrs.frozen
class TurnRound:
    """A stage with an option, as users write them."""

    times: int = 1

    def __call__(self, record: Right) -> Right:
        """The trail, reversed."""
        return Right(record.trail[:: (-1) ** self.times])


@st.composite
def chains(draw: st.DrawFn, least: int = 0, prefix: str = "s") -> Pipeline:
    """Pipelines of stages that fit together, with or without settings."""
    kinds = draw(st.lists(st.sampled_from([Left, Right]), min_size=least + 1, max_size=6))
    stages = [Walk(f"{prefix}{i}", *pair) for i, pair in enumerate(pairwise(kinds))]
    return Pipeline(stages, settings=draw(st.none() | st.builds(CompilationSettings, min_block_size=st.integers(1, 3))))


def start(pipeline: Pipeline) -> Left | Right:
    return pipeline.takes() if len(pipeline) else Left()


def said(record: Left | Right) -> tuple[str, ...]:
    return record.trail
