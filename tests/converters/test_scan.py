"""Running products and extrema take dims of any length: what comes first is seen by the last element."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.testing import Call, Checked, TensorSpec, check

aten = torch.ops.aten

LENGTH = (1 << 16) + 2
"""Where the 17th doubling is needed, and where there was a limit once."""

FIRST = {aten.cumprod.default: 2, aten.cummax.default: 2, aten.cummin.default: -1}
"""What the first element is, and all others give place to."""


@pytest.mark.parametrize("target", FIRST, ids=lambda target: target.name())
@pytest.mark.parametrize("length", [LENGTH, "n"])
def test_a_long_dim(target: Any, length: int | str) -> None:
    values = ("given", (FIRST[target], *[1] * (LENGTH - 1)))
    spec = TensorSpec((length,), torch.int32, values)
    sizes = {"n": (LENGTH, LENGTH, LENGTH)} if length == "n" else {}
    assert isinstance(check(Call(target, (spec, 0), sizes=sizes), build=target is aten.cumprod.default), Checked)


@pytest.mark.parametrize(("longest", "layers"), [(8, 3), (9, 4), (1 << 20, 20)])
def test_layers_are_made_for_the_longest_that_a_dim_may_be(longest: int, layers: int) -> None:
    result = check(Call(aten.cumprod.default, (TensorSpec(("n",)), 0), sizes={"n": (1, 4, longest)}))
    assert isinstance(result, Checked)
    assert str(result.networks[0]).count("op=PROD") == layers
