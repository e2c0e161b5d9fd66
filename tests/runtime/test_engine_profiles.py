"""Sessions by profile: the first that a call fits runs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline
from pipeline.network.description import Network, Profile, Tensor
from pipeline.runtime.cuda_worker import ProfiledSession

NETWORK = Network(
    "net",
    (Tensor("x", "float32", (-1, 8)), Tensor("n", "int64", ())),
    (),
    (),
    profile=Profile((("x", (1, 8), (1, 8), (1, 8)),)),
    other_profiles=(Profile((("x", (2, 8), (4, 8), (9, 8)),)),),
)


def test_a_call_runs_in_the_first_profile_that_it_fits() -> None:
    made: list[int] = []
    runs: list[tuple[int, object]] = []

    def make(stream: Any, place: int) -> Any:
        made.append(place)
        return lambda inputs, stream, shapes_key=None, **options: runs.append((place, shapes_key)) or []

    session, stream = ProfiledSession(NETWORK, make), object()
    first, second = object(), object()
    for rows, like in ((1, first), (5, second), (5, second), (1, first), (9, None), (2, None)):
        session([torch.zeros(rows, 8), 3], stream, shapes_key=like)  # type: ignore[arg-type]
    assert runs == [(0, first), (1, second), (1, second), (0, first), (1, None), (1, None)]
    assert made == [0, 1], "a context for each profile, when it is first needed"
    with pytest.raises(pipeline.ExecutionError, match=r"no optimization profile for the input shapes x \[10, 8\]"):
        session([torch.zeros(10, 8), 3], stream)  # type: ignore[arg-type]


def test_the_session_of_the_last_run_is_told() -> None:
    class Ran:
        context, loaded = "context", "engine"

        def __call__(self, *given: Any, **options: Any) -> list[Any]:
            return []

    made: Any = lambda stream, place: Ran()  # noqa: E731
    session: Any = ProfiledSession(NETWORK, made)
    with pytest.raises(pipeline.ExecutionError, match="has not run yet"):
        session.last_session  # noqa: B018
    session([torch.zeros(1, 8), 3], object())
    assert (session.context, session.loaded) == ("context", "engine")
