"""A compiled program in the place of its module: of the same class, with all but its weights."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline


class Part(torch.nn.Module):
    """What a larger program has as a part, and reads more of than its results."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.config = {"width": width}
        self.first = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.GELU())
        self.second = torch.nn.Linear(16, width)
        self.tied = self.first[0].weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sigma", torch.tensor(0.5))

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        """[B, width] -> [B, width]"""
        self.calls.add_(1)  # type: ignore[operator, union-attr]
        return self.second(self.first(x)) * scale + self.calls  # type: ignore[no-any-return]

    def decoded(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Larger:
    """A program with a part."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __call__(self, rows: int) -> torch.Tensor:
        torch.manual_seed(rows)
        x = torch.randn(rows, self.part.config["width"], dtype=self.part.dtype, device=self.part.device)
        for _ in range(3):
            x = x + self.part(x, scale=2.0) * self.part.sigma
        return x


@pytest.fixture
def part() -> Part:
    torch.manual_seed(0)
    return Part().eval()


def compiled_of(part: Part) -> pipeline.Compiled:
    again = copy.deepcopy(part)
    with pipeline.recorded(again) as calls:
        Larger(again)(4), Larger(again)(2)
    again.calls.zero_()  # type: ignore[operator, union-attr]
    return pipeline.default()(again, **calls.inputs)


def test_a_larger_program_runs_as_before(part: Part) -> None:
    wanted = Larger(copy.deepcopy(part))
    larger = Larger(compiled_of(part).in_place_of(part))
    for rows in (4, 3):
        torch.testing.assert_close(larger(rows), wanted(rows))
    assert larger.part.calls == wanted.part.calls == 6, "the buffers that it updates are its own"
    assert not part.calls, "the module is not changed"


def test_it_is_of_the_modules_class_and_has_no_weights(part: Part) -> None:
    made = compiled_of(part).in_place_of(part)
    assert isinstance(made, Part) and type(made).__name__ == "CompiledPart"
    assert (made.dtype, made.device.type, made.config) == (torch.float32, "cpu", {"width": 8})
    assert [(n, p.shape) for n, p in made.named_parameters()] == [(n, p.shape) for n, p in part.named_parameters()]
    assert made.tied is made.first[0].weight
    assert all(p.isnan().all() and p.untyped_storage().nbytes() == 4 for p in made.parameters())
    assert inspect.signature(made.forward) == inspect.signature(part.forward)


def test_a_saved_program_takes_the_place_of_a_module_that_never_had_weights(part: Part, tmp_path: Path) -> None:
    compiled_of(part).save(tmp_path / "part.trtp")
    with torch.device("meta"):
        bare = Part()
    bare.sigma = torch.tensor(0.5)
    larger = Larger(pipeline.load(tmp_path / "part.trtp").in_place_of(bare, executor="reference"))
    torch.testing.assert_close(larger(3), Larger(part)(3))


def test_what_would_be_wrong_without_weights_is_an_error(part: Part) -> None:
    made = compiled_of(part).in_place_of(part)
    with pytest.raises(pipeline.ExecutionError, match="Sequential of a compiled model has no weights"):
        made.decoded(torch.randn(2, 8))
    with pytest.raises(pipeline.ExecutionError, match="CompiledPart cannot save weights"):
        made.state_dict()
    with pytest.raises(pipeline.ExecutionError, match="CompiledPart cannot load weights"):
        made.load_state_dict(part.state_dict())
    with pytest.raises(pipeline.ExecutionError, match="setting second to a Linear would have no effect"):
        made.second = torch.nn.Linear(16, 8)
    with pytest.raises(pipeline.ExecutionError, match="setting weight to a Parameter would"):
        made.second.weight = torch.nn.Parameter(torch.zeros(8, 16))
    with pytest.raises(pipeline.ExecutionError, match="removing second would have no"):
        del made.second
    with pytest.raises(RuntimeError, match="single memory location"), torch.no_grad():
        made.second.weight.copy_(part.second.weight)


def test_it_stays_where_and_what_it_is(part: Part) -> None:
    made = compiled_of(part).in_place_of(part)
    assert made.to("cpu") is made
    with pytest.raises(pipeline.ExecutionError, match=r"its dtypes or device \(cpu\) to float16"):
        made.half()
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(made)
    larger = Larger(made)
    torch.testing.assert_close(larger(3), Larger(part)(3))


def test_hooks_and_replaced_forwards_are_in_the_program(part: Part) -> None:
    """Those of the module do not run a second time."""
    part.register_forward_hook(lambda module, args, result: result + 1)
    own = part.forward
    part.forward = lambda x, **kwargs: own(x, **kwargs) * 2  # type: ignore[method-assign, assignment]
    given = torch.randn(2, 8)
    made = pipeline.default()(part, args=(given,)).in_place_of(part)
    torch.testing.assert_close(made(given), part(given))


def test_torch_compile_takes_it_as_one_call(part: Part) -> None:
    given = torch.randn(3, 8)
    made = pipeline.default()(part.second, args=(torch.randn(3, 16),)).in_place_of(part.second)
    around = torch.compile(lambda x: made(x) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(around(part.first(given)), part.second(part.first(given)) * 2)


MISUSED: dict[str, tuple[Any, str]] = {
    "a number": (3, "takes the nn.Module that was compiled, got an int"),
    "another module": (torch.nn.Linear(8, 8), r"Linear.forward\(input\) does not take the inputs of the program"),
    "a script": (torch.jit.script(torch.nn.Linear(8, 8)), "takes the nn.Module that was compiled"),
}


@pytest.mark.parametrize("which", MISUSED)
def test_what_it_is_not_put_in_place_of(which: str, part: Part) -> None:
    model, message = MISUSED[which]
    with pytest.raises(TypeError, match=message):
        compiled_of(part).in_place_of(model)


def test_it_is_not_put_in_place_of_itself(part: Part) -> None:
    made = compiled_of(part)
    with pytest.raises(TypeError, match=r"takes the nn\.Module that was compiled, got a Compiled"):
        made.in_place_of(made.in_place_of(part))
