"""Engines of a decoder copy no cache: TensorRT-RTX 1.4 copies one that an engine updates before a product of the same
engine reads it, so that they are cut behind the updates. Plans tell which kernels there will be."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.kernels import CAPABILITY
from pipeline.compat.transformers import compile_for_generation
from pipeline.network.kernels import Kernel, kernels
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx" or not CAPABILITIES.kv_cache_update,
    reason="the plans of TensorRT-RTX tell what its kernels are made of",
)
POSITIONS = 1024


def layer(max_batch: int) -> tuple[tuple[Kernel, ...], ...]:
    """The kernels between two layers' cache updates: for single tokens, and for prompts."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, pad_token_id=0, num_hidden_layers=3, **sizes))
    made: Any = compile_for_generation(
        model.half().eval(),
        max_cache_len=POSITIONS,
        max_batch=max_batch,
        max_prompt_len=128,
        compute_capabilities=(CAPABILITY,),
    )
    plans = {engine.name: bytes(engine.plan) for engine in made.compiled["decoder"].engines}
    return tuple(kernels(plans[f"engine_1_profile_{place}"]) for place in (0, 1))


def copies(step: tuple[Kernel, ...]) -> list[str]:
    """The kernels that compute no layer of the network."""
    return [kernel.name for kernel in step if not kernel.layers]


@pytest.mark.parametrize("max_batch", [1, 8])
def test_a_step_copies_no_cache(max_batch: int) -> None:
    token, prompt = layer(max_batch)
    assert copies(token) == []
    assert [kernel.role for kernel in token].count("attention") == 0, "keys that queries share are read once"
    assert [kernel.role for kernel in prompt].count("attention") == 1


@pytest.mark.skipif(CAPABILITIES.version_tuple >= (1, 6), reason="its plans do not tell what is a copy of a cache")
def test_a_cache_that_the_same_engine_updates_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("pipeline.stages.partition"), "CACHE_UPDATE", object())
    token, _ = layer(1)
    assert len(copies(token)) == 2, "keys and values"
