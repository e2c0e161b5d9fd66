"""``benchmarks.replay``: the same twice over, and a difference named."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import replay


def recorded(folder: Path) -> Path:
    """One random program and its networks, and no more."""
    options = {"no_examples": True, "zoo": "none", "programs": "4:5", "calls": 0, "build_every": 1}
    assert replay.record(Namespace(folder=folder, **options)) == 0
    return folder


def test_recording_twice_gives_the_same_and_a_difference_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = recorded(tmp_path / "one"), recorded(tmp_path / "other")
    assert replay.compare(Namespace(one=one, other=other)) == 0
    text = (other / "program-4.txt").read_text(encoding="utf-8")
    assert "# network" in text and "# engine engine_" in text and "its kernels:" in text
    head, found, rest = text.partition("# network\n")
    changed = head + found + rest.replace("input ", "input other", 1)
    (other / "program-4.txt").write_text(changed, encoding="utf-8")
    (one / "program-5.txt").write_text("", encoding="utf-8")
    capsys.readouterr()
    assert replay.compare(Namespace(one=one, other=other)) == 1
    said = capsys.readouterr().out
    assert "program-4: # network\n" in said and "+ input other" in said
    assert f"program-5: only in {one}" in said and "2 of 2 differ" in said


def test_programs_of_one_name_are_a_file_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoo has some models twice, in two ways of calling them."""
    own = replay.programs
    monkeypatch.setattr(replay, "programs", lambda first, last: [*own(first, last), *own(first, last)])
    assert {path.name for path in recorded(tmp_path).iterdir()} == {"program-4.txt", "program-4-2.txt"}


def test_nothing_to_compare_is_no_success(tmp_path: Path) -> None:
    assert replay.compare(Namespace(one=tmp_path, other=tmp_path)) == 1


def test_calls_are_drawn_alike(tmp_path: Path) -> None:
    first, second = ([item.name for item in replay.calls(1)] for _ in range(2))
    assert first == second and len(first) > 300
