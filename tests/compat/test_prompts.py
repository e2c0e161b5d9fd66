"""Prompts of every length: in one call or several, by engines of their range or of just their size."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from pipeline.compat.transformers import compile_for_generation
from tests.compat import families
from tests.compat.test_generation import EVERYDAY, LENGTHS, SIZES, UNBUILT


def check_in_pieces(family: str) -> None:
    """A prompt of more tokens than a call takes: in calls of three, and a last one of one."""
    model, inputs = families.model(family), families.prompts(family, LENGTHS)
    expected = families.generated(model, inputs, 8)
    sizes = {**SIZES, "max_prompt_len": 3}
    compiled = compile_for_generation(model, executor="reference", **sizes, **UNBUILT)
    assert torch.equal(families.generated(compiled, inputs, 8), expected)
    assert torch.equal(families.generated(compiled.new_state(), inputs, 8), expected)


@pytest.mark.parametrize("family", EVERYDAY)
def test_a_long_prompt_takes_several_calls(family: str) -> None:
    check_in_pieces(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bloom", "deepseek_v3", "gpt2", "mistral", "whisper"])
def test_a_long_prompt_takes_several_calls_whatever_the_positions(family: str) -> None:
    check_in_pieces(family)


@pytest.mark.parametrize("shared", [True, False])
def test_prompts_of_all_sizes_and_batches_run(shared: bool) -> None:
    model = families.model("llama")
    llama = compile_for_generation(model, executor="reference", shared_weights=shared, **SIZES)
    for lengths in ((1,), (16,), (2, 9)):
        inputs = families.prompts("llama", lengths)
        assert torch.equal(families.generated(llama, inputs, 8), families.generated(model, inputs, 8))


@pytest.mark.parametrize(
    ("max_batch", "max_prompt_len", "lens"), [(3, 16, (7,)), (3, 4, (4,)), (1, 7, (7, 4)), (1, 2, (2,))]
)
def test_prompts_of_fixed_lengths_have_engines_of_fixed_sizes(
    max_batch: int, max_prompt_len: int, lens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes = families.model("llama"), {"max_cache_len": 160, "max_batch": max_batch}
    sizes |= {"max_prompt_len": max_prompt_len}
    compiled = compile_for_generation(model, executor="reference", prompt_lens=lens, **sizes, **UNBUILT)
    networks = compiled.compiled["decoder"].networks
    for place, length in enumerate(sorted(lens), 1):
        found = [port for n in networks if n.name.endswith(f"_profile_{place}") for port in n.inputs]
        assert not [port for port in found if -1 in port.shape]
        assert {tuple(port.shape) for port in found if port.name == "input_ids"} == {(max_batch, length)}
    last = f"_profile_{len(lens) + 1}"
    assert any(n.name.endswith(last) for n in networks) == (max_prompt_len > 2), "and all other prompts have theirs"
    called: list[int | None] = []
    plan = type(compiled.runners["decoder"])._make_plan
    note = lambda self, given: called.append((found := plan(self, given)).profile) or found  # noqa: E731
    monkeypatch.setattr(type(compiled.runners["decoder"]), "_make_plan", note)
    inputs = families.prompts("llama", (*LENGTHS[:2], 7)[-max_batch:])
    assert torch.equal(families.generated(compiled, inputs, 8), families.generated(model, inputs, 8))
    pieces = [min(max_prompt_len, 7 - at) for at in range(0, 7, max_prompt_len)]
    due = [0 if p == 1 else sorted(lens).index(p) + 1 if p in lens else len(lens) + 1 for p in pieces]
    assert list(dict.fromkeys(called)) == list(dict.fromkeys([*due, 0]))


def test_prompt_lens_are_refused_in_words() -> None:
    for family, lens, words in (
        ("llama", (1,), "prompt_lens has 1: expected ints from 2 to max_prompt_len .16."),
        ("llama", (8, 17), "prompt_lens has 17"),
        ("llama", (4.0,), "prompt_lens has 4.0"),
        ("t5", (4,), "decoder-only"),
    ):
        with pytest.raises(ValueError, match=words):
            compile_for_generation(families.model(family), prompt_lens=lens, **SIZES)
