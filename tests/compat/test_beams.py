"""Several beams, or samples, of a prompt are rows of one call: a program's cache follows them as they change places."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.caches import FilledCache
from tests.compat import along, families

STEPS = 12
WAYS = {
    "beams": {"num_beams": 3},
    "the two best": {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.7},
    "drawn beams": {"num_beams": 2, "do_sample": True},
    "samples": {"do_sample": True, "num_return_sequences": 3},
}


def compiled_of(family: str) -> Any:
    return families.compiled(family, max_cache_len=32, max_batch=6, max_prompt_len=8).new_state()


@pytest.mark.parametrize("family", ["llama", "t5", "gemma2", "lfm2", "mamba"])
def test_beams_are_eagers(family: str) -> None:
    model, compiled, inputs = families.model(family), compiled_of(family), families.prompts(family, (5, 3))
    for options in WAYS.values():
        given = []
        for each in (model, compiled):
            torch.manual_seed(1)
            given.append(families.generated(each, inputs, STEPS, **options))
        assert torch.equal(*given)


@pytest.mark.parametrize("family", ["llama", "t5", "lfm2"])
def test_scores_are_those_of_the_tokens(family: str) -> None:
    model, compiled, inputs = families.model(family), compiled_of(family), families.prompts(family, (5, 3))
    how = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0}
    found: Any = families.generated(compiled, inputs, STEPS, return_dict_in_generate=True, output_scores=True, **how)
    assert len(found.sequences.unique(dim=0)) == 6
    logits = along.logits(model, inputs, found.sequences, STEPS)
    want = along.log_probability(logits, found.sequences)
    torch.testing.assert_close(found.sequences_scores, want, rtol=1e-4, atol=1e-4)


def test_each_beam_is_a_row() -> None:
    compiled, inputs = compiled_of("llama"), families.prompts("llama", (5, 3))
    with pytest.raises(pipeline.ShapeError, match="has size 8 in dimension 0; compiled for 1 to 6, its max_batch"):
        families.generated(compiled, inputs, STEPS, num_beams=4)


def test_a_cache_is_reordered_as_far_as_it_is_filled() -> None:
    compiled, inputs = compiled_of("llama"), families.prompts("llama", (5, 3))
    cache = compiled(**inputs).past_key_values
    assert isinstance(cache, FilledCache)
    state = compiled.runners["decoder"].state_dict()
    before = {name: value.clone() for name, value in state.items()}
    cache.reorder_cache(torch.tensor([1, 1]))
    for name, value in state.items():
        assert torch.equal(value[:2, :, :5], before[name][[1, 1], :, :5])
        assert torch.equal(value[:2, :, 5:], before[name][:2, :, 5:]) and torch.equal(value[2:], before[name][2:])
    assert torch.equal(cache.mask[0], cache.mask[1])  # type: ignore[index]


@pytest.fixture(scope="module")
def whisper() -> tuple[Any, Any]:
    """A model that marks times, and the same compiled."""
    model = families.model("whisper", vocab_size=199, max_target_positions=96)
    model.config.eos_token_id = 3
    says = {"no_timestamps_token_id": 100, "is_multilingual": False, "return_timestamps": True, "eos_token_id": 3}
    for name, value in says.items():
        setattr(model.generation_config, name, value)
    sizes = {"max_cache_len": 64, "max_batch": 2, "max_prompt_len": 8}
    return model, compile_for_generation(model, executor="reference", **sizes)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_beams": 2}, {"temperature": (0.0, 0.4), "logprob_threshold": -0.1, "compression_ratio_threshold": 1.3}],
    ids=["greedy", "beams", "temperatures"],
)
def test_whisper_hears_more_than_a_segment(whisper: tuple[Any, Any], options: dict[str, Any]) -> None:
    """It generates for each segment, and again at another temperature where it is not sure."""
    drawn, found = torch.Generator().manual_seed(0), []
    sound = torch.randn(1, 8, 70, generator=drawn)
    inputs = {"input_features": sound, "attention_mask": torch.ones(1, 70, dtype=torch.int64)}
    for each in whisper:
        torch.manual_seed(0)
        found.append(each.generate(**inputs, return_timestamps=True, max_new_tokens=12, **options))
    assert torch.equal(*found)
