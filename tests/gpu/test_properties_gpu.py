"""Every converter of the registry keeps its promises on a GPU: as tests/converters/test_properties.py, with engines.

Each call that is drawn is built and run by the reference and by TensorRT; a failure says which, and for which call.
"""

from __future__ import annotations

import os
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from pipeline.recipes import qualified_name
from pipeline.testing import check_target
from pipeline.testing.strategies import strategy_for
from tests.converters.test_properties import OPERATORS, takes_dynamic

pytestmark = pytest.mark.gpu

EXAMPLES = int(os.environ.get("PIPELINE_GPU_EXAMPLES", "6"))
"""Calls for each operator and form; a call takes about half a second, so failures are not shrunk either."""

TESTED = [target for target in OPERATORS if strategy_for(target) is not None]


def check_on_gpu(target: Any, dynamic: bool) -> None:
    phases = (Phase.explicit, Phase.generate)
    profile = hypothesis.settings(hypothesis.settings(), max_examples=EXAMPLES, phases=phases)
    check_target(target, dynamic=dynamic, build_every=1, profile=profile)


@pytest.mark.parametrize("target", TESTED, ids=qualified_name)
def test_static(target: Any) -> None:
    check_on_gpu(target, dynamic=False)


@pytest.mark.parametrize("target", [target for target in TESTED if takes_dynamic(target)], ids=qualified_name)
def test_dynamic(target: Any) -> None:
    check_on_gpu(target, dynamic=True)
