"""Language models that see or hear: their own code makes embeddings of a prompt, and engines go on from these."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation, generation
from tests.compat import families, sights

SIZES = {"max_cache_len": 48, "max_batch": 3, "max_prompt_len": 16}
SCORED = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
Given = dict[str, torch.Tensor]


@functools.lru_cache(maxsize=2)
def made(name: str, **sizes: int) -> tuple[Any, Any, Given]:
    """A model, the same compiled, and a prompt."""
    model, given = sights.model(name)
    unbuilt = pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)
    how = {**SIZES, **sizes, "encoder_example": given, "compile": unbuilt, "executor": "reference"}
    return model, compile_for_generation(model, **how), given


def agree(ours: Any, theirs: Any) -> None:
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(torch.cat(ours.logits), torch.cat(theirs.logits), rtol=1e-4, atol=1e-4)


def others(given: Given) -> Given:
    return {name: -2 * x if x.is_floating_point() else x for name, x in given.items()}


@pytest.mark.parametrize("name", [name for name in sights.SIGHTS if name not in sights.ALIKE])
def test_tokens_are_eagers(name: str) -> None:
    (model, compiled, given), calls = made(name), []
    handle = compiled.runners["tower"].register_forward_pre_hook(lambda *_: calls.append(1))
    want = model.generate(**given, **SCORED)
    agree(compiled.generate(**given, **SCORED), want)
    again = compiled.generate(**others(given), **SCORED)
    agree(again, model.generate(**others(given), **SCORED))
    assert (again.logits[0] - want.logits[0]).abs().max() > 0.1, "what is seen matters"
    text = {
        "input_ids": torch.tensor([[0, 0, 5, 7], [4, 6, 8, 9]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1] * 4]),
    }
    agree(compiled.generate(**text, **SCORED), model.generate(**text, **SCORED))
    assert len(calls) == 2, "the tower's program runs for an image"
    handle.remove()


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_beams_see_the_same(name: str) -> None:
    model, compiled, given = made(name)
    agree(*(each.generate(**given, num_beams=3, **SCORED) for each in (compiled, model)))


def test_a_model_that_sees_is_not_saved(tmp_path: Path) -> None:
    _, compiled, _ = made("gemma3")
    with pytest.raises(pipeline.ArtifactError, match=r"takes images or audio: .*\n  hint: .*cache_built_engines=True"):
        compiled.save(tmp_path / "llm.trtp")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_another_turn_goes_on(name: str) -> None:
    """Also while another sequence is generated."""
    model, compiled, given = made(name)
    other, found = compiled.new_state(), []
    for each in (model, other):
        first = each.generate(**given, **SCORED)
        compiled.generate(input_ids=torch.tensor([[3, 4]]), max_new_tokens=2)
        ids = torch.cat([first.sequences, torch.tensor([[3, 9]])], 1)
        more = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "past_key_values": first.past_key_values}
        kinds = [name for name in given if name.endswith("token_type_ids")]
        more |= {name: torch.nn.functional.pad(given[name], (0, ids.shape[1] - given[name].shape[1])) for name in kinds}
        found.append(each.generate(**more, **SCORED))
    agree(*found)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl"])
def test_another_turn_has_another_image(name: str) -> None:
    model, compiled, given = made(name)
    found = []
    for each in (model, compiled):
        first = each.generate(**{**given, **SCORED, "max_new_tokens": 4})
        more, behind = others(given), (given["input_ids"].shape[1] + 4, 0)
        for kind in ("mm_token_type_ids", "token_type_ids"):
            if kind in more:
                more[kind] = torch.nn.functional.pad(more[kind], behind)
        more["input_ids"] = torch.cat([first.sequences, given["input_ids"]], 1)
        more["attention_mask"] = torch.ones_like(more["input_ids"])
        found.append(each.generate(**more, past_key_values=first.past_key_values, **SCORED))
    if name == "gemma3":  # transformers 5.17 loses where the second image is; both in one prompt are right
        kinds = (more["input_ids"] == sights.IMAGE).long()
        pixels = torch.cat([given["pixel_values"], more["pixel_values"]])
        found[0] = model.generate(**{**more, "token_type_ids": kinds, "pixel_values": pixels}, **SCORED)
    agree(*found)


@pytest.mark.parametrize("name", ["gemma3", "qwen2_vl"])
def test_two_prompts_with_an_image_each(name: str) -> None:
    model, compiled, given = made(name)
    pad = torch.nn.functional.pad
    both = {n: torch.cat([x, others({n: x})[n]]) for n, x in given.items()}
    for each in ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"):
        if each in both:
            one, two = given[each][0], given[each][0][1:]
            both[each] = torch.stack([one, pad(two, (1, 0))])
    agree(*(each.generate(**both, **SCORED) for each in (compiled, model)))


def test_a_long_prompt_takes_several_calls() -> None:
    model, compiled, given = made("qwen3_vl", max_prompt_len=3)
    agree(*(each.generate(**given, **SCORED) for each in (compiled, model)))
    _, whole, given = made("gemma3", max_prompt_len=3)
    with pytest.raises(pipeline.ExecutionError, match="the tokens of an image must be in one call"):
        whole.generate(**given, **SCORED)


def test_other_images_run_in_pytorch() -> None:
    model, compiled, given = made("qwen2_5_vl")
    ids = torch.tensor([[5, 96, *[sights.IMAGE] * 2, 7]])
    wide = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == sights.IMAGE).long()}
    wide |= {"pixel_values": given["pixel_values"][:8], "image_grid_thw": torch.tensor([[1, 2, 4]])}
    calls = []
    handle = compiled.runners["tower"].register_forward_pre_hook(lambda *_: calls.append(1))
    agree(*(each.generate(**wide, **SCORED) for each in (compiled, model)))
    assert not calls
    handle.remove()


def test_a_tower_that_cannot_be_captured_stays_and_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, given = sights.model("llava")

    def capture(module: torch.nn.Module, *args: Any, **kwargs: Any) -> pipeline.Program:
        if module is model.model.vision_tower:
            raise pipeline.CaptureError("it prints what it sees")
        return pipeline.capture(module, *args, **kwargs)

    monkeypatch.setattr(generation, "capture", capture)
    how = {"encoder_example": given, "executor": "reference", **SIZES}
    unbuilt, whole = (
        pipeline.default(require_full_compilation=all_of_it).replace("build", pipeline.stages.unbuilt)
        for all_of_it in (False, True)
    )
    compiled = compile_for_generation(model, compile=unbuilt, **how)
    assert set(compiled.compiled) == {"decoder"}
    assert "model.vision_tower (CLIPVisionModel) runs in PyTorch: it prints" in caplog.text
    agree(*(each.generate(**given, **SCORED) for each in (compiled, model)))
    with pytest.raises(pipeline.CaptureError, match="it prints"):
        compile_for_generation(model, compile=whole, **how)


def test_an_example_shows_what_prompts_have() -> None:
    model, given = sights.model("gemma3")
    unbuilt = pipeline.default().replace("build", pipeline.stages.unbuilt)
    text = {name: given[name][:, -2:] for name in ("input_ids", "attention_mask", "token_type_ids")}
    compiled = compile_for_generation(model, encoder_example=text, compile=unbuilt, executor="reference", **SIZES)
    agree(*(each.generate(**text, **SCORED) for each in (compiled, model)))
    with pytest.raises(pipeline.ExecutionError, match="other inputs than encoder_example did"):
        compiled.generate(**given, **SCORED)


def test_what_is_drafted_goes_behind_what_is_seen() -> None:
    model, compiled, given = made("llava", max_draft_len=3)
    agree(*(each.generate(**given, prompt_lookup_num_tokens=3, **SCORED) for each in (compiled, model)))


def test_engines_have_all_but_what_sees() -> None:
    model, given = sights.model("llava")
    model.generation_config.update(cache_implementation="static", num_beams=2, num_return_sequences=2)
    compiled = compile_for_generation(model, encoder_example=given, executor="reference", **SIZES)
    model.generation_config.update(cache_implementation=None, num_beams=1, num_return_sequences=1)
    compiled.generation_config.update(num_beams=1, num_return_sequences=1)
    assert set(compiled.compiled) == {"decoder", "tower"}
    assert not any(each.coverage.fallback for each in compiled.compiled.values())
    agree(*(each.generate(**given, **SCORED) for each in (compiled, model)))
    held = {name for name, each in compiled.named_parameters() if not each.is_meta}
    assert held and not any("layers" in name and "language_model" in name for name in held)
    assert {p.data_ptr() for n, p in compiled.named_parameters() if n in held} <= {
        p.data_ptr() for p in model.parameters()
    }


def test_what_cannot_be_is_said() -> None:
    model, given = sights.model("llava")
    llama = families.model("llama")
    with pytest.raises(ValueError, match="max_cache_len is 6: expected at least 7, the tokens of encoder_example"):
        compile_for_generation(model, encoder_example=given, max_cache_len=6)
    with pytest.raises(
        ValueError, match="encoder_example is a tensor, but LlavaForConditionalGeneration has no encoder"
    ):
        compile_for_generation(model, encoder_example=given["pixel_values"], **SIZES)
    with pytest.raises(pipeline.CaptureError, match=r"T5ForConditionalGeneration\.generate fails for encoder_example"):
        compile_for_generation(families.model("t5"), encoder_example=given, **SIZES)
    with pytest.raises(pipeline.CaptureError, match=r"LlamaForCausalLM\.generate fails for encoder_example"):
        compile_for_generation(llama, encoder_example=given, **SIZES)
    with pytest.raises(pipeline.CaptureError, match="LlamaForCausalLM passes no inputs_embeds to its language model"):
        compile_for_generation(llama, encoder_example={"input_ids": given["input_ids"]}, **SIZES)
    unbuilt = pipeline.default().replace("build", pipeline.stages.unbuilt)
    text = compile_for_generation(model, compile=unbuilt, executor="reference", **SIZES)
    with pytest.raises(
        ValueError, match="pixel_values, but the model is compiled for text alone: pass encoder_example"
    ):
        text.generate(**given, max_new_tokens=2)


def test_a_model_that_reads_its_prompts_in_another_way_is_refused() -> None:
    model, given = sights.model("llava")
    decoder = model.get_decoder()
    forward = decoder.forward

    def other(**inputs: Any) -> Any:
        inputs["inputs_embeds"] = inputs["inputs_embeds"] * (2.0 if inputs["past_key_values"].is_initialized else 1.0)
        return forward(**{**inputs, "attention_mask": None})

    decoder.forward = other
    with pytest.raises(pipeline.CaptureError, match="is not supported with images or audio"):
        compile_for_generation(model, encoder_example=given, **SIZES)
