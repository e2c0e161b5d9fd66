"""A compiled program keeps the program's semantics: mutation, aliasing, pytrees, Python values, ranges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline

BATCH = Dim("batch", min=1, max=8)


def compiled(model: nn.Module, args: tuple[Any, ...], **options: Any) -> nn.Module:
    """The module on the reference executor."""
    call = {k: options.pop(k) for k in ("kwargs", "dynamic_shapes") if k in options}
    return pipeline.default(**options)(model.eval(), args=args, **call).module(executor="reference")


class Counter(nn.Module):
    """A buffer that counts, and is part of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3] -> [3]"""
        self.count.add_(x)
        return self.count * 2


@pytest.mark.parametrize("options", [{}, {"torch_executed_ops": {"aten.add.Tensor"}, "min_block_size": 1}])
def test_buffers_are_written_back_across_calls(options: dict[str, Any]) -> None:
    model, x = Counter(), torch.arange(3.0)
    module = compiled(model, (x,), **options)
    assert torch.equal(model.count, torch.zeros(3))
    for _ in range(3):
        torch.testing.assert_close(module(x), model(x))
    fresh = compiled(Counter(), (x,), **options)
    torch.testing.assert_close(fresh(x), 2 * x)


def test_two_modules_of_one_compilation_do_not_share_buffers() -> None:
    x = torch.arange(3.0)
    result = pipeline.default()(Counter().eval(), args=(x,))
    first, second = result.module(executor="reference"), result.module(executor="reference")
    first(x)
    torch.testing.assert_close(second(x), 2 * x)


class MutatesInput(nn.Module):
    """Writes to its input, through a view as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 3] -> [2, 3]"""
        y = x + 1
        x.mul_(2)
        x[0].add_(1)
        return y + x


def test_inputs_are_mutated_as_in_eager() -> None:
    module = compiled(MutatesInput(), (torch.ones(2, 3),))
    ours, theirs = torch.randn(2, 3), torch.empty(2, 3)
    theirs.copy_(ours)
    torch.testing.assert_close(module(ours), MutatesInput()(theirs))
    torch.testing.assert_close(ours, theirs)


class Odd(nn.Module):
    """Outputs that are inputs, constants, Python values, None, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, x: torch.Tensor, flag: bool, *, extra: dict[str, torch.Tensor]) -> dict[str, Any]:
        """[N, 3], {"a": [N, 3]} -> a dict of everything"""
        y = x * 2 + extra["a"]
        return {
            "y": y,
            "again": (y, [x, None]),
            "n": x.shape[0] * 2,
            "w": self.weight,
            "k": 3,
            "f": flag,
            "v": self.weight * 2,
        }


def test_every_kind_of_output_comes_back_as_eager_gives_it() -> None:
    model = Odd()
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    shapes = {"x": {0: BATCH}, "flag": None, "extra": {"a": {0: BATCH}}}
    module = compiled(model, (a, True), kwargs={"extra": {"a": b}}, dynamic_shapes=shapes)
    for n in (1, 5):
        x, extra = torch.randn(n, 3), {"a": torch.randn(n, 3)}
        ours, theirs = module(x, True, extra=extra), model(x, True, extra=extra)
        torch.testing.assert_close(ours, theirs)
        assert ours["again"][1][0] is x
        assert ours["again"][0] is ours["y"]
        assert ours["n"] == 2 * n
    with pytest.raises(TypeError, match="flag"):
        module(a, False, extra={"a": b})


def test_keyword_arguments_come_in_any_order() -> None:
    class Sub(nn.Module):
        def forward(self, *, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            """a + 2 b"""
            return a + b * 2

    a, b = torch.randn(3), torch.randn(3)
    module = compiled(Sub(), (), kwargs={"a": a, "b": b})
    torch.testing.assert_close(module(b=b, a=a), a + 2 * b)
    with pytest.raises(TypeError, match="missing b"):
        module(a=a)


def test_sizes_that_must_agree_are_checked() -> None:
    class Add(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            """a + b"""
            return a + b

    module = compiled(Add(), (torch.randn(2, 3), torch.randn(2, 3)), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    with pytest.raises(pipeline.ShapeError, match="input b has size 3 in dimension 0; compiled for 2"):
        module(torch.randn(2, 3), torch.randn(3, 3))
    with pytest.raises(pipeline.ShapeError, match="rank 1"):
        module(torch.randn(3), torch.randn(3, 3))


def test_a_symbolic_int_input() -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            """x * n"""
            return x * n + 1

    module = compiled(Scale(), (torch.randn(3), 4), dynamic_shapes=(None, Dim.DYNAMIC))
    x = torch.randn(3)
    torch.testing.assert_close(module(x, 7), x * 7 + 1)


def test_random_operators_stay_random() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x plus noise"""
            return x + torch.rand_like(x) * 2

    module = compiled(Noise(), (torch.zeros(64),), min_block_size=1)
    x = torch.zeros(64)
    assert not torch.equal(module(x), module(x))


def test_float64_is_refused_with_a_hint_and_truncated_on_request() -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """2 x + 1"""
            return x * 2 + 1

    x = torch.randn(4, dtype=torch.float64)
    refused = pipeline.default()(Double().eval(), args=(x,))
    assert {f.hint for f in refused.coverage.fallback} == {"pass truncate_double=True to compute it in float32"}
    assert torch.equal(refused.module(executor="reference")(x), 2 * x + 1)
    truncated = pipeline.default(truncate_double=True)(Double().eval(), args=(x,))
    assert len(truncated.engines) == 1
    result = truncated.module(executor="reference")(x)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, 2 * x + 1, rtol=1e-6, atol=1e-6)


def test_tied_weights_are_one_weight() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 4] -> [N, 4]"""
            return self.second(self.first(x))

    model, x = Tied().eval(), torch.randn(2, 4)
    result = pipeline.default()(model, args=(x,))
    torch.testing.assert_close(result.module(executor="reference")(x), model(x))
    other = Tied().eval()
    changed = pipeline.refit_module_weights(result, other)
    torch.testing.assert_close(changed.module(executor="reference")(x), other(x))
    torch.testing.assert_close(pipeline.refit_module_weights(result, other.state_dict())(x), other(x))


def test_what_export_cannot_prove_is_checked_at_each_call() -> None:
    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N] -> [N / 4, 4]; N is a multiple of 4"""
            return x.view(-1, 4) * 2

    given = pipeline.Input(min_shape=(4,), opt_shape=(8,), max_shape=(16,), name="x")
    module = compiled(Rows(), (given,))
    torch.testing.assert_close(module(torch.arange(12.0)), torch.arange(12.0).view(-1, 4) * 2)
    with pytest.raises(ValueError, match="10"):
        module(torch.arange(10.0))
