"""What stands in for torch's own while we trace: each row is needed, and other threads trace with torch's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch.export import export

import pipeline
from pipeline.export_fixes import patch_contexts
from pipeline.export_fixes.patching import VERSION, Patches, Replacement, replacements_as_text
from pipeline.export_fixes.torch_patches import TABLE
from tests.export_fixes.flaws import FLAWS, ROW, ROWS, Calls, Recurrent, repeated

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
OLDEST = tuple(map(int, re.findall(r"torch>=(\d+)\.(\d+)", PROJECT)[0]))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.target_name}")
def test_torch_needs_each_row(row: Replacement, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, torch has learned it: give the row the version, as `before`."""
    if row.during == "gpu" and torch.cuda.is_available():
        pytest.skip("a GPU answers for itself")
    is_flawed = FLAWS[row.target_name]
    assert not is_flawed()
    monkeypatch.setattr(patch_contexts, "_patches", Patches([other for other in TABLE if other is not row]))
    assert is_flawed() == row.is_needed


def expired(table: Sequence[Replacement], installed: tuple[int, ...], oldest: tuple[int, ...]) -> list[object]:
    """The rows that someone has to look at again, and those that no supported torch needs."""
    return [
        row.target_name for row in table if row.until <= installed or (row.before is not None and row.before <= oldest)
    ]


def test_no_row_has_expired() -> None:
    """Where this fails, look at what the row mends with this torch: delete it, or give it a later `until`."""
    assert not expired(TABLE, VERSION, OLDEST)
    row = Replacement({}, "f", lambda own: own(), "why", before=(2, 12), until=(2, 14))
    assert expired([row], (2, 14), (2, 11)) == expired([row], (2, 13), (2, 12)) == ["f"]
    assert not expired([row], (2, 13), (2, 11))


def test_each_row_says_what_it_mends_and_has_a_test() -> None:
    assert all(row.why for row in TABLE)
    assert {row.target_name for row in TABLE} == FLAWS.keys()
    lines = replacements_as_text(TABLE).splitlines()
    assert len(lines) == len(TABLE) + 1
    assert "aten.slice.Tensor" in next(line for line in lines if "x[: n // 2]" in line and "before 2.13" in line)


def in_another_thread(function: Callable[[], Any]) -> Any:
    """What a function gives there."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def plain() -> str:
    """An export that is not ours."""
    with torch.no_grad():
        assert not torch.fx.experimental._config.backed_size_oblivious
        program = export(Calls(lambda x: x.repeat(torch.tensor(x.shape[0]).item(), 1)), (ROW,), dynamic_shapes=(ROWS,))
        whole = export(Recurrent("lstm").eval(), (ROW,))
    return f"{program.graph}{whole.graph}"


def test_exports_of_other_threads_are_torchs_own() -> None:
    own = plain()
    with patch_contexts.patch_for_export():
        assert in_another_thread(plain) == own
        assert not any(row.read_entry() is None for row in TABLE if row.during == "export" and row.is_needed)
    assert plain() == own


def test_what_was_traced_leaves_nothing_behind() -> None:
    own = plain()
    pipeline.capture(Calls(repeated), (ROW,), dynamic_shapes=(ROWS,))
    pipeline.capture(Recurrent("lstm").eval(), (ROW,), dynamic_shapes=(ROWS,))
    assert plain() == own


def test_torch_has_its_own_back() -> None:
    rows = [row for row in TABLE if row.is_needed and row.during not in ("gpu", "example", "called", "comparing")]
    own = [row.read_entry() for row in rows]
    with pytest.raises(KeyError), patch_contexts.patch_for_export():
        inside = [row.read_entry() for row in rows]
        assert not {id(kernel) for kernel in inside} & {id(kernel) for kernel in own}
        with patch_contexts.patch_for_trace():
            assert [row.read_entry() for row in rows] == inside
        raise KeyError
    assert [row.read_entry() for row in rows] == own
    with patch_contexts.patch_for_export():
        assert [row.read_entry() for row in rows] == inside


def test_places_are_torchs_when_the_last_thread_has_done() -> None:
    row = next(row for row in TABLE if row.name == "dispatch")
    own = row.read_entry()

    def inside() -> Any:
        with patch_contexts.patch_for_trace():
            return row.read_entry()

    with patch_contexts.patch_for_trace():
        ours = row.read_entry()
        assert in_another_thread(inside) is ours
        assert row.read_entry() is ours
    assert row.read_entry() is own


def test_only_the_torch_that_needs_it_gets_a_replacement() -> None:
    row = Replacement({"f": len}, "f", lambda own: own(), "why", before=VERSION)
    assert not row.is_needed
    assert Replacement({"f": len}, "f", lambda own: own(), "why", before=(VERSION[0], VERSION[1] + 1)).is_needed
    assert not Replacement({}, "f", lambda own: own(), "why").is_needed
