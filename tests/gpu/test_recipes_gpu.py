"""Recipes of weights on a GPU are evaluated there."""

from __future__ import annotations

import pytest
import torch

from tests.test_recipes import PRODUCT

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_on_a_gpu_products_are_made_there(dtype: torch.dtype) -> None:
    shapes = {"a": (512, 1024), "b": (1024, 1024), "c": (1024,)}
    given = {name: torch.randn(*shape, device="cuda").to(dtype) for name, shape in shapes.items()}
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    found = PRODUCT.evaluate(given)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > before
    assert found.device == torch.device("cpu")
    torch.testing.assert_close(found, torch.nn.functional.linear(*given.values()).cpu())
