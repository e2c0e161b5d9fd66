"""Random programs find every fault that is planted in the compiler, for the right reason, and pass without it."""

from __future__ import annotations

import re

import pytest

from pipeline.errors import CaptureError
from tests.fuzz import ModelError, Snippet, program
from tests.meta.program_faults import PROGRAM_FAULTS, ProgramFault

MOST = 75
"""Programs that may be run until a fault shows; the suite runs as many."""


def first_failure(fault: ProgramFault) -> tuple[Snippet, ModelError]:
    with fault.planted():
        for seed in range(fault.first, MOST):
            try:
                program(seed).run()
            except CaptureError:
                continue
            except ModelError as error:
                return program(seed), error
    raise AssertionError(f"{MOST} programs pass with the fault")


@pytest.mark.parametrize("fault", PROGRAM_FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: ProgramFault) -> None:
    snippet, error = first_failure(fault)
    assert re.fullmatch(fault.kind, error.kind), error
    snippet.run()
