"""Inputs that have one value, and masks that pick a known number of elements, on a GPU."""

from __future__ import annotations

import pytest
import torch

import pipeline
from pipeline.recipes import named_buffer_numbers
from tests.converters.test_index_counted import FORMS, Picks, example
from tests.export_fixes.test_buffer_constants import READ, Holds, X
from tests.export_fixes.test_constant_inputs import GRID, Literal, Turned, Windows, inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_numbers_of_a_constant_on_either_device(device: str) -> None:
    """Whose other inputs are on the GPU, as is the module."""
    model, patches = Windows().eval().cuda(), inputs()[0].cuda()
    grid = GRID.to(device)
    expected = model(patches, GRID.cuda())
    made = pipeline.default(require_full_compilation=True)(model, (patches, pipeline.Constant(GRID.cuda())))
    run = made.module("tensorrt")
    for _ in range(3):
        torch.testing.assert_close(run(patches, grid), expected, rtol=2e-3, atol=2e-3)
    with pytest.raises(TypeError, match="but the program was compiled for the value"):
        run(patches, grid + 1)


def test_literals_on_the_gpu_are_known_beside_it() -> None:
    """torch makes them there at once, if there is one."""
    x, grid = torch.randn(9, device="cuda"), GRID.cuda()
    made = pipeline.default(require_full_compilation=True)(Literal().eval(), (x, pipeline.Constant(grid)))
    assert not made.program.shapes
    torch.testing.assert_close(made.module("tensorrt")(x, grid), Literal()(x, grid))


def test_its_numbers_meet_those_of_a_buffer_on_the_gpu() -> None:
    """As in the vision towers of language models, whose frequencies are few."""
    model, patches = Turned().eval().cuda(), inputs()[0].cuda()
    made = pipeline.default(require_full_compilation=True)(model, (patches, pipeline.Constant(GRID.cuda())))
    expected = model(patches, GRID.cuda())
    torch.testing.assert_close(made.module("tensorrt")(patches, GRID), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", READ)
def test_numbers_of_buffers_on_the_gpu(name: str) -> None:
    function, number = READ[name]
    model, x = Holds(function, number).eval().cuda(), X.cuda()
    made = pipeline.default(require_full_compilation=True, min_block_size=1)(model, (x,))
    assert dict(made.program.numbers) == dict(named_buffer_numbers("n", number))
    torch.testing.assert_close(made.module("tensorrt")(x), model(x), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("graphs", [False, True], ids=["", "graphs"])
def test_a_call_with_another_value_is_refused_beside_graphs(graphs: bool) -> None:
    model, patches, grid = Windows().eval().cuda(), inputs()[0].cuda(), GRID.cuda()
    run = pipeline.default(cuda_graphs=graphs)(model, (patches, pipeline.Constant(grid))).module("tensorrt")
    for _ in range(3):
        run(patches, grid)
    grid[0, 0] = 5
    with pytest.raises(TypeError, match="but the program was compiled for the value"):
        run(patches, grid)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_masks_that_pick_a_known_number(form: str, dtype: torch.dtype) -> None:
    def given(seed: int) -> list[torch.Tensor]:
        return [x.to("cuda", dtype if x.is_floating_point() else x.dtype) for x in example(form, seed, 40, 29)]

    model = Picks(form).eval()
    run = pipeline.default(require_full_compilation=True)(model, tuple(given(0))).module("tensorrt")
    for seed in range(4):
        torch.testing.assert_close(run(*given(seed)), model(*given(seed)), rtol=1e-3, atol=1e-3)
