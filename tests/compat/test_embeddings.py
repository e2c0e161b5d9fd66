"""Prompts that are embeddings: soft prompts, and what a model around a language model makes of images or sound."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation
from tests.compat import families
from tests.compat.test_seeing import SCORED, agree

SIZES = {"max_cache_len": 40, "max_batch": 2, "max_prompt_len": 8, "executor": "reference"}
FAMILIES = ("llama", "gpt2", "qwen3_next", "mamba", "t5")


def unbuilt() -> Any:
    return pipeline.default(require_full_compilation=True).replace("build", pipeline.stages.unbuilt)


def prompt(model: Any, rows: int, length: int, hidden: int = 0) -> dict[str, torch.Tensor]:
    """Embeddings, the first ones of the first row hidden."""
    width = model.get_input_embeddings().weight.shape[1]
    made = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(length))
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[0, :hidden] = 0
    return {"inputs_embeds": made, "attention_mask": mask}


@functools.lru_cache(maxsize=1)
def made(family: str) -> tuple[Any, Any]:
    """A model, and the same compiled for embeddings."""
    model = families.model(family)
    return model, compile_for_generation(model, encoder_example=prompt(model, 1, 3), compile=unbuilt(), **SIZES)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_eagers(family: str) -> None:
    model, compiled = made(family)
    assert set(compiled.compiled) == ({"encoder", "decoder"} if family == "t5" else {"decoder"})
    ids = torch.tensor([[5, 9, 3]])
    calls = {
        "one": prompt(model, 1, 5),
        "a row that is shorter": prompt(model, 2, 7, 3),
        "a single token": prompt(model, 2, 1),
        "more than a call takes": prompt(model, 1, 20),
        "no mask": {"inputs_embeds": prompt(model, 1, 4)["inputs_embeds"]},
        "text": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
    }
    for given in calls.values():
        agree(*(each.generate(**given, **SCORED) for each in (compiled, model)))


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_beams_of_embeddings(family: str) -> None:
    model, compiled = made(family)
    agree(*(each.generate(**prompt(model, 1, 5), num_beams=2, **SCORED) for each in (compiled, model)))


def test_ids_before_embeddings_are_kept() -> None:
    """``generate`` returns them before what it generates."""
    model, compiled = made("llama")
    ids, given = torch.tensor([[5, 9, 3]]), prompt(model, 1, 3)
    found, want = (each.generate(input_ids=ids, **given, **SCORED) for each in (compiled, model))
    agree(found, want)
    assert found.sequences[0, :3].tolist() == [5, 9, 3]


class Captions(torch.nn.Module):
    """A user's own model around a language model."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model, self.project = language_model, torch.nn.Linear(6, 32)

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> Any:
        """[rows, features, 6], [rows, length] -> what it generates"""
        embed = self.language_model.get_input_embeddings()
        return self.language_model.generate(inputs_embeds=torch.cat([self.project(features), embed(ids)], 1), **SCORED)


def test_a_model_around_a_language_model() -> None:
    model, compiled = made("llama")
    captions = Captions(model).eval()
    features, ids = torch.randn(2, 4, 6), torch.tensor([[5, 9], [3, 3]])
    want = captions(features, ids)
    captions.language_model = compiled
    agree(captions(features, ids), want)


def test_blip_2_has_a_language_model_inside() -> None:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    seen = {**sizes, "intermediate_size": 48, "image_size": 28, "patch_size": 14}
    asked = {**sizes, "intermediate_size": 48, "vocab_size": 99, "encoder_hidden_size": 32}
    text = {**sizes, "model_type": "opt", "ffn_dim": 48, "vocab_size": 99, "word_embed_proj_dim": 32}
    text |= {"max_position_embeddings": 64, "eos_token_id": None}
    config = transformers.Blip2Config(
        vision_config=seen, qformer_config=asked, text_config=text, num_query_tokens=4, image_token_index=98
    )
    torch.manual_seed(0)
    model = transformers.Blip2ForConditionalGeneration(config).eval()
    ids = torch.tensor([[98, 98, 98, 98, 5, 7]])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 28, 28)}
    want = model.generate(**given, **SCORED)
    with pytest.raises(pipeline.CaptureError, match="generate calls generate of its submodule language_model"):
        compile_for_generation(model, encoder_example=given, compile=unbuilt(), **SIZES)
    inside = model.language_model
    example = prompt(inside, 1, 6)
    model.language_model = compile_for_generation(inside, encoder_example=example, compile=unbuilt(), **SIZES)
    agree(model.generate(**given, **SCORED), want)


def test_what_it_is_not_compiled_for_is_said() -> None:
    llama, t5 = families.model("llama"), families.model("t5")
    for model, error in ((llama, "the model is compiled for token ids"), (t5, "encoder's input input_ids is missing")):
        text = compile_for_generation(model, compile=unbuilt(), **SIZES)
        with pytest.raises(pipeline.ExecutionError, match=f"{error}(?s:.*)encoder_example={{'inputs_embeds': …}}"):
            text.generate(**prompt(model, 1, 3), max_new_tokens=2)
    ids = {"input_ids": torch.tensor([[3, 4]])}
    with pytest.raises(pipeline.CaptureError, match="does not pass inputs_embeds to its encoder"):
        compile_for_generation(t5, encoder_example=ids, compile=unbuilt(), **SIZES)
