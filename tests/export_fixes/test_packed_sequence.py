"""Packed sequences are captured, and computed as eager does: rows of several lengths, in any order."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline
from pipeline import Compiled
from pipeline.stages.unbuilt import unbuilt
from tests.export_fixes.packed_models import IN_PYTORCH, LISTED, ONE_ENGINE, Recurrent, Scripted, packed, whole
from tests.testing.in_turn import in_turn

LENGTHS: Final = ([2, 5, 1], [1, 1, 1], [3, 2, 5], [5, 5, 5])
OTHER_SIZES: Final = ([4, 2], [7, 1, 1, 20, 2], [1])
DIMS: Final = ({0: Dim("batch", max=8), 1: Dim("steps", min=5, max=20)}, {0: Dim("batch", max=8)})
DEVICES: Final = pytest.mark.parametrize("device", [None, "cuda"])


def inputs(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(sum(lengths))
    return torch.randn(len(lengths), max(5, *lengths), 3), torch.tensor(lengths)


def compiled(model: Any, device: str | None = None, dims: Any = None, **settings: Any) -> Compiled:
    compile = pipeline.default(min_block_size=1, device=device, **settings).replace("build", unbuilt)
    return compile(model.eval(), args=inputs(LENGTHS[0]), dynamic_shapes=dims)


def agrees(result: Compiled, model: Any, *lengths: list[int]) -> None:
    run = result.module("reference")
    for given in map(inputs, lengths):
        for ours, wanted in zip(tree_leaves(run(*given)), tree_leaves(model(*given)), strict=True):
            torch.testing.assert_close(ours, wanted)


@in_turn("name, device", ONE_ENGINE)
def test_in_one_engine(name: str, device: str | None) -> None:
    model = Recurrent(ONE_ENGINE[name])
    agrees(compiled(model, device, require_full_compilation=True), model, *LENGTHS)


@in_turn("name, device", ONE_ENGINE, ("cuda", None))
def test_of_any_size(name: str, device: str | None) -> None:
    model = Recurrent(ONE_ENGINE[name])
    agrees(compiled(model, device, DIMS, require_full_compilation=True), model, *LENGTHS, *OTHER_SIZES)


LAYERS: Final[dict[str, dict[str, Any]]] = {
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "no biases": {"bias": False},
    "a projection": {"proj_size": 1, "bidirectional": True},
    "GRU": {"kind": "GRU", "bidirectional": True},
    "RNN": {"kind": "RNN", "num_layers": 2},
    "RNN of relu": {"kind": "RNN", "nonlinearity": "relu", "bidirectional": True},
    "dropout": {"num_layers": 2, "dropout": 0.5},
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    model = Recurrent(whole, **LAYERS[name])
    agrees(compiled(model, require_full_compilation=True), model, *LENGTHS)


@DEVICES
@pytest.mark.parametrize("dims", [None, DIMS], ids=["fixed", "varying"])
@pytest.mark.parametrize("name", IN_PYTORCH)
def test_beside_pytorch(name: str, dims: Any, device: str | None) -> None:
    function, there = IN_PYTORCH[name]
    model = Recurrent(function)
    result = compiled(model, device, dims)
    assert {each.target for each in result.coverage.fallback} >= there
    agrees(result, model, *LENGTHS, *(OTHER_SIZES if dims else ()))


@pytest.mark.parametrize("name", LISTED)
def test_lengths_in_the_model(name: str) -> None:
    model = Recurrent(LISTED[name])
    agrees(compiled(model), model, LENGTHS[0])


def test_nothing_is_left_of_data_that_nothing_reads() -> None:
    program = pipeline.capture(Recurrent(whole).eval(), inputs(LENGTHS[0]))
    assert not [node for node in program.graph.nodes if "packed_rows" in node.name or "batch_sizes" in node.name]
    assert not [node for node in program.graph.nodes if "_assert_scalar" in node.name]


def test_the_steps_of_each_row_are_told() -> None:
    model = Recurrent(lambda m, x, lengths: packed(x, lengths).batch_sizes * 2)
    with pytest.raises(pipeline.CaptureError, match=r"packed_models\.py:\d+.*reads the batch_sizes of a packed"):
        pipeline.capture(model.eval(), inputs(LENGTHS[0]))


@pytest.mark.parametrize("longest", [True, False])
def test_torchscript(longest: bool, caplog: pytest.LogCaptureFixture) -> None:
    """TorchScript asks by data whether the length that it is to pad to is enough."""
    model = Scripted(longest).eval()
    given = inputs(LENGTHS[0])
    for script in (torch.jit.script(model), torch.jit.trace(model, given)):
        agrees(compiled(script), model, *(LENGTHS if longest else LENGTHS[:1]), LENGTHS[2])
    assert ("assume that the asserts hold" in caplog.text) != longest


def test_another_dtype_and_a_kept_program(tmp_path: Any) -> None:
    model = Recurrent(whole, bidirectional=True).eval()
    pipeline.default(min_block_size=1, require_full_compilation=True)(model, args=inputs(LENGTHS[0])).save(
        tmp_path / "model.trtp"
    )
    with pytest.warns(pipeline.ArtifactWarning, match="no GPU"):
        loaded = pipeline.load(tmp_path / "model.trtp")
    agrees(loaded, model, *LENGTHS)
