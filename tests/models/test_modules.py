"""The zoo: each small model becomes one engine that agrees with eager at several sizes, or says why it does not."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from pipeline.compiled import Compiled
from pipeline.program import Built
from pipeline.stages import refit_map
from tests.zoo import edges, images, indices, numbers, recurrent
from tests.zoo.before import BEFORE, older_than
from tests.zoo.in_torch import IN_TORCH
from tests.zoo.rows import Row

ROWS = [row for family in (recurrent, images, indices, numbers, edges) for row in family.ROWS]


def dynamic_shapes(row: Row, model: torch.nn.Module) -> dict[str, Any] | None:
    """torch.export's, by the names of the model's arguments."""
    if not row.names:
        return None
    rest, found = list(row.dynamic_shapes), {}
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind == parameter.VAR_POSITIONAL and rest:
            found[parameter.name], rest = tuple(rest), []
        elif rest:
            found[parameter.name] = rest.pop(0)
    return found


def compiled(row: Row, model: torch.nn.Module) -> Compiled:
    """Converted, but not built: that takes longer than all the rest."""
    compile = pipeline.default(min_block_size=1).until("convert")
    args = row.tensors(row.sizes_to_try[0])
    made = compile(model, args=args, dynamic_shapes=dynamic_shapes(row, model))
    return refit_map(Built(made.partitioned, made.networks, (), made.recipes, made.literals, made.computed))


def same(got: Any, want: Any) -> None:
    """Like float32 on two different orders of summation."""
    for a, b in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_names_are_rows() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert set(IN_TORCH) <= set(names)
    assert set(BEFORE) <= set(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_module(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    if row.name in BEFORE and older_than(2, 13):
        pytest.skip(BEFORE[row.name])
    torch.manual_seed(0)
    model = row.model()
    result = compiled(row, model)
    verdicts = result.partitioned.verdicts
    refused = {f.target: f.reason for f in result.coverage.fallback if not verdicts[f.node].supported}
    expected = IN_TORCH.get(row.name, {})
    assert refused.keys() == expected.keys(), refused
    assert all(part in refused[target] for target, part in expected.items()), refused
    assert refused or len(result.networks) == 1
    module = result.module("reference")
    for sizes in row.sizes_to_try:
        torch.manual_seed(1)
        want = model(*row.tensors(sizes))
        torch.manual_seed(1)
        same(module(*row.tensors(sizes)), want)
