"""What eager makes anew belongs to the caller: no call gives memory that another call gives, reads or keeps. What eager
gives as it is (an input, a parameter, a buffer) comes back as that very tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import pipeline
from pipeline.testing.models import ModelError, check_model

X = torch.arange(9.0).reshape(3, 3)
IN_TORCH = {"torch_executed_ops": {"aten.add.Tensor", "aten.mul.Tensor"}, "min_block_size": 1}
PLACES = pytest.mark.parametrize("options", [{}, IN_TORCH], ids=["engine", "torch"])


class Module(nn.Module):
    """A function of a module, with tensors of each kind, and an input."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.arange(9.0).reshape(3, 3), requires_grad=False)
        self.register_buffer("buffer", torch.ones(3, 3))
        self.register_buffer("count", torch.zeros(3, 3))
        self.plain = torch.full((3,), 5.0)

    def cuda(self, device: Any = None) -> Module:
        """On the GPU, with the tensor that is neither parameter nor buffer."""
        self.plain = self.plain.cuda(device)
        return super().cuda(device)

    def forward(self, x: Tensor) -> Any:
        """[3, 3] -> anything"""
        return self.function(self, x)


def _branch(m: Any, x: Tensor) -> Any:
    def ones(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(3, device=x.device), x * 2

    def zeros(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(3, device=x.device), x * 3

    return torch.cond(x.sum() > 0, ones, zeros, (x,))


def _counted(m: Any, x: Tensor) -> Any:
    before = m.count.clone()
    m.count.add_(1)
    return before, m.count.clone(), m.count + x


def _created(m: Any, x: Tensor) -> Any:
    at = x.device
    return torch.ones(3, device=at), torch.arange(5, device=at), torch.full((2,), 7, device=at), x + 1


def _literal(m: Any, x: Tensor) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0], device=x.device)
    return t, t * 2, t.view(-1), x + t


NEW: dict[str, Callable[[Any, Tensor], Any]] = {
    "created": _created,
    "alone": lambda m, x: torch.zeros(3, device=x.device),
    "literal": _literal,
    "of a buffer": lambda m, x: (m.buffer * 2, m.buffer * 2, x + m.buffer),
    "of a parameter": lambda m, x: (m.weight.clone(), m.weight.half(), x @ m.weight),
    "of a tensor": lambda m, x: (m.plain.clone(), x + 1),
    "a row": lambda m, x: (nn.functional.embedding(torch.tensor([0, 1], device=x.device), m.weight), x + 1),
    "several": lambda m, x: (torch.sort(m.buffer), x + 1),
    "twice": lambda m, x: (lambda y: (y, y))(m.buffer * 2),
    "views of one": lambda m, x: (lambda y: (y, y.view(-1), y[0], y.t()))(m.buffer * 2),
    "views of a result": lambda m, x: (lambda y: (y, y.view(-1), y[0], y.t()))(x * 2),
    "copies of the input": lambda m, x: (x.clone(), x + 0, x * 1, torch.clone(x).view(-1)),
    "copies of a result": lambda m, x: (lambda y: (y, y.clone(), y.clone().t()))(x * 2),
    "a branch": _branch,
    "counted": _counted,
}


def memory(results: Any) -> set[int]:
    """Where the tensors among some results lie."""
    tensors = (t for t in tree_leaves(results) if isinstance(t, Tensor) and t.numel())
    return {t.untyped_storage().data_ptr() for t in tensors}


def overwrite(results: Any) -> None:
    """Write to every tensor among some results."""
    for each in tree_leaves(results):
        each.fill_(0 if each.dtype == torch.bool else 99)


def ones(results: Any) -> list[int]:
    """For each tensor the place of the first that is the same tensor."""
    leaves = tree_leaves(results)
    return [next(i for i, other in enumerate(leaves) if other is each) for each in leaves]


@PLACES
@pytest.mark.parametrize("name", NEW)
def test_what_is_new_is_the_callers(name: str, options: dict[str, Any]) -> None:
    model = Module(NEW[name]).eval()
    module = pipeline.default(**options)(model, args=(X,)).module(executor="reference")
    kept = []
    for _ in range(3):
        x = X.clone()
        ours = module(x)
        torch.testing.assert_close(ours, model(x))
        assert torch.equal(x, X)
        assert not memory(ours) & memory([x, *kept])
        overwrite(ours)
        kept.append(ours)


ITSELF: dict[str, Callable[[Any, Tensor], Any]] = {
    "input": lambda m, x: (x, x, x + 1),
    "parameter": lambda m, x: (m.weight, x @ m.weight, m.weight),
    "buffer": lambda m, x: (m.buffer, x + m.buffer),
    "tensor": lambda m, x: (m.plain, x + m.plain),
    "written buffer": lambda m, x: (m.count.add_(1), m.count, x + 1),
    "written input": lambda m, x: (x.add_(1), x),
}


@PLACES
@pytest.mark.parametrize("name", ITSELF)
def test_what_eager_gives_as_it_is_is_that_very_tensor(name: str, options: dict[str, Any]) -> None:
    model = Module(ITSELF[name]).eval()
    module = pipeline.default(**options)(model, args=(X.clone(),)).module(executor="reference")
    ours_in, theirs_in = X.clone(), X.clone()
    ours, theirs = [module(ours_in) for _ in range(3)], [model(theirs_in) for _ in range(3)]
    torch.testing.assert_close(ours, theirs)
    assert ones([ours_in, *ours]) == ones([theirs_in, *theirs])


def test_two_buffers_that_are_given_one_value_stay_two() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(3))
            self.register_buffer("b", torch.zeros(3))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            """[3] -> 4 [3]"""
            y = x + 1
            self.a.copy_(y)
            self.b.copy_(y)
            x.copy_(y)
            return self.a, self.b, x, y

    model, module = Both(), pipeline.default()(Both(), args=(torch.zeros(3),)).module(executor="reference")
    ours_in, theirs_in = torch.zeros(3), torch.zeros(3)
    ours, theirs = [module(ours_in) for _ in range(2)], [model(theirs_in) for _ in range(2)]
    torch.testing.assert_close(ours, theirs)
    assert ones([ours_in, *ours]) == ones([theirs_in, *theirs])


def test_a_module_has_parameters_of_its_own() -> None:
    model = Module(ITSELF["parameter"]).eval()
    result = pipeline.default()(model, args=(X,))
    first, second = result.module(executor="reference"), result.module(executor="reference")
    overwrite(first(X)[0])
    torch.testing.assert_close(second(X), model(X))
    assert not memory([first(X)[0]]) & memory([second(X)[0], model.weight])


def test_threads_share_no_result() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = Module(NEW["of a buffer"]).eval()
    module = pipeline.default()(model, args=(X,)).module(executor="reference")
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(module, [X] * 16))
    assert sum(len(memory(each)) for each in results) == len(memory(results))


def test_check_model_tells_what_calls_share() -> None:
    check_model(lambda: Module(NEW["created"]), args=(pipeline.testing.TensorSpec((3, 3)),))


def test_check_model_finds_a_result_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.runtime import call_plan

    monkeypatch.setattr(
        call_plan, "_mark_duplicates", lambda outputs, returns: tuple(evolve(r, copied=False) for r in returns)
    )
    with pytest.raises(ModelError, match="share memory"):
        check_model(lambda: Module(NEW["created"]), args=(pipeline.testing.TensorSpec((3, 3)),))
