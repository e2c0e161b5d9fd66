"""What is for every day: of a parameter that is tested in turn, one value each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import everyday


def items(path: str, **values: tuple[Any, ...]) -> list[Any]:
    """As pytest has them: the tests of all combinations of two parameters' values."""
    (first, ones), (second, others) = values.items()
    return [
        SimpleNamespace(nodeid=f"{path}[{one}-{other}]", callspec=SimpleNamespace(params={first: one, second: other}))
        for one in ones
        for other in others
    ]


def test_each_value_has_one_of_the_others_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "IN_TURN", {"tests/some.py": "dtype"})
    tests = items("tests/some.py::test_a", name=("a", "b", "c", "d"), dtype=("x", "y", "z"))
    slow = {test.nodeid for test in everyday.not_their_turn(tests)}
    assert [test.nodeid[-4:-1] for test in tests if test.nodeid not in slow] == ["a-x", "b-y", "c-z", "d-y"]


def test_turns_shift_beside_as_many_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "IN_TURN", {"tests/some.py": "dtype"})
    names, sizes, dtypes = ("a", "b", "c"), (1, 2, 3), ("x", "y", "z")
    tests = [
        SimpleNamespace(
            nodeid=f"tests/some.py::test_a[{name}-{size}-{dtype}]",
            callspec=SimpleNamespace(params={"name": name, "size": size, "dtype": dtype}),
        )
        for name in names
        for size in sizes
        for dtype in dtypes
    ]
    slow = {test.nodeid for test in everyday.not_their_turn(tests)}
    kept = [test.callspec.params for test in tests if test.nodeid not in slow]
    assert {(each["size"], each["dtype"]) for each in kept} == {(s, d) for s in sizes for d in dtypes}


def test_other_tests_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "IN_TURN", {"tests/some.py": "dtype"})
    tests = [
        *items("tests/other.py::test_a", name=("a", "b"), dtype=("x", "y")),
        *items("tests/some.py::test_b", name=("a", "b"), size=(1, 2)),
        SimpleNamespace(nodeid="tests/some.py::test_c"),
    ]
    assert not list(everyday.not_their_turn(tests))


def test_a_few_values_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday, "ONE", ("tests/models.py",))
    tests = [
        SimpleNamespace(nodeid=f"tests/{file}.py::test{value}")
        for file in ("some", "models", "gpu/some")
        for value in ("", *(f"_values[{number}]" for number in range(5)))
    ]
    slow = {test.nodeid for test in everyday.beyond_a_few(tests)}
    kept = [
        test.nodeid.removeprefix("tests/") for test in tests if test.nodeid not in slow and "gpu" not in test.nodeid
    ]
    assert kept == [
        "some.py::test",
        *(f"some.py::test_values[{n}]" for n in (0, 2)),
        "models.py::test",
        "models.py::test_values[0]",
    ]
    assert not any("gpu" in each for each in slow)


def test_what_is_named_exists() -> None:
    for path in (*everyday.IN_TURN, *everyday.SAMPLED, *everyday.LEFT_OUT, *everyday.WHOLE, *everyday.ONE):
        file, _, test = path.partition("::")
        found = list(everyday.TESTS.parent.glob(f"{file}*"))
        assert found, path
        assert not test or any(f"def {test.partition('[')[0]}" in each.read_text("utf-8") for each in found), path
