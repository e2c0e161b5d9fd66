"""What a model keeps from a call, and what a process has set, are as they were when the model has been captured."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.eval_frame import TorchPatcher
from torch.distributions import Distribution, Normal
from torch.nn.attention.flex_attention import flex_attention

import pipeline

ANY = ({0: torch.export.Dim("n", max=9)},)


def fails(model: nn.Module, *inputs: torch.Tensor) -> None:
    with pytest.raises(pipeline.CaptureError, match="one input is enough"):
        pipeline.capture(model, inputs)


CAPTURES = {
    "capture": lambda model, x: pipeline.capture(model, (x,)),
    "any size": lambda model, x: pipeline.capture(model, (x,), dynamic_shapes=ANY),
    "as on a GPU": lambda model, x: pipeline.capture(model, (x,), device="cuda"),
    "compile": lambda model, x: pipeline.default()(model, args=(x,)),
    "a failure": lambda model, x: fails(model, x, x),
}


class Keeping(nn.Module):
    """Keeps what it computes for a size, in all ways that modules do."""

    grid: torch.Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.masks: dict[int, torch.Tensor] = {}
        self.seen: list[torch.Tensor] = []
        self.sizes: set[int] = set()

    @functools.cached_property
    def scale(self) -> torch.Tensor:
        return torch.arange(4, device=self.linear.weight.device) + 1.0

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        self.calls += 1
        if self.grid is None:
            self.grid = torch.arange(4, device=x.device) / 2
        if 4 not in self.masks:
            self.masks[4] = torch.ones(4, 4, device=x.device).tril()
        y = self.linear(x) * self.scale + self.grid + self.masks[4][0]
        self.seen.append(y)
        self.sizes.add(len(self.seen))
        if more:
            raise ValueError("one input is enough")
        return y


class Rows:
    """What a module has beside modules: a table, which is filled when it is first asked for."""

    def __init__(self) -> None:
        self.table: list[torch.Tensor] | None = None
        self.by_size: dict[int, torch.Tensor] = {}
        self.calls, self.within = 0, [Within()]

    def __call__(self, n: int) -> torch.Tensor:
        self.calls += 1
        if self.table is None:
            self.table = [torch.arange(16.0)]
        if n not in self.by_size:
            self.by_size[n] = torch.ones(n)
        return self.table[0][:n] + self.by_size[n] + self.within[0].of(n) + self.within[0].kept(n) + grid(n)


class Within:
    """What an object has."""

    last: torch.Tensor | None = None

    def of(self, n: int) -> torch.Tensor:
        if self.last is None:
            self.last = torch.full((n,), 2.0)
        return self.last

    @functools.lru_cache  # noqa: B019
    def kept(self, n: int) -> torch.Tensor:
        return torch.arange(n, dtype=torch.float32) * 3


@functools.lru_cache
def grid(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32).cos()


class Around(nn.Module):
    """Has an object that is no module (Z-Image's rotary positions)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.rows = nn.Linear(4, 4), {"of": (Rows(),)}

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = self.linear(x) * self.rows["of"][0](4).to(x.device)
        if more:
            raise ValueError("one input is enough")
        return y


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("way", CAPTURES)
def test_objects_of_a_captured_model_hold_nothing_fake(way: str, called: bool) -> None:
    grid.cache_clear()
    model, x = Around().eval(), torch.randn(3, 4)
    rows = model.rows["of"][0]
    if called:
        model(x)
    before = rows.table, dict(rows.by_size), rows.within[0].last
    CAPTURES[way](model, x)
    assert (rows.table, rows.by_size, rows.within[0].last) == before
    expected = Around().eval()
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), expected(x))
    CAPTURES[way](model, x)


class Proxy:
    """Stands for an object that is not there."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("there is none here")


def test_a_proxy_of_nothing_is_no_matter() -> None:
    model, x = Around().eval(), torch.randn(3, 4)
    model.proxy = Proxy()
    pipeline.capture(model, (x,))
    assert model.rows["of"][0].table is None


def held(model: nn.Module) -> list[Any]:
    """What its modules have, and what is in it."""
    spaces = [vars(module) for module in model.modules()]
    return [
        (name, id(value), [*map(id, value.values() if isinstance(value, dict) else value)])
        for space in spaces
        for name, value in space.items()
        if isinstance(value, (dict, list, set))
    ] + [(name, id(value)) for space in spaces for name, value in space.items()]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("way", CAPTURES)
def test_a_captured_model_is_as_before(way: str, called: bool) -> None:
    model, x = Keeping().eval(), torch.randn(4, 4)
    if called:
        model(x)
    before = held(model)
    if way == "as on a GPU" and called:  # what it keeps of the call is on the CPU, and nothing moves it
        with pytest.raises(pipeline.CaptureError, match="holds is on another device"):
            CAPTURES[way](model, x)
    else:
        CAPTURES[way](model, x)
    assert held(model) == before
    assert torch.isfinite(model(x)).all()


class Branches(nn.Module):
    """Runs one of two branches, which torch compiles by Dynamo, one of them with a distribution."""

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = torch.cond(x.sum() > 0, lambda x: Normal(x, x.exp()).log_prob(x + 1), lambda x: x - 1, (x,))
        if more:
            raise ValueError("one input is enough")
        return y


class Attends(nn.Module):
    """Attention that torch compiles by Dynamo."""

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = flex_attention(*[x[None, None]] * 3)[0, 0]
        if more:
            raise ValueError("one input is enough")
        return y


@pytest.mark.parametrize("way", ["capture", "compile", "a failure"])
@pytest.mark.parametrize("kind", [Branches, Attends])
def test_distributions_check_by_default_as_before(
    kind: type[nn.Module], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    TorchPatcher.patch.cache_clear()  # as in a process that has compiled nothing by Dynamo
    monkeypatch.setattr(Distribution, "_validate_args", True)
    for _ in range(2):
        CAPTURES[way](kind().eval(), torch.randn(4, 4))
        assert Distribution._validate_args
    torch.compile(kind(), backend="eager")
    assert not Distribution._validate_args, "torch turns them off itself, and ours did not keep it from that"
