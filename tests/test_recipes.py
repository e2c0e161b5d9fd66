"""Recipes are evaluated where the parameters are, and halves are rounded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.recipes import Recipe, Ref, Step

PRODUCT = Recipe("weight", Ref("product"), (Step("product", "aten.linear.default", (Ref("a"), Ref("b"), Ref("c"))),))
COUNTED = Recipe(
    "weight",
    Ref("sum"),
    (
        Step("range", "aten.arange.default", (4,), (("device", "cpu"), ("dtype", torch.float32))),
        Step("moved", "aten.to.device", (Ref("a"), "cpu", torch.float32)),
        Step("product", "aten.mm.default", (Ref("moved"), Ref("b"))),
        Step("sum", "aten.add.Tensor", (Ref("product"), Ref("range"))),
    ),
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_products_are_rounded_once(dtype: torch.dtype) -> None:
    given = {name: torch.randn(*shape).to(dtype) for name, shape in {"a": (9, 300), "b": (5, 300), "c": (5,)}.items()}
    found = PRODUCT.evaluate(given)
    wide = {name: value.float() for name, value in given.items()}
    exact = torch.nn.functional.linear(wide["a"], wide["b"], wide["c"])
    assert found.dtype == dtype
    assert torch.equal(found, exact.to(dtype))


def test_eager_in_halves_is_no_nearer_to_float64() -> None:
    given = {name: torch.randn(*shape).half() for name, shape in {"a": (64, 512), "b": (64, 512), "c": (64,)}.items()}
    best = torch.nn.functional.linear(*(value.double() for value in given.values()))
    eager = torch.nn.functional.linear(*given.values())
    assert (PRODUCT.evaluate(given) - best).abs().max() <= (eager - best).abs().max()


class Where(TorchDispatchMode):
    """Writes down on which devices operators give something."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.devices.append(made.device.type)
        return made


def test_a_recipe_is_evaluated_where_the_parameters_are() -> None:
    with FakeTensorMode(), Where() as where:
        given = {"a": torch.empty(3, 5, device="cuda"), "b": torch.empty(5, 4, device="cuda")}
        found = COUNTED.evaluate(given)
    assert set(where.devices[:-1]) == {"cuda"}
    assert (found.device.type, found.shape) == ("cpu", (3, 4))


def test_parameters_in_several_places_meet_on_the_cpu() -> None:
    given = {"a": torch.randn(3, 5), "b": torch.randn(5, 4)}
    torch.testing.assert_close(COUNTED.evaluate(given), given["a"] @ given["b"] + torch.arange(4.0))
