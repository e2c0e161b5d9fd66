"""Random TorchScript programs compute what TorchScript computes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from pipeline.stages import unbuilt
from tests.export_fixes.random_scripts import inputs, script, source

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

COMPILE = pipeline.default(require_full_compilation=True).replace("build", unbuilt)


def check(seed: int) -> None:
    program = script(seed)
    eager = program(*(x.clone() for x in inputs(seed)))
    ours = COMPILE(program, inputs(seed)).module(executor="reference")(*inputs(seed))
    for a, b in zip(tree_leaves(ours), tree_leaves(eager), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"{m}\n{source(seed)}")


@pytest.mark.parametrize("seed", range(10))
def test_a_random_script_is_what_torch_computes(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 60))
def test_more_random_scripts_are_what_torch_computes(seed: int) -> None:
    check(seed)


def test_programs_are_the_same_in_every_process_and_use_all_of_the_language() -> None:
    texts = [source(seed) for seed in range(40)]
    assert texts == [source(seed) for seed in range(40)]
    whole = "\n".join(texts)
    for part in (
        "if ",
        "elif",
        "else:",
        "for ",
        "while",
        "break",
        "continue",
        "append",
        "pop()",
        "named[",
        "t[",
        "add_",
    ):
        assert part in whole
