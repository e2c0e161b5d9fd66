"""Numbers that a model holds in buffers and reads in Python are what they are; other weights have to have the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

import pipeline
from pipeline import Compiled, RefitError
from pipeline.export_fixes.exporter import _Exporter
from pipeline.export_fixes.known_values import track_values
from pipeline.recipes import named_buffer_numbers
from pipeline.stages.unbuilt import unbuilt

X: Final = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
DEVICES: Final = pytest.mark.parametrize("device", [None, "cuda"])


class Holds(nn.Module):
    """A layer, and a number in a buffer."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any], number: torch.Tensor, persistent: bool = True):
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.register_buffer("n", number.clone(), persistent)

    def forward(self, x: torch.Tensor) -> Any:
        """[3, 4] -> what the function makes of [3, 4]"""
        return self.function(self, self.linear(x))


def put(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The number, through a view of another tensor."""
    number = torch.tensor([0])
    number[0] = model.n
    return x.repeat(number.item(), 1)


READ: Final[dict[str, tuple[Callable[[Any, torch.Tensor], Any], torch.Tensor]]] = {
    "item": (lambda m, x: x.repeat(m.n.item(), 1), torch.tensor(2)),
    "flag": (lambda m, x: x + 1 if m.n else x - 1, torch.tensor([True])),
    "flag of floats": (lambda m, x: x + 1 if m.n else x - 1, torch.tensor([0.0])),
    "float": (lambda m, x: x * m.n.item(), torch.tensor(0.5)),
    "index": (lambda m, x: x[m.n], torch.tensor(1)),
    "slice": (lambda m, x: x[: m.n + 1], torch.tensor(1, dtype=torch.int32)),
    "put": (put, torch.tensor(2)),
    "written copy": (lambda m, x: x.repeat(int(m.n.clone().add_(1)), 1), torch.tensor(2)),
    "what is not 0": (lambda m, x: x.repeat(m.n.nonzero().shape[0] + 1, 1), torch.tensor([1])),
    "beside a size": (lambda m, x: x.repeat((torch.tensor(x.shape[0]) * m.n).item(), 1), torch.tensor(2)),
    "rounded": (lambda m, x: x.repeat(int(torch.ceil(x.shape[0] / m.n)), 1), torch.tensor(2)),
    "one of several": (
        lambda m, x: x + torch.full((x.shape[0], 1), m.n[1], device=x.device),
        torch.tensor([8.0, 16.0]),
    ),
    "one after the other": (lambda m, x: torch.cat([x[: int(n)] for n in m.n]), torch.tensor([1, 2, 3])),
    "of a grid": (lambda m, x: x.repeat(int(m.n.view(-1).flip(0)[None][0, 0]), 1), torch.tensor([[3], [2]])),
    "those that are not 0": (lambda m, x: x.repeat(m.n.nonzero().shape[0], 1), torch.tensor([1, 0, 2])),
}


def compiled(model: nn.Module, device: str | None = None) -> Compiled:
    compile = pipeline.default(require_full_compilation=True, min_block_size=1, device=device).replace("build", unbuilt)
    return compile(model.eval(), args=(X,))


class Beside(nn.Module):
    """A layer, and tensors that are no buffers: strides, and those of a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.strides, self.more = nn.Linear(4, 4), torch.tensor([2.0, 3.0]), torch.tensor([0.5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [3 * N, 4]"""
        rows, literal, strides = self.linear(x), torch.tensor([1, 2]), torch.cat([self.strides, self.more])
        made = [rows * torch.full((x.shape[0], 1), stride, device=x.device) for stride in strides]
        return torch.cat(made) + literal[1].item() if literal[0] == 1 else rows


@DEVICES
def test_numbers_of_tensors_that_are_no_buffers(device: str | None) -> None:
    """As detectors have their strides."""
    model, rows = Beside().eval(), torch.export.Dim("rows", min=1, max=9)
    compile = pipeline.default(require_full_compilation=True, device=device).replace("build", unbuilt)
    result = compile(model, args=(X,), dynamic_shapes=({0: rows},))
    for count in (1, 5):
        x = torch.randn(count, 4)
        torch.testing.assert_close(result.module("reference")(x), model(x))


@torch.library.custom_op("values::doubled", mutates_args=(), device_types="cuda")
def doubled(x: torch.Tensor) -> torch.Tensor:
    """An operator without a kernel for the CPU."""
    return x * 2


doubled.register_fake(torch.empty_like)


def test_an_operator_without_a_kernel_for_values_is_not_computed() -> None:
    model = Holds(lambda m, x: x * torch.ops.values.doubled(m.n) + m.n[0].item(), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    program = pipeline.capture(model.eval(), (X,), device="cuda")
    assert torch.ops.values.doubled.default in [node.target for node in program.graph.nodes]
    assert dict(program.numbers) == {f"n[{i}]": i + 1.0 for i in range(4)}


def other(number: torch.Tensor) -> torch.Tensor:
    return ~number if number.dtype == torch.bool else number + 1


@DEVICES
@pytest.mark.parametrize("name", READ)
def test_a_number_is_read(name: str, device: str | None) -> None:
    function, number = READ[name]
    model = Holds(function, number)
    result = compiled(model, device)
    torch.testing.assert_close(result.module("reference")(X), model(X))
    assert dict(result.program.numbers) == dict(named_buffer_numbers("n", number))
    assert torch.equal(model.n, number)
    pipeline.refit_module_weights(result, model)
    with pytest.raises(RefitError, match=r"n(\[0\])?: it is .*, and the model's code read .* during capture"):
        pipeline.refit_module_weights(result, Holds(function, other(number)))


def test_of_a_buffer_that_is_not_kept() -> None:
    model = Holds(*READ["item"], persistent=False)
    torch.testing.assert_close(compiled(model).module("reference")(X), model(X))


def written_to_rows(model: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x.clone()
    rows[0] = model.n
    rows[1:].add_(x[1:] * model.n)
    return rows


USED: Final[dict[str, Callable[[Any, torch.Tensor], Any]]] = {
    "a factor": lambda m, x: x * m.n,
    "written": written_to_rows,
    "chosen": lambda m, x: torch.cond(m.n > 2, lambda n, y: y * n, lambda n, y: y - n, (m.n, x)),
    "beside a number": lambda m, x: x.repeat(torch.tensor(x.shape[0]).item(), 1) * m.n,
}


@DEVICES
@pytest.mark.parametrize("name", USED)
def test_what_is_not_read_may_change(name: str, device: str | None) -> None:
    model = Holds(USED[name], torch.tensor(3))
    result = compiled(model, device)
    assert not result.program.numbers
    changed = pipeline.refit_module_weights(result, {"n": torch.tensor(1)})
    model.n.fill_(1)
    torch.testing.assert_close(changed.module("reference")(X), model(X))


WRITTEN: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "by index": lambda number, n: number.__setitem__(0, n),
    "through a view": lambda number, n: number.view(1).copy_(n.view(1)),
    "added": lambda number, n: number[0].add_(n),
    "and filled": lambda number, n: number.copy_(n).view(-1).fill_(1),
}


@DEVICES
@pytest.mark.parametrize("name", WRITTEN)
def test_one_of_several_numbers_that_was_put_is_data(name: str, device: str | None) -> None:
    class Puts(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            """[3, 4], [] -> [n, 4]"""
            numbers = torch.tensor([[0], [1]], device=x.device)
            WRITTEN[name](numbers[0], n)
            return x[: numbers.flatten()[0].item()]

    compile = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt)
    run = compile(Puts(), args=(X, torch.tensor(2))).module("reference")
    for n in map(torch.tensor, (2, 1, 3)):
        torch.testing.assert_close(run(X, n), Puts()(X, n))


@DEVICES
@pytest.mark.parametrize("name", WRITTEN)
def test_a_number_that_was_put_is_read(name: str, device: str | None) -> None:
    """torch.export takes the number that was there before."""

    class Puts(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            """[3, 4], [] -> [n, 4]"""
            number = torch.tensor([0], device=x.device)
            WRITTEN[name](number, n)
            return x[: number.item()]

    compile = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt)
    run = compile(Puts(), args=(X, torch.tensor(2))).module("reference")
    for n in map(torch.tensor, (2, 1, 3)):
        torch.testing.assert_close(run(X, n), Puts()(X, n))


PUT: Final[dict[str, Callable[..., object]]] = {
    "one of several": lambda numbers, n: numbers.__setitem__(0, n),
    "through views": lambda numbers, n: numbers.view(3)[:2].copy_(torch.stack([n, n])),
    "another of them": lambda numbers, n: numbers.__setitem__(1, n),
}


@DEVICES
@pytest.mark.parametrize("name", PUT)
def test_numbers_that_are_put_into_a_buffer_are_data(name: str, device: str | None) -> None:
    class Puts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.tensor([1, 2, 3]))

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            """[3, 4], [] -> [n, 4]"""
            PUT[name](self.n, n)
            return x[: self.n[0].item()]  # type: ignore[operator, index, union-attr]

    compile, alike = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt), Puts()
    result = compile(Puts(), args=(X, torch.tensor(2)))
    assert not result.program.numbers
    run = result.module("reference")
    for n in map(torch.tensor, (2, 1, 3)):
        torch.testing.assert_close(run(X, n), alike(X, n))


def counted(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.n.add_(1)
    return x * model.n.item()


def counted_afterwards(model: Any, x: torch.Tensor) -> torch.Tensor:
    found = x * model.n.item()
    model.n += 1
    return found


@DEVICES
@pytest.mark.parametrize("function", [counted, counted_afterwards])
def test_a_number_that_the_model_writes_is_data(function: Any, device: str | None) -> None:
    model, alike = (Holds(function, torch.tensor(0)).eval() for _ in range(2))
    alike.linear = model.linear
    result = pipeline.default(min_block_size=1, device=device).replace("build", unbuilt)(model, args=(X,))
    assert not result.program.numbers
    run = result.module("reference")
    for _ in range(3):
        torch.testing.assert_close(run(X), alike(X))
    assert model.n == 0


def test_a_kept_program_knows_its_numbers(tmp_path: Path) -> None:
    model = Holds(*READ["item"])
    compile = pipeline.default(require_full_compilation=True, min_block_size=1)
    compile(model.eval(), args=(X,)).save(tmp_path / "model.trtp")
    loaded = pipeline.load(tmp_path / "model.trtp")
    assert dict(loaded.program.numbers) == {"n": 2}
    with pytest.raises(RefitError, match="n: it is 3, and the model's code read 2"):
        pipeline.refit_module_weights(loaded, {"n": torch.tensor(3)})


def test_names_are_the_models_in_dynamo_too() -> None:
    """Dynamo calls a buffer by another name."""
    model = nn.Sequential(Holds(*READ["item"])).eval()
    with track_values() as reads:
        exported = _Exporter(model, ((X,), {}), None).export_once(None, "bytecode")
    assert reads.read_buffers == {"0.n"}
    torch.testing.assert_close(exported.module()(X), model(X))


class Router(nn.Module):
    """Moves a layer in its ``forward``, as Switch Transformers do."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.linear, self.norm = dtype, nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[3, 4] -> [3, 4]"""
        self.linear, self.norm = self.linear.to(self.dtype), self.norm.to(self.dtype)
        return self.norm(self.linear(x.to(self.dtype))).to(x.dtype) + self.linear.weight.to(x.dtype).sum()


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_layer_is_moved_in_forward(dtype: torch.dtype, device: str | None) -> None:
    model = Router(dtype).eval()
    before = dict(model.state_dict())
    held = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    result = compiled(model, device) if dtype != torch.float64 else pipeline.default(device=device)(model, args=(X,))
    assert held == [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {}
    torch.testing.assert_close(result.module("reference")(X), model(X), **close)
