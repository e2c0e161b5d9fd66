"""Inputs that have one value in each call: Python reads their numbers, and engines have what is computed of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import pipeline
from pipeline.artifact.named_io import inputs_of
from pipeline.export_fixes import known_values
from pipeline.runtime import inputs as runtime_inputs
from pipeline.runtime.inputs import ConstantInputs

aten = torch.ops.aten

GRID = torch.tensor([[1, 2, 3], [2, 2, 4]])


class Windows(nn.Module):
    """Reads patches of images in the order of windows, as vision towers of language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        """[N, patches, 4], [images, 3] -> [N, patches, 4]"""
        start, order = 0, []
        for frames, rows, columns in grid.tolist():
            places = torch.arange(frames * rows * columns, device=grid.device).reshape(frames, rows, columns)
            padded = nn.functional.pad(places, (0, 2, 0, 1), "constant", -100)
            read = padded.mT.reshape(-1)
            order.append(read[read != -100] + start)
            start += int((padded != -100).sum([1, 2]).cumsum(0)[-1])
        ends = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0)
        lengths = (ends - nn.functional.pad(ends, (1, 0))[:-1]).tolist()
        parts = patches[:, torch.cat(order)].split(lengths, 1)
        return torch.cat([(part @ self.weight).softmax(1) for part in parts], 1)


class Turned(nn.Module):
    """Rotates patches by their places in images: a small buffer of frequencies meets what a grid gives."""

    frequencies: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1]), persistent=False)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        """[N, patches, 4], [images, 3] -> [N, patches, 4]"""
        angles = []
        for frames, rows, columns in grid.tolist():
            places = torch.arange(rows * columns, device=grid.device).repeat(frames)
            angles.append(torch.outer(places // columns, self.frequencies) + torch.outer(places, self.frequencies))
        cos, sin = (torch.cat(angles).repeat(1, 2).cos(), torch.cat(angles).repeat(1, 2).sin())
        lengths = (self.frequencies * 10).int().tolist()
        return patches @ self.weight * cos + patches.flip(-1) * sin * sum(lengths)


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 22, 4), GRID.clone()


def compiled(**options: Any) -> pipeline.Compiled:
    patches, grid = inputs()
    return pipeline.default(require_full_compilation=True)(
        Windows().eval(), (patches, pipeline.Constant(grid)), **options
    )


@pytest.mark.parametrize("device", [None, "cuda"])
def test_its_numbers_meet_those_of_a_buffer(device: str | None) -> None:
    model, (patches, grid) = Turned().eval(), inputs()
    compile = pipeline.default(require_full_compilation=True, device=device).replace("build", pipeline.stages.unbuilt)
    made = compile(model, (patches, pipeline.Constant(grid)))
    torch.testing.assert_close(made.module("reference")(patches, grid), model(patches, grid))
    assert [*made.program.numbers] == ["frequencies[0]", "frequencies[1]"]


def test_python_reads_its_numbers() -> None:
    """One engine, in which only what the other inputs decide is computed."""
    torch.manual_seed(1)
    model, (patches, grid) = Windows().eval(), inputs()
    made = pipeline.default(require_full_compilation=True)(model, (patches, pipeline.Constant(grid)))
    torch.testing.assert_close(made.module("reference")(patches, grid), model(patches, grid))
    (network,) = made.networks
    assert [tensor.name for tensor in network.inputs] == ["patches"]
    assert not {"FILL", "PADDING", "SHAPE", "CAST"} & network.kinds().keys()


def test_other_sizes_may_vary() -> None:
    model, (patches, grid) = Windows().eval(), inputs()
    shapes = ({0: Dim("batch", max=8)}, None)
    made = pipeline.default(require_full_compilation=True)(
        model, (patches, pipeline.Constant(grid)), dynamic_shapes=shapes
    )
    x = torch.randn(5, 22, 4)
    torch.testing.assert_close(made.module("reference")(x, grid), model(x, grid))


def test_without_it_the_model_is_refused_with_the_way_round() -> None:
    with pytest.raises(pipeline.CaptureError, match=r"pipeline\.Constant"):
        pipeline.capture(Windows().eval(), inputs())


@pytest.mark.parametrize(
    "other", [GRID + 1, GRID.int(), GRID[:1], GRID.tolist(), None], ids=["value", "dtype", "shape", "list", "none"]
)
def test_a_call_with_another_value_is_refused(other: object) -> None:
    run, (patches, grid) = compiled().module("reference"), inputs()
    for _ in range(3):  # the second call is found by its shapes
        run(patches, grid)
        with pytest.raises(TypeError, match=r"input grid is .*, but the program was compiled for the value Constant"):
            run(patches, other)


def test_what_is_written_to_a_tensor_is_seen() -> None:
    run, (patches, grid) = compiled().module("reference"), inputs()
    run(patches, grid)
    run(patches, grid)
    grid[0, 0] = 7
    with pytest.raises(TypeError, match="input grid"):
        run(patches, grid)
    grid[0, 0] = 1
    run(patches, grid)


def test_a_tensor_that_is_waited_for_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_inputs, "_is_on_gpu", lambda value: True)
    reads: list[object] = []
    holds = pipeline.Constant.equals
    monkeypatch.setattr(pipeline.Constant, "equals", lambda self, other: reads.append(other) or holds(self, other))
    constants, (patches, grid) = ConstantInputs(compiled().program), inputs()
    held = [constants.match((patches, x)) for x in (grid, grid, grid.clone(), grid + 1, grid)]
    assert held == [True, True, True, False, True]
    assert len(reads) == 4


def test_what_numpy_writes_is_seen() -> None:
    run, patches, numbers = compiled().module("reference"), inputs()[0], GRID.numpy().copy()
    grid = torch.from_numpy(numbers)
    for _ in range(3):
        run(patches, grid)
    numbers[0, 0] = 7
    with pytest.raises(TypeError, match="input grid"):
        run(patches, grid)


def test_the_programs_value_is_its_own() -> None:
    """The caller's tensor may change afterwards."""
    patches, grid = inputs()
    model = Windows().eval()
    expected = model(patches, grid)
    made = pipeline.default()(model, (patches, pipeline.Constant(grid)))
    grid.zero_()
    torch.testing.assert_close(made.module("reference")(patches, GRID), expected)


def test_a_file_has_it(tmp_path: Path) -> None:
    made, (patches, grid) = compiled(), inputs()
    made.save(tmp_path / "kept")
    again = pipeline.load(tmp_path / "kept")
    torch.testing.assert_close(again.module("reference")(patches, grid), made.module("reference")(patches, grid))
    with pytest.raises(TypeError, match="input grid"):
        again.module("reference")(patches, grid + 1)
    assert [port.name for port in inputs_of(again.program)] == ["patches"]


def test_a_refit_leaves_it() -> None:
    patches, grid = inputs()
    first, second = Windows().eval(), Windows().eval()
    made = pipeline.default()(first, (patches, pipeline.Constant(grid)))
    torch.testing.assert_close(
        pipeline.refit_module_weights(made, second).module("reference")(patches, grid), second(patches, grid)
    )


class Nested(nn.Module):
    """Containers of inputs, one of which is returned."""

    def forward(self, x: Tensor, options: dict[str, Any], *, scale: Tensor) -> dict[str, Tensor]:
        rows, columns = options["sizes"].tolist()
        return {"x": x.reshape(rows, columns) * scale + options["more"][0], "sizes": options["sizes"]}


def test_containers_keywords_and_results() -> None:
    model, x = Nested().eval(), torch.randn(6)
    sizes, scale, more = torch.tensor([2, 3]), torch.tensor(2.5), torch.randn(3)
    example = {"sizes": pipeline.Constant([2, 3]), "more": [more]}
    made = pipeline.default()(model, (x, example), {"scale": pipeline.Constant(scale)})
    given = (x, {"sizes": sizes, "more": [more * 2]})
    actual, expected = made.module("reference")(*given, scale=scale), model(*given, scale=scale)
    torch.testing.assert_close(actual, expected)
    with pytest.raises(TypeError, match="scale"):
        made.module("reference")(*given, scale=scale * 2)


def test_as_on_a_gpu() -> None:
    patches, grid = inputs()
    program = pipeline.capture(Windows().eval(), (patches, pipeline.Constant(grid)), device="cuda")
    assert program.inputs[1].kind == "constant"


class Writes(nn.Module):
    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        grid += 1
        return x * grid


def test_a_model_that_writes_to_it_is_refused() -> None:
    with pytest.raises(pipeline.CaptureError, match=r"writes to the input grid, a pipeline\.Constant"):
        pipeline.capture(Writes(), (torch.randn(3), pipeline.Constant([1, 2, 3])))


def test_an_exported_program_is_refused() -> None:
    x = torch.randn(3)
    exported = torch.export.export(Writes(), (x, torch.tensor([1, 2, 3])))
    with pytest.raises(TypeError, match="pass the module"):
        pipeline.capture(exported, (x, pipeline.Constant([1, 2, 3])))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: pipeline.Constant("grid"), "numbers in lists, got a str"),
        (lambda: pipeline.Constant(None), "got None"),
        (lambda: pipeline.Constant(torch.zeros(1 << 17)), "131072 elements, more than 65536"),
        (lambda: pipeline.Constant(torch.empty(3, device="meta")), "dense tensor"),
        (lambda: pipeline.Constant(torch.eye(3).to_sparse()), "dense tensor"),
    ],
)
def test_what_is_no_constant(make: Callable[[], object], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        make()


def test_constants_are_equal_by_value() -> None:
    one = pipeline.Constant([1.0, float("nan")])
    assert one == pipeline.Constant([1.0, float("nan")]) and hash(one) == hash(pipeline.Constant([1.0, float("nan")]))
    assert one != pipeline.Constant([1.0, 2.0]) and one != pipeline.Constant([1, 2]) and one != 1
    assert repr(pipeline.Constant(GRID)) == "Constant([[1, 2, 3], [2, 2, 4]], int64[2, 3])"


class Counts(nn.Module):
    """Puts a number that data has into a tensor of known numbers, a literal, or a view of one, and reads it."""

    def __init__(self, through: str) -> None:
        super().__init__()
        self.through = through

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        numbers = torch.zeros(3, dtype=torch.int64) if self.through == "made" else grid[0].clone()
        if self.through == "literal":
            numbers = torch.tensor([0])
        view = numbers[1:] if self.through == "view" else numbers
        view[0] = (x > 0).sum()
        number = numbers.max() if len(numbers) > 1 else numbers
        return x[: int(number) - int(grid[0, 0]) + 1] * numbers.sum()


@pytest.mark.parametrize("through", ["made", "copied", "view", "literal"])
def test_numbers_of_data_are_not_taken_for_known(through: str) -> None:
    model, x = Counts(through).eval(), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0])
    made = pipeline.default(min_block_size=1)(model, (x, pipeline.Constant(GRID)))
    for sign in (1.0, -1.0):
        torch.testing.assert_close(made.module("reference")(x * sign, GRID), model(x * sign, GRID))


class Around(nn.Module):
    """A model that calls a compiled one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, patches: Tensor, grid: Tensor) -> Tensor:
        found: Tensor = self.inner(patches * 1, grid) + 1
        return found


def test_graphs_around_it_check_its_value() -> None:
    made, (patches, grid) = compiled(), inputs()
    exported = torch.export.export(Around(made.module("reference")), (patches, grid)).module()
    torch.testing.assert_close(exported(patches, grid), made.module("reference")(patches, grid) + 1)
    with pytest.raises(TypeError, match="but the program was compiled for the value"):
        exported(patches, grid + 1)


class Literal(nn.Module):
    """Reads numbers that come of a constant and a literal."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        sizes = (torch.tensor([2, 1, 0], device=grid.device) + grid[0]).tolist()
        return torch.cat(x.split(sizes)[::-1] if sizes[0] > 2 else x.split(sizes))


def test_literals_are_known_beside_it() -> None:
    x = torch.randn(9)
    made = pipeline.default(require_full_compilation=True)(Literal().eval(), (x, pipeline.Constant(GRID)))
    torch.testing.assert_close(made.module("reference")(x, GRID), Literal()(x, GRID))


def test_literals_on_a_gpu_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes them there where it has one. Nothing writes to the literal itself, which the graph has."""
    literal, real = torch.tensor([2, 1]), torch.Tensor.device
    gpu = torch.device("cuda", 0)
    place = property(lambda x: gpu if x is literal else real.__get__(x))
    monkeypatch.setattr(torch.Tensor, "device", place, raising=False)
    dispatch, mode = FakeTensorMode.dispatch, FakeTensorMode()
    with known_values.track_values({0: pipeline.Constant(GRID)}):
        lift = aten.lift_fresh_copy.default
        made: Any = known_values.dispatch_with_known_values(dispatch, mode, lift, (), (literal,), {})
        written: Any = known_values.dispatch_with_known_values(dispatch, mode, aten.add_.Scalar, (), (made, 1), {})
    assert made.device == gpu and written.constant.tolist() == [3, 2]
    assert literal.tolist() == [2, 1]


def test_its_sizes_do_not_vary() -> None:
    patches, grid = inputs()
    shapes = (None, {0: Dim("images", min=1, max=4)})
    with pytest.raises(pipeline.CaptureError, match=r"has a range for the input Constant\(\[\[1, 2, 3\]"):
        pipeline.capture(Windows().eval(), (patches, pipeline.Constant(grid)), dynamic_shapes=shapes)


def test_calls_take_tensors() -> None:
    patches, grid = inputs()
    with pytest.raises(TypeError, match="pass its tensor"):
        compiled().module("reference")(patches, pipeline.Constant(grid))
