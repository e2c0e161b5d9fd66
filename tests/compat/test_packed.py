"""Towers that take patches of images one behind the other: one program for images of every size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from benchmarks import zoo

pytest.importorskip("transformers")

from pipeline.compat.transformers import encoder_parts, part_families
from pipeline.compat.transformers.attention import Windows, attend_in_windows
from pipeline.compat.transformers.encoder_parts import CallGroup, EncoderCall, group_of_any_size
from pipeline.compat.transformers.part_families import FAMILIES, ImageEncoders, PatchEncoders
from tests.compat import sights
from tests.compat.test_towers import Given, compiled_for, ran


def tower_and_call(name: str) -> tuple[torch.nn.Module, EncoderCall]:
    """The tower of a model that sees, and what it is called with for a picture of 4 by 4 patches."""
    model, given = sights.model(name)
    call = EncoderCall("model.visual", (given["pixel_values"],), {"grid_thw": given["image_grid_thw"]})
    return model.model.visual, call


def run_by(found: CallGroup, program: Any) -> Any:
    """Run the parts of a call by a program, as `encoder_parts.Tower` does."""
    return encoder_parts.ModalityEncoder(torch.nn.Identity(), found.path, [(found, program)])


def seen_by(name: str, *sizes: tuple[int, int]) -> Given:
    """A prompt of a model with images of so many patches; only models of Qwen's take kinds of tokens."""
    given = sights.patches(*sizes)
    return {key: x for key, x in given.items() if "vl" in name or key != "mm_token_type_ids"}


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "exaone4_5"])
def test_images_of_every_size_are_one_program(name: str) -> None:
    model, _ = sights.model(name)
    compiled = compiled_for(model, seen_by(name, (8, 4)), require_full_compilation=True)
    assert set(compiled.compiled) == {"decoder", "tower", "tower_1"}
    assert not compiled.compiled["tower_1"].coverage.fallback
    calls = [seen_by(name, *sizes) for sizes in ([(8, 4)], [(4, 8)], [(2, 2)], [(6, 4)], [(2, 4), (4, 2), (4, 4)])]
    assert ran(model, compiled, calls) == [{"tower": 1}, *[{"tower_1": 1}] * 3, {"tower_1": 3}]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "glm_ocr"])
def test_towers_agree_for_other_grids(name: str) -> None:
    table = (each for each in zoo.architectures("chat") if each.name == f"{name}_tower")
    try:
        case = next(table).case(torch.float32)
    except ValueError as error:  # AutoModel of this version knows no such tower
        pytest.skip(str(error)[:99])
    tower = case.model.eval()
    call = EncoderCall("t", (), {key: getattr(x, "value", x) for key, x in case.kwargs.items()})
    found = group_of_any_size(PatchEncoders, tower, [call])
    assert found is not None
    stages = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    program = stages(pipeline.capture(found.module, **found.inputs))
    run = run_by(found, program.module("reference"))
    for grids in [[1, 2, 2]], [[1, 4, 6], [1, 8, 4]]:
        grid = torch.tensor(grids)
        patches = torch.randn(int(grid.prod(-1).sum()), call.kwargs["hidden_states"].shape[1])
        given = {"hidden_states": patches, "grid_thw": grid}
        with torch.no_grad():
            every = zip(*(tree_leaves(each(**given)) for each in (run, tower)), strict=True)
        for ours, theirs in every:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_larger_image_runs_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = sights.model("qwen2_vl")
    compiled = compiled_for(model, sights.patches((4, 4)))
    assert ran(model, compiled, [sights.patches((2, 4)), sights.patches((4, 6))]) == [{"tower_1": 1}, {}]
    (said,) = (each.getMessage() for each in caplog.records if each.name == encoder_parts.__name__)
    assert "[[1, 4, 6]]: it is compiled for float32[16, 96], [[1, 4, 4]]; frames of up to 16 patches" in said


def test_a_video_is_its_frames() -> None:
    model, _ = sights.model("qwen2_vl")
    compiled = compiled_for(model, sights.patches((4, 4)))
    given = sights.patches((4, 4))
    ids = given["input_ids"].masked_fill(given["input_ids"] == 98, 97)
    grid, pixels = torch.tensor([[2, 2, 4]]), given.pop("pixel_values")
    del given["image_grid_thw"]
    kinds = given["mm_token_type_ids"] * 2
    given |= {"input_ids": ids, "pixel_values_videos": pixels, "video_grid_thw": grid, "mm_token_type_ids": kinds}
    assert ran(model, compiled, [given]) == [{"tower_1": 2}]


def test_engines_of_every_size_read_the_weights_of_those_of_one() -> None:
    model, _ = sights.model("qwen2_5_vl")
    compiled = compiled_for(model, sights.patches((4, 4)), build=True, require_full_compilation=True)
    assert ran(model, compiled, [sights.patches((2, 4))]) == [{"tower_1": 1}]
    read = {port.name for each in compiled.compiled["tower_1"].partitioned.segments for port in each.inputs}
    assert any(name.endswith("blocks_1_attn_qkv_weight") for name in read)


def test_windows() -> None:
    """Of 3, 1 and 2 patches, of at most 4."""
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    ends = torch.tensor([0, 3, 4, 6], dtype=torch.int32)
    windows = Windows.from_ends(ends, 4)
    assert windows.real.sum(1).tolist() == [3, 1, 2]
    found, _ = attend_in_windows(torch.nn.Module(), q, k, v, scaling=0.5, cu_seq_lens_q=windows)
    parts = zip(*(x.split([3, 1, 2], dim=2) for x in (q, k, v)), strict=True)
    each = [torch.nn.functional.scaled_dot_product_attention(*part, scale=0.5) for part in parts]
    torch.testing.assert_close(found, torch.cat(each, 2).transpose(1, 2))


def test_segments_beside_a_frame_are_refused() -> None:
    x = torch.randn(1, 2, 6, 8)
    with pytest.raises(ValueError, match="several segments"):
        attend_in_windows(torch.nn.Module(), x, x, x, cu_seq_lens_q=torch.tensor([0, 2, 6]))


def _sees_all(x: torch.Tensor) -> torch.Tensor:
    return x + x.mean(0)


def _counts(x: torch.Tensor) -> torch.Tensor:
    return x * len(x)


@pytest.mark.parametrize("odd", [_sees_all, _counts])
def test_a_tower_whose_frames_are_not_apart_has_none(odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What it gives for several images is not what it gives for each."""
    tower, call = tower_and_call("qwen2_vl")
    assert group_of_any_size(PatchEncoders, tower, [call]) is not None
    tower.merger.register_forward_hook(lambda module, args, out: odd(out))
    assert group_of_any_size(PatchEncoders, tower, [call]) is None


def test_a_tower_that_reads_its_grid_has_none(caplog: pytest.LogCaptureFixture) -> None:
    """In Python: no program can be for every grid, and that of the example is there."""
    model, _ = sights.model("qwen2_vl")
    tower = model.model.visual
    own = type(tower).forward

    def forward(self: torch.nn.Module, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
        return own(self, hidden_states * max(1, grid_thw.tolist()[0][0]), grid_thw, **kwargs)

    tower.forward = forward.__get__(tower)
    compiled = compiled_for(model, sights.patches((4, 4)), require_full_compilation=True)
    assert set(compiled.compiled) == {"decoder", "tower"}


def test_a_tower_is_as_before() -> None:
    tower, call = tower_and_call("qwen2_5_vl")
    configs = [each.config for each in tower.modules() if hasattr(each, "config")]
    before = [each._attn_implementation for each in configs]
    found = group_of_any_size(PatchEncoders, tower, [call])
    assert found is not None
    pipeline.capture(found.module, **found.inputs)
    assert [each._attn_implementation for each in configs] == before and PatchEncoders.attention not in before


def test_answers_are_kept() -> None:
    tower, call = tower_and_call("qwen2_5_vl")
    found = group_of_any_size(PatchEncoders, tower, [call])
    assert found is not None
    with asked() as grids:
        for _ in range(2):
            found.split_call(EncoderCall(call.path, call.args, {"grid_thw": torch.tensor([[1, 8, 2]])}))
    assert grids == [[[1, 8, 2]]]


@contextmanager
def asked() -> Iterator[list[Any]]:
    """While entered, the grids of which something is asked are noted."""
    found: list[Any] = []
    real = part_families.precompute_values

    def noted(tower: torch.nn.Module, grid_thw: torch.Tensor) -> dict[str, Any]:
        found.append(grid_thw.tolist())
        return real(tower, grid_thw=grid_thw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_families, "precompute_values", noted)
        yield found


@pytest.mark.parametrize(
    "call",
    [
        EncoderCall("t", (torch.randn(4, 8),), {}),
        EncoderCall("t", (torch.randn(4, 8), torch.tensor([[1, 2, 4]])), {}),
        EncoderCall("t", (torch.randn(4, 8), torch.tensor([[2, 2]])), {}),
        EncoderCall("t", (torch.randn(1, 4, 8), torch.tensor([[1, 2, 2]])), {}),
        EncoderCall("t", (torch.randn(4, 8), torch.tensor([[1, 2, 2]]), torch.ones(4)), {}),
    ],
    ids=["no grid", "other grid", "sizes", "rows", "mask"],
)
def test_other_calls_are_no_pictures(call: EncoderCall) -> None:
    assert [group_of_any_size(family, torch.nn.Module(), [call]) for family in FAMILIES] == [None] * 3


def test_images_in_one_tensor_are_one_program() -> None:
    model, _ = sights.model("mistral3")
    compiled = compiled_for(model, sights.sized((42, 28)), require_full_compilation=True)
    name = max(compiled.compiled)  # the last of tower, tower_1 …
    sizes = [(28, 42)], [(42, 14)], [(42, 42)], [(28, 14), (14, 42), (42, 28)]
    found = ran(model, compiled, [sights.sized(*each) for each in sizes])
    assert [each.get(name) for each in found] == [1, 1, 1, 3]
    assert not compiled.compiled[name].coverage.fallback


def test_images_that_are_apart_have_no_mask() -> None:
    model, given = sights.model("mistral3")
    call = EncoderCall("t", (given["pixel_values"],), {"image_sizes": given["image_sizes"]})
    found = group_of_any_size(ImageEncoders, model.model.vision_tower, [call])
    assert found is not None and found.sizes[-2:] == (range(7, 29, 7), range(7, 29, 7))
    program = pipeline.capture(found.module, **found.inputs)
    compiled = pipeline.default().replace("build", pipeline.stages.unbuilt)(program)
    targets = {str(each.target) for each in compiled.coverage.converted}
    assert "aten.scaled_dot_product_attention.default" in targets
    assert not {"aten.full.default", "aten.slice_scatter.default"} & targets


def test_other_sizes_than_multiples_run_as_they_are() -> None:
    model, given = sights.model("mistral3")
    call = EncoderCall("t", (given["pixel_values"],), {"image_sizes": given["image_sizes"]})
    found = group_of_any_size(ImageEncoders, model.model.vision_tower, [call])
    assert found is not None
    for sizes, takes in ([[28, 21]], True), ([[28, 20]], False), ([[28, 0]], False):
        other = EncoderCall("t", call.args, {"image_sizes": torch.tensor(sizes)})
        assert bool(found.split_call(other)) == takes


@pytest.mark.parametrize("odd", [_sees_all, _counts])
def test_a_tower_whose_images_are_not_apart_has_none(odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, given = sights.model("mistral3")
    call = EncoderCall("t", (given["pixel_values"],), {"image_sizes": given["image_sizes"]})
    tower = model.model.vision_tower
    tower.ln_pre.register_forward_hook(lambda module, args, out: odd(out[0])[None])
    assert group_of_any_size(ImageEncoders, tower, [call]) is None


def test_images_of_one_patch_have_none() -> None:
    """They cannot vary, and the example has its program."""
    model, _ = sights.model("mistral3")
    call = EncoderCall("t", (torch.randn(1, 3, 7, 7),), {"image_sizes": torch.tensor([[7, 7]])})
    assert group_of_any_size(ImageEncoders, model.model.vision_tower, [call]) is None
