"""Each class of faults is caught in several families, by the strategies and the number of calls of the suite."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.recipes import qualified_name
from pipeline.testing import CheckError, check_converter
from tests.meta.mutants import BAKED, MUTANTS, Mutant
from tests.meta.test_faults import FIND

CLASSES = 8
FAMILIES = 3


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.fault}-{qualified_name(m.target)}")
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    dynamic = True if mutant.fault == BAKED else None
    with pytest.raises(CheckError) as caught:
        check_converter(mutant.converter(), profile=FIND, build_every=0, dynamic=dynamic)
    assert re.fullmatch(mutant.kind, caught.value.kind)


def test_every_class_of_faults_is_in_three_families() -> None:
    families: dict[str, set[str]] = defaultdict(set)
    for mutant in MUTANTS:
        support, *_ = DYNAMO_CONVERTERS.get_all_converters_with_target(mutant.target)
        families[mutant.fault].add(support.name.split(".")[-2])
    assert len(families) == CLASSES
    assert {fault: found for fault, found in families.items() if len(found) < FAMILIES} == {}
