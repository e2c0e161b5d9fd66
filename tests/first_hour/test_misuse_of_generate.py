"""Misuses of a compiled language model: each message says what to write."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from pipeline.compat.transformers import compile_for_generation
from tests.first_hour.test_misuse import Misuse, check_all

IDS: Final = torch.tensor([[5, 6, 7]])


@cache
def model() -> Any:
    """Return a decoder of one layer."""
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, max_position_embeddings=32)).eval()


@cache
def compiled() -> Any:
    """Return it compiled, for two rows."""
    return compile_for_generation(model(), max_cache_len=16, max_batch=2)


def made(**given: Any) -> Any:
    """Compile the model with these arguments."""
    return compile_for_generation(**{"model": model(), "max_cache_len": 16, **given})


def generated(*args: Any, **given: Any) -> Any:
    """Generate two tokens."""
    return compiled().generate(*args, **{"max_new_tokens": 2, **given})


COMPILED: Final[dict[str, Misuse]] = {
    "no language model": (
        lambda: made(model=nn.Linear(8, 4)),
        "model is a Linear: expected a language model of",
    ),
    "a name": (lambda: made(model="llama"), "model is a str: expected a language model of"),
    "compiled already": (lambda: made(model=compiled()), "model is compiled already: call its generate"),
    "a misspelt size": (lambda: made(max_batchsize=4), "has no argument 'max_batchsize': did you mean max_batch?"),
    "a cache of nothing": (lambda: made(max_cache_len=0), "max_cache_len is 0: expected at least 1"),
    "a cache as text": (lambda: made(max_cache_len="16"), "max_cache_len is '16': expected an integer, at least 1"),
    "a prompt longer than the cache": (lambda: made(max_prompt_len=20), "is 20: expected at most max_cache_len, 16"),
    "settings as the pipeline": (
        lambda: made(compile=pipeline.CompilationSettings()),
        "compile is a CompilationSettings, expected a pipeline, such as pipeline.default(); pass settings by name",
    ),
    "a way to verify": (lambda: made(verify="maybe"), "verify is 'maybe': expected True, False, 'raise' or 'warn'"),
    "a precision": (lambda: made(precision="fp8"), "precision must be 'float16', 'bfloat16' or 'flo"),
}

GENERATED: Final[dict[str, Misuse]] = {
    "more rows": (lambda: generated(IDS.repeat(3, 1)), "hint: compile with max_batch=3"),
    "more beams": (lambda: generated(IDS, num_beams=4), "its max_batch: each beam, and each of num_return_sequences"),
    "more tokens": (
        lambda: generated(IDS, max_new_tokens=40),
        "17 tokens, and the cache has 16 positions\n  hint: gene",
    ),
    "text": (lambda: generated("hello"), "such as tokenizer(text, return_tensors='pt').input_ids"),
    "lists": (
        lambda: generated([[5, 6]]),
        "the prompt is a list: expected a tensor of token ids [rows, tokens], such as torch",
    ),
    "lists by name": (lambda: generated(input_ids=[[5]]), "such as torch.tensor(ids)"),
    "no rows": (
        lambda: generated(IDS[0]),
        "the prompt has the shape [3], expected [rows, tokens]: pass prompt[None]",
    ),
    "fractions": (lambda: generated(IDS.float()), "input input_ids is float32, expected int64"),
    "images": (lambda: generated(IDS, pixel_values=torch.ones(1, 3, 8, 8)), "pass encoder_example to compile_for_gen"),
    "embeddings": (
        lambda: generated(inputs_embeds=torch.ones(1, 3, 16)),
        "the model is compiled for token ids\n  hint",
    ),
    "another cache": (
        lambda: generated(IDS, cache_implementation="static"),
        "compiled model always uses its own cache",
    ),
    "hidden states": (
        lambda: generated(IDS, output_hidden_states=True),
        "the engines return no hidden states; leave it",
    ),
    "labels": (lambda: compiled()(IDS, labels=IDS), "labels were passed, but the engines compute no loss"),
    "saved nowhere": (lambda: compiled().save("no/llm.trtp"), "there is no folder to write llm.trtp to: 'no'"),
    "saved to a number": (lambda: compiled().save(3), "save takes the path of a file, got an int"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("table", [COMPILED, GENERATED], ids=["compiled", "generated"])
def test_each_message_says_what_to_write(table: dict[str, Misuse]) -> None:
    check_all(table)
