"""The property test catches every planted fault, for the right reason, and passes the same converters without it."""

from __future__ import annotations

import re

import hypothesis
import pytest

from pipeline.testing import CheckError, check_converter
from tests.meta.faults import FAULTS, Fault

FIND = hypothesis.settings(
    max_examples=2 * hypothesis.settings.get_profile("ci").max_examples,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
)
"""As many calls as an operator of the registry is tested with, in both forms together; without shrinking."""

PASS = hypothesis.settings(FIND, max_examples=10)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault: Fault) -> None:
    with pytest.raises(CheckError, match=fault.message or None) as caught:
        check_converter(fault.plant(True), strategy=fault.strategy, dynamic=fault.dynamic, profile=FIND, build_every=0)
    assert re.fullmatch(fault.kind, caught.value.kind)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_same_converter_without_the_fault_passes(fault: Fault) -> None:
    check_converter(fault.plant(False), strategy=fault.strategy, dynamic=fault.dynamic, profile=PASS, build_every=0)
