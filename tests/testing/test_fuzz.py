"""Random programs, compiled for random settings, equal eager PyTorch: 75 of them here, thousands in the deep profile.

A failure prints the program as a script to paste. ``python -m benchmarks.fuzz 0:200`` runs programs by their seeds, and
``tests.fuzz.shrunk`` makes a failing one small.
"""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from attrs import define, field
from hypothesis import HealthCheck, Phase, given

from pipeline.compiled import Compiled
from pipeline.errors import CaptureError
from tests.fuzz import Snippet, program, programs

SHAPES_READ = Path(__file__).parent / "shapes_read"
"""Random programs, as they were printed when they failed."""
BUILD_EVERY = 10
"""One program in so many has its engines built."""


@define
class Seen:
    """What was run: compiled programs, and those that torch.export does not take."""

    compiled: list[Compiled] = field(factory=list)
    refused: list[str] = field(factory=list)

    def run(self, snippet: Snippet) -> None:
        """Run a program; that of every tenth is built."""
        built = (len(self.compiled) + 1) % BUILD_EVERY == 0
        try:
            self.compiled.append((snippet.with_options(build="True") if built else snippet).run())
        except CaptureError as error:
            self.refused.append(str(error))

    @property
    def operators(self) -> list[int]:
        """The number of operators of each program."""
        return [compiled.coverage.total for compiled in self.compiled]


@pytest.mark.parametrize("chunk", range(3))
def test_random_programs_equal_eager(chunk: int) -> None:
    seen = Seen()
    profile = hypothesis.settings()
    quick = hypothesis.settings(
        profile, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
    )

    @quick
    @given(programs())
    def run(snippet: Snippet) -> None:
        seen.run(snippet)

    (hypothesis.seed(chunk)(run) if profile.derandomize else run)()
    assert len(seen.refused) <= 2 + len(seen.compiled) / 10, seen.refused
    assert max(seen.operators) >= 5
    assert any(compiled.coverage.fallback for compiled in seen.compiled)


def test_a_program_prints_as_it_runs() -> None:
    first, again = program(17), program(17)
    assert str(first) == str(again)
    assert str(first) != str(program(18))
    space: dict[str, object] = {"__name__": "pasted"}
    exec(str(first), space)
    assert isinstance(space["checked"], Compiled)


@pytest.mark.parametrize("script", sorted(SHAPES_READ.glob("*.txt")), ids=lambda path: path.stem)
def test_programs_in_which_only_a_shape_is_read(script: Path) -> None:
    """Their engines were given a tensor for its shape, which the network did not read (found on an H200); of 210 one
    without elements, which is given still. In written_over, a write left nothing of the tensor."""
    exec(script.read_text(encoding="utf-8"), {"__name__": script.stem})
