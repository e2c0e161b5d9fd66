"""Sizes that an engine computes from those of its inputs."""

from __future__ import annotations

import pytest
import torch

from pipeline.testing import Call, Size, TensorSpec, check


@pytest.mark.parametrize(("scale", "offset"), [(2, 0), (1, 3), (3, 1)])
def test_a_size_that_is_seen_only_inside_another(scale: int, offset: int) -> None:
    """A variance divides by the number of elements less one, and no input has the size ``n`` itself."""
    x = TensorSpec((Size("n", scale, offset), 4))
    assert check(Call(torch.ops.aten.var.dim, (x, [0]), sizes={"n": (2, 3, 9)}), dynamic=True, build=True)
