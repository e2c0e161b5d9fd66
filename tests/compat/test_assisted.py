"""Assisted decoding: what another model, or the prompt, drafts is taken as far as the model would have said it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.sizes import Limits
from tests.compat import families

STEPS = 24
SCORED = {"return_dict_in_generate": True, "output_logits": True}
SIZES = {"max_cache_len": 64, "max_prompt_len": 8}


def assistant_of(family: str) -> Any:
    """A model that says the same for a while."""
    model, drawn = families.model(family), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn(each.shape, generator=drawn) * each.std().nan_to_num() * 0.3)
    model.generation_config.num_assistant_tokens = 4
    return model


def drafting(family: str, draft: int) -> Any:
    return families.compiled(family, max_draft_len=draft, **SIZES).new_state()


def check(family: str, draft: int, **options: Any) -> int:
    """Compile a family's model, and compare what it generates assisted with eager's; return its calls."""
    model, inputs = families.model(family), families.prompts(family, (7,))
    compiled, calls, found = drafting(family, draft), 0, []

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    compiled.runners["decoder"].register_forward_pre_hook(count)
    for each in (model, compiled):
        torch.manual_seed(0)
        given: Any = families.generated(each, inputs, STEPS, **SCORED, **options)
        found.append(given)
    assert torch.equal(*(each.sequences for each in found))
    torch.testing.assert_close(*(torch.cat(each.logits) for each in found), rtol=1e-4, atol=1e-4)
    return calls


@pytest.mark.parametrize("family", ["llama", "t5", "gemma2", "whisper"])
def test_tokens_are_eagers_where_the_prompt_drafts(family: str) -> None:
    assert check(family, 3, prompt_lookup_num_tokens=3) < STEPS


@pytest.mark.parametrize("draft", [0, 2, 5])
@pytest.mark.parametrize("sample", [False, True])
def test_tokens_are_eagers_where_a_model_drafts(draft: int, sample: bool) -> None:
    calls = check("llama", draft, assistant_model=assistant_of("llama"), do_sample=sample)
    assert calls > STEPS if draft == 0 else calls <= STEPS


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_compiled_model_assists(family: str) -> None:
    model, inputs, assistant = families.model(family), families.prompts(family, (7,)), assistant_of(family)
    want = families.generated(model, inputs, STEPS)
    compiled = compile_for_generation(model, executor="reference", max_draft_len=3, **SIZES)
    other = compile_for_generation(assistant, executor="reference", **SIZES)
    assert not compiled.compiled["decoder"].coverage.fallback
    other.generation_config.num_assistant_tokens = 4
    for each in (other, compiled.new_state(), other):
        assert torch.equal(families.generated(compiled, inputs, STEPS, assistant_model=each), want)
    with pytest.raises(ValueError, match="shares its cache"):
        families.generated(compiled, inputs, STEPS, assistant_model=compiled)


def test_drafts_have_an_engine_of_their_own() -> None:
    compiled, plain = (drafting("llama", draft).compiled["decoder"] for draft in (3, 0))
    lengths = []
    for each in (compiled, plain):
        symbol = next(str(port.shape[1]) for port in each.program.inputs if port.name == "input_ids")
        lengths.append([(profile[symbol].min, profile[symbol].max) for profile in each.program.profiles])
    assert lengths == [[(1, 1), (2, 4), (2, 8)], [(1, 1), (2, 8)]]
    assert {port.name for port in compiled.program.inputs} - {port.name for port in plain.program.inputs} == {"wanted"}


def test_what_cannot_go_back_is_refused_in_words() -> None:
    compiled, llama = (drafting(family, 0) for family in ("lfm2", "llama"))
    for model, how in ((compiled, {"prompt_lookup_num_tokens": 2}), (llama, {"assistant_model": compiled})):
        with pytest.raises(ValueError, match="Lfm2ForCausalLM has recurrent states, which assisted decoding cannot"):
            families.generated(model, families.prompts("llama", (5,)), 4, **how)
    cache = compiled(**families.prompts("llama", (5,))).past_key_values
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.crop(-1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assistant_early_exit": 1}, "cannot use assistant_early_exit=1: the engine always runs all layers"),
        ({"output_hidden_states": True}, "cannot use output_hidden_states=True: the engines return no hidden states"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search"),
        ({"cache_implementation": "static"}, "a compiled model always uses its own cache"),
    ],
)
def test_what_engines_do_not_give_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        families.generated(drafting("llama", 0), families.prompts("llama", (3,)), 2, **options)


def test_a_checkpoint_may_ask_for_another_cache() -> None:
    """As those of Gemma 2 do: it changes no token."""
    model, inputs = families.model("llama"), families.prompts("llama", (5,))
    want = families.generated(model, inputs, 6)
    model.generation_config.cache_implementation = "static"
    unbuilt = pipeline.default().replace("build", pipeline.stages.unbuilt)
    compiled = compile_for_generation(model, compile=unbuilt, executor="reference", **SIZES)
    assert torch.equal(families.generated(compiled, inputs, 6), want)
    assert model.generation_config.cache_implementation == "static"


def test_a_draft_leaves_a_token_of_a_call() -> None:
    with pytest.raises(ValueError, match="max_draft_len is 8: expected 0 to max_prompt_len - 1"):
        compile_for_generation(families.model("llama"), max_draft_len=8, **SIZES)


@pytest.mark.parametrize("draft", [0, 1, 3, 7])
def test_calls_take_all_tokens_and_give_all_that_is_wanted(draft: int) -> None:
    limits = Limits(64, 1, 8, draft)
    for length in range(1, 40):
        for wanted in range(1, length + 1):
            calls = limits.split_tokens(length, wanted)
            assert sum(size for size, _ in calls) == length
            assert all(1 <= count <= size <= 8 and count <= draft + 1 for size, count in calls)
            behind = [count for size, count in calls if size == count]
            last = next((count for size, count in reversed(calls) if size != count), 0)
            assert sum(behind) + last >= wanted, "of the last calls all tokens, or the last ones, have logits"


@pytest.fixture
def llama() -> Any:
    return families.compiled("llama", max_cache_len=32, max_batch=6, max_prompt_len=8).new_state()


def test_a_loop_by_hand(llama: Any) -> None:
    model, ids = families.model("llama"), families.prompts("llama", (7,))["input_ids"]
    out, tokens = llama(input_ids=ids), []
    for _ in range(6):
        tokens.append(out.logits[:, -1:].argmax(-1))
        out = llama(input_ids=tokens[-1], past_key_values=out.past_key_values)
    assert torch.equal(torch.cat([ids, *tokens], 1), families.generated(model, {"input_ids": ids}, 6))


@pytest.mark.parametrize("chunk", [3, 11])
def test_a_prompt_in_chunks(llama: Any, chunk: int) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", (9, 6))
    ours = families.generated(llama, inputs, 6, prefill_chunk_size=chunk)
    assert torch.equal(ours, families.generated(model, inputs, 6))


def test_a_cache_that_another_sequence_has_overwritten_is_an_error(llama: Any) -> None:
    inputs = families.prompts("llama", (5,))
    cache = llama(**inputs).past_key_values
    other = llama(**inputs).past_key_values
    assert len(other.self_attention_cache.layers) == 2, "the later one can be read"
    for use in (
        lambda: llama(input_ids=torch.tensor([[4]]), past_key_values=cache),
        lambda: cache.reorder_cache(torch.tensor([0])),
        lambda: cache.self_attention_cache,
    ):
        with pytest.raises(pipeline.ExecutionError, match="overwritten by another sequence"):
            use()


def test_a_loop_by_hand_behind_an_encoder() -> None:
    model, compiled = families.model("t5"), drafting("t5", 3)
    inputs, ids = families.prompts("t5", (7,)), torch.zeros(1, 1, dtype=torch.int64)
    heard = compiled.get_encoder()(inputs["input_ids"], inputs["attention_mask"])
    out, tokens = compiled(decoder_input_ids=ids, encoder_outputs=heard), [ids]
    for _ in range(6):
        tokens.append(out.logits[:, -1:].argmax(-1))
        out = compiled(decoder_input_ids=tokens[-1], encoder_outputs=heard, past_key_values=out.past_key_values)
    assert torch.equal(torch.cat(tokens, 1), families.generated(model, inputs, 6))
    with pytest.raises(pipeline.ExecutionError, match="encoder_outputs is missing"):
        compiled(decoder_input_ids=ids)


def test_a_cache_of_another_model_is_an_error(llama: Any) -> None:
    cache = families.model("llama")(**families.prompts("llama", (5,))).past_key_values
    with pytest.raises(pipeline.ExecutionError, match="past_key_values is a DynamicCache with tokens"):
        llama(input_ids=torch.tensor([[4]]), past_key_values=cache)
