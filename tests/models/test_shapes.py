"""Transformers with dynamic batch and length, or image size: one engine each, right at every size tried."""

from __future__ import annotations

import pytest
import torch

from tests.models.shaped_models import NAMES, agrees, case, inputs, one_engine


@pytest.mark.parametrize("name", NAMES)
def test_one_engine_is_right_at_every_size(name: str) -> None:
    made = case(name)
    module = one_engine(made).module(executor="reference")
    for kwargs in inputs(made):
        with torch.no_grad():
            expected = made.model(**kwargs)
        actual = module(**kwargs)
        assert type(actual) is type(expected)
        agrees(actual, expected, 2e-4)
