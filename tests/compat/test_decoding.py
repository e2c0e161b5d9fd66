"""Compiled text models decode without a wait for the GPU, and end where transformers ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.sampling import LastStep
from tests.compat import families

SIZES = {"max_cache_len": 160, "max_batch": 3, "max_prompt_len": 16}
LENGTHS = (5, 3, 7)


@pytest.fixture(scope="module")
def llama() -> Any:
    return compile_for_generation(families.model("llama"), executor="reference", **SIZES)


@pytest.mark.parametrize("sampled", [False, True])
def test_sequences_end_where_transformers_ends_them(llama: Any, sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", LENGTHS)
    free = families.generated(model, inputs, 24)
    ends = [int(t) for t in free[:2, -20]]
    how: Any = {"do_sample": sampled, "top_k": 12, "eos_token_id": ends, "pad_token_id": 0, "min_new_tokens": 0}
    found, after, reads = [], [], []
    read = LastStep.read_has_ended
    monkeypatch.setattr(LastStep, "read_has_ended", lambda self: reads.append(1) or read(self))
    for each in (model, llama):
        torch.manual_seed(5)
        found.append(families.generated(each, inputs, 24, **how))
        after.append(torch.rand(2))
    assert torch.equal(*found) and torch.equal(*after), "the step that is dropped draws no random numbers"
    assert sampled or ((found[0][:2, -1] == 0).all() and found[0][2, -1] != 0), "two sequences end before the third"
    assert len(reads) >= found[0].shape[1] - max(LENGTHS) - 1, "the loop is not transformers'"


@pytest.mark.parametrize("last", [False, True])
def test_the_step_after_the_end_is_dropped(llama: Any, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", (4,))
    free = model.generate(**inputs, max_new_tokens=12, eos_token_id=None)
    ends = int(free[0, 4 + 11 if last else 4 + 5])
    order: list[str] = []
    read, forward = LastStep.read_has_ended, type(llama).forward
    monkeypatch.setattr(LastStep, "read_has_ended", lambda self: order.append("read") or read(self))
    monkeypatch.setattr(type(llama), "forward", lambda self, **given: order.append("step") or forward(self, **given))
    cache = llama(input_ids=inputs["input_ids"][:, :2]).past_key_values
    order.clear()
    given = {"eos_token_id": ends, "pad_token_id": 0, "past_key_values": cache}
    found = llama.generate(**inputs, max_new_tokens=12, **given)
    assert torch.equal(found, model.generate(**inputs, max_new_tokens=12, eos_token_id=ends, pad_token_id=0))
    assert cache.length == found.shape[1] - 1, "as transformers leaves it: without the last token"
    assert order[:3] == ["step", "step", "read"], "the host starts a step before it waits for the flag of the last"


@pytest.mark.parametrize("ends", [False, True])
def test_a_streamer_gets_the_tokens(llama: Any, ends: bool) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", (4,))
    free = model.generate(**inputs, max_new_tokens=8, eos_token_id=None)
    how: Any = {"max_new_tokens": 8, "eos_token_id": int(free[0, 8]) if ends else None, "pad_token_id": 0}
    ours, theirs = families.Streamed(), families.Streamed()
    model.generate(**inputs, **how, streamer=theirs)
    llama.generate(**inputs, **how, streamer=ours)
    assert ours.got == theirs.got and ours.got[-1] == "end"


def test_a_cache_may_be_full_at_the_end() -> None:
    model, inputs = families.model("llama"), families.prompts("llama", (4,))
    free = model.generate(**inputs, max_new_tokens=7, eos_token_id=None)
    sizes = {**SIZES, "max_cache_len": 10, "max_prompt_len": 8}
    compiled = compile_for_generation(model, executor="reference", **sizes)
    how: Any = {"max_new_tokens": 40, "eos_token_id": int(free[0, -1]), "pad_token_id": 0}
    assert torch.equal(compiled.generate(**inputs, **how), model.generate(**inputs, **how))
