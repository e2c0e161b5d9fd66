"""Towers of models that see, compiled for examples of several sizes: programs run what is between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation, encoder_parts, generation
from pipeline.compat.transformers.modality_encoders import EncoderCall, select_calls
from tests.compat import sights
from tests.compat.families import SMALL
from tests.compat.test_seeing import SCORED, agree

SIZES = {"max_cache_len": 64, "max_batch": 2, "max_prompt_len": 48, "executor": "reference"}
Given = dict[str, torch.Tensor]


def compiled_for(model: Any, *examples: Given, build: bool = False, **settings: Any) -> Any:
    stages = pipeline.default(**settings)
    stages = stages if build else stages.replace("build", pipeline.stages.unbuilt)
    return compile_for_generation(model, encoder_example=list(examples), compile=stages, **SIZES)


def ran(model: Any, compiled: Any, calls: Sequence[Given]) -> list[dict[str, int]]:
    """How often the programs of towers ran in each call; its logits agree with those of the model."""
    count: Counter[str] = Counter()
    handles = [
        each.register_forward_pre_hook(lambda *_, name=name: count.update([name]))
        for name, each in compiled.runners.items()
        if name != "decoder"
    ]
    found = []
    for given in calls:
        count.clear()
        agree(*(each.generate(**given, **SCORED) for each in (compiled, model)))
        found.append(dict(count))
    for handle in handles:
        handle.remove()
    return found


def test_several_images_are_one_program(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = sights.model("llava")
    compiled = compiled_for(model, sights.images(1), sights.images(3), require_full_compilation=True)
    assert set(compiled.compiled) == {"decoder", "tower"}

    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == encoder_parts.__name__]

    found = ran(model, compiled, [sights.images(count) for count in (1, 2, 3, 2)])
    assert found == [{"tower": 1}] * 4 and not told()
    assert ran(model, compiled, [sights.images(4), sights.images(4)]) == [{}, {}]
    (said,) = told()
    assert "model.vision_tower runs in PyTorch for float32[4, 3, 28, 28]: it is compiled for " in said
    assert "float32[1, 3, 28, 28] to float32[3, 3, 28, 28]. To compile it for these sizes too" in said


def test_images_in_more_tiles_are_one_program() -> None:
    model, _ = sights.model("llava_next")
    shapes = (1, 2), (2, 2), (2, 1)
    wide, both, high = (sights.tiles(*shape) for shape in shapes)
    compiled = compiled_for(model, both, wide, require_full_compilation=True)
    assert ran(model, compiled, [wide, both, high]) == [{"tower": 1}] * 3


def test_each_grid_has_a_program() -> None:
    model, _ = sights.model("qwen2_5_vl")
    grids = [sights.patches((4, 4)), sights.patches((2, 4)), sights.patches((4, 4))]
    compiled = compiled_for(model, *grids, build=True, require_full_compilation=True)
    assert set(compiled.compiled) == {"decoder", "tower", "tower_1", "tower_2"}  # the last is for other grids
    assert ran(model, compiled, grids) == [{"tower": 1}, {"tower_1": 1}, {"tower": 1}]
    for name in ("tower", "tower_1"):
        segments = compiled.compiled[name].partitioned.segments
        read = {port.name for segment in segments for port in segment.inputs}
        assert {f"p_blocks_{i}_{kind}_weight" for i in (0, 1) for kind in ("attn_qkv", "mlp_down_proj")} <= read


def test_sizes_that_no_program_can_have_together_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = sights.model("llava")

    def capture(module: torch.nn.Module, *args: Any, dynamic_shapes: Any = None, **kwargs: Any) -> pipeline.Program:
        if module is model.model.vision_tower and any(each is not None for each in tree_leaves(dynamic_shapes)):
            raise pipeline.CaptureError("it counts its images")
        return pipeline.capture(module, *args, dynamic_shapes=dynamic_shapes, **kwargs)

    monkeypatch.setattr(generation, "capture", capture)
    compiled = compiled_for(model, *(sights.images(count) for count in (1, 3)))
    found = ran(model, compiled, [sights.images(count) for count in (1, 2, 3)])
    assert found == [{"tower": 1}, {}, {"tower_1": 1}]


def test_sizes_between_that_a_program_refuses_run_in_pytorch() -> None:
    known = (EncoderCall("t", (torch.zeros(2, width),), {}) for width in (4, 8))
    sizes = encoder_parts.group_of_whole_calls(torch.nn.Identity(), tuple(known))
    assert sizes.split_call(EncoderCall("t", (torch.zeros(2, 6),), {}))

    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise pipeline.ShapeError("x", 1, x.shape[1], (4, 8), "a multiple of 4")

    tower = encoder_parts.ModalityEncoder(torch.nn.Identity(), "t", [(sizes, refuse)])
    x = torch.randn(2, 6)
    assert tower(x) is x


def test_prompts_of_text_beside_those_of_images() -> None:
    """What reaches the language model is that of both."""
    model, given = sights.model("gemma3")
    text = {name: given[name][:, -2:] for name in ("input_ids", "attention_mask", "token_type_ids")}
    compiled = compiled_for(model, text, given)
    assert ran(model, compiled, [text, given]) == [{}, {"tower": 1}]


def test_what_is_far_smaller_than_a_tower_is_none() -> None:
    """A model may see in two resolutions, or hear too."""
    model, _ = sights.model("llava")
    model.model.other = torch.nn.Conv2d(3, 64, 14, 14)
    parts = model.model.vision_tower, model.model.other, torch.nn.Linear(8, 8)
    model.model.small = parts[-1]
    called: Any = [(each, (), {}) for each in parts]
    assert [call.path for call in select_calls(model, called)] == ["model.vision_tower", "model.other"]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "exaone4_5", "gemma4"])
def test_text_without_an_example(name: str) -> None:
    """Whose positions are of several dims, or count hidden tokens; whose layers share keys and values."""
    model, _ = sights.model(name)
    unbuilt = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    compiled = compile_for_generation(model, compile=unbuilt, **SIZES)
    ids, mask = torch.tensor([[0, 0, 5, 7], [4, 6, 8, 9]]), torch.tensor([[0, 0, 1, 1], [1] * 4])
    agree(*(each.generate(input_ids=ids, attention_mask=mask, **SCORED) for each in (compiled, model)))


def test_text_of_a_model_whose_layers_attend_to_images() -> None:
    """Mllama: without an image these layers have no keys, and are left out."""
    from transformers import MllamaConfig, MllamaForConditionalGeneration

    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "image_size": 28}
    tower |= {"intermediate_size": 48, "vision_output_dim": 64, "patch_size": 14, "max_num_tiles": 2}
    tower |= {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}
    text = {name: value for name, value in SMALL.items() if name != "head_dim"}
    text |= {"num_hidden_layers": 3, "cross_attention_layers": [1]}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(MllamaConfig(vision_config=tower, text_config=text)).eval()
    unbuilt = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    compiled = compile_for_generation(model, compile=unbuilt, **SIZES)
    ids = torch.tensor([[5, 7, 9]])
    agree(*(each.generate(input_ids=ids, **SCORED) for each in (compiled, model)))


def test_drafts_of_layers_that_share_keys() -> None:
    """Logits of several rows are wanted then, and of one where a prompt is."""
    model, given = sights.model("gemma4")
    unbuilt = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    compiled = compile_for_generation(model, encoder_example=given, compile=unbuilt, max_draft_len=3, **SIZES)
    agree(*(each.generate(**given, prompt_lookup_num_tokens=3, **SCORED) for each in (compiled, model)))


@pytest.mark.parametrize("name", ["gemma4", "gemma3n"])
def test_ids_that_are_embedded_in_another_way(name: str) -> None:
    """Those of images and sounds, if they are generated: engines take them alone."""
    model, given = sights.model(name)
    compiled = compiled_for(model, given)
    for token in range(88, 99):
        found = []
        for each in (compiled, model):
            with torch.no_grad():
                past = each(input_ids=torch.tensor([[5]]), use_cache=True).past_key_values
                found.append(each(input_ids=torch.tensor([[token]]), past_key_values=past, use_cache=True).logits)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("odd", [[], [torch.zeros(1)], 5])
def test_other_examples_are_refused(odd: Any) -> None:
    model, _ = sights.model("llava")
    with pytest.raises(TypeError, match="pass a tensor, processor output"):
        compile_for_generation(model, encoder_example=odd, **SIZES)
