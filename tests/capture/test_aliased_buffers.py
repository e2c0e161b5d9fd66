"""A tensor that a model holds in two places is one."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

import pipeline
from pipeline.testing.models import unbuilt


class Cache:
    """What a model keeps outside of its modules."""

    def __init__(self) -> None:
        self.values, self.length = torch.zeros(4, 3), torch.zeros(1, dtype=torch.int64)


class Cached(torch.nn.Module):
    """A cache in buffers, which is written to by another name, as transformers' static cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.register_buffer("values", self.cache.values)
        self.register_buffer("length", self.cache.length, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, 3] -> [1, 3], the sum of what was seen"""
        self.cache.values.index_copy_(0, self.cache.length, x)
        self.cache.length.add_(1)
        return self.values.sum(0, keepdim=True) + self.length


def test_what_is_written_by_another_name_is_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fails)
    model = Cached().eval()
    compiled = pipeline.default(min_block_size=1)(model, args=(torch.ones(1, 3),))
    assert {o.target for o in compiled.program.outputs if o.kind == "buffer"} == {"values", "length"}
    assert not model.length.any()
    module, eager = compiled.module("reference"), copy.deepcopy(model)
    eager.cache.values, eager.cache.length = eager.values, eager.length
    for value in (1.0, 2.0, 5.0):
        x = torch.full((1, 3), value)
        torch.testing.assert_close(module(x), eager(x))


def decoder() -> torch.nn.Module:
    """A small Llama with transformers' static cache."""
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )
    return TorchExportableModuleWithStaticCache(model)


def test_a_static_cache_needs_no_strict_export() -> None:
    model = decoder()

    def given(position: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([[7 + 3 * position]]), "cache_position": torch.tensor([position])}

    compiled = pipeline.default(min_block_size=1).replace("build", unbuilt)(model, (), given(0))
    assert sum(o.kind == "buffer" for o in compiled.program.outputs) == 6
    module = compiled.module("reference")
    for position in range(3):
        torch.testing.assert_close(module(**given(position)), model(**given(position)), rtol=1e-4, atol=1e-5)
