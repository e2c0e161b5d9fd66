"""Each public architecture compiles into one engine without fallback, and agrees with eager at several sizes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from examples.models import SMALL, small

SIZES = [{"batch": 1}, {"batch": 3, "sequence": 9, "target": 5}, {"batch": 8, "sequence": 32, "target": 32}]


@pytest.mark.parametrize("name", sorted(SMALL))
def test_one_engine_without_fallback(name: str) -> None:
    case = small(name)
    compile = pipeline.default(require_full_compilation=True)
    compiled = compile(case.model, args=(), kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    assert len(compiled.engines) == 1
    module = compiled.module(executor="reference")
    for sizes in SIZES:
        kwargs = case.inputs(**sizes)
        with torch.no_grad():
            expected = case.model(**kwargs)
        actual = module(**kwargs)
        assert type(actual) is type(expected)
        for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
            torch.testing.assert_close(a, e, rtol=2e-4, atol=2e-4)
