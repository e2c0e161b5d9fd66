"""Printed networks are as they were: ``PIPELINE_GOLDEN=write pytest tests/golden/test_golden.py`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pipeline
from tests.golden.cases import Golden, cases

FOLDER = Path(__file__).parent


def printed(case: Golden) -> str:
    """The networks of a case, as text."""
    compile = pipeline.default(require_full_compilation=True).until("convert")
    converted = compile(case.model.eval(), args=case.args, dynamic_shapes=case.dynamic_shapes)
    return "\n".join(map(str, converted.networks))


@pytest.mark.parametrize("name", sorted(cases()))
def test_networks_print_as_they_did(name: str) -> None:
    path, text = FOLDER / f"{name}.txt", printed(cases()[name])
    if os.environ.get("PIPELINE_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(cases())
