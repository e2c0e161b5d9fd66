"""Windows of pooling that are larger than what they look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.testing import Call, TensorSpec, check

aten = torch.ops.aten


@pytest.mark.parametrize("padding", [[0, 0], [1, 0]], ids=["plain", "padded"])
@pytest.mark.parametrize("size", [(7, 7), (5, 1)], ids=str)
@pytest.mark.parametrize("kernel", [9, 1280])
@pytest.mark.parametrize(
    ("target", "more"),
    [(aten.avg_pool2d.default, (True, True)), (aten.avg_pool2d.default, (True, False)), (aten.max_pool2d.default, ())],
    ids=["average", "average of what is there", "maximum"],
)
def test_windows_larger_than_the_input(
    target: Any, more: tuple[Any, ...], kernel: int, size: tuple[int, int], padding: list[int]
) -> None:
    x = TensorSpec(("n", 3, *size), torch.float32)
    rest = more or ([1, 1], True)
    check(Call(target, (x, [kernel, kernel], [], padding, *rest), sizes={"n": (1, 2, 4)}))
