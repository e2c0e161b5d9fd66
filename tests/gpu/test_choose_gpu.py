"""`choose` on a GPU: all forms of a program are measured and right, with and without a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from pipeline.compat.transformers import compile_for_generation
from pipeline.compiled import Compiled
from pipeline.profiling.segment_costs import SegmentCost
from pipeline.runtime import few_rows
from pipeline.runtime.grouped_attention import SDPA, attention
from pipeline.stages import choose, faster_in_torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_all_forms_are_measured_and_right(cuda_graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    asked = list[Compiled]()

    def timer(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        asked.extend(programs)
        times = choose.measure_segments(programs, profile)
        [engine], [parts], [captured] = (list(costs.values()) for costs in times)
        for cost in (engine, parts, captured):
            assert cost.gpu > 0 and (cost.host == 0) == cuda_graphs
        return times

    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)).cuda().half().eval()
    x = torch.randn(64, 256, device="cuda", dtype=torch.half)
    compile = pipeline.default(min_block_size=1, cuda_graphs=cuda_graphs).replace("choose", choose.Choose(timer))
    with torch.no_grad():
        compile(model, (x,))
        expected = model(x)
        for form, tolerance in zip(asked, (1e-2, 1e-2, 0.0), strict=True):
            module = form.module()
            for _ in range(3):
                torch.testing.assert_close(module(x), expected, rtol=tolerance, atol=tolerance)
            assert not module.refused_graphs


@pytest.mark.parametrize("torch_compile", [None, "default"])
def test_all_forms_of_a_language_model_are_measured_and_right(
    torch_compile: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "LARGE", 0)
    monkeypatch.setattr(faster_in_torch, "LEAST", 0)
    monkeypatch.setattr(faster_in_torch, "QUERIES", 2)
    monkeypatch.setattr(few_rows, "LEAST", 0)
    monkeypatch.setattr(few_rows, "LEAST_OF_SEVERAL", 0)
    by_kernels = Mock(wraps=few_rows.attention)
    monkeypatch.setattr(few_rows, "attention", by_kernels)
    asked = list[tuple[int | None, Compiled]]()

    def timer(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        asked.extend((profile, program) for program in programs)
        times = choose.measure_segments(programs, profile)
        assert all(cost.gpu > 0 and cost.host == 0 for costs in times for cost in costs.values()), "in a CUDA graph"
        return times

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, head_dim=64, num_hidden_layers=2, vocab_size=99, max_position_embeddings=64)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).half().cuda().eval()
    compile = pipeline.default(min_block_size=1, cuda_graphs=True, torch_compile=torch_compile)
    compile = compile.replace("choose", choose.Choose(timer))
    compiled = compile_for_generation(model, max_cache_len=32, max_batch=2, max_prompt_len=8, compile=compile)
    assert [profile for profile, _ in asked] == [0] * 3 + [1] * 3, "all forms run"
    assert bool(by_kernels.mock_calls) == (torch_compile is None and few_rows.is_triton_installed())
    ids = torch.arange(10, device=model.device).reshape(2, 5)
    with torch.no_grad():
        expected = model(ids).logits
    for form in (compiled.compiled["decoder"], asked[1][1], asked[2][1], asked[4][1]):
        module = form.module()
        for start, length in 3 * ((0, 4), (4, 1)):
            places = torch.arange(start, start + length, device=model.device)
            step = {"input_ids": ids[:, places], "position_ids": places.expand(2, -1), "start": places[0]}
            found = module(**step, attention_mask=torch.ones(2, 32, dtype=torch.bool, device=model.device))
            torch.testing.assert_close(found[:, 0], expected[:, start + length - 1], rtol=2e-2, atol=2e-3)
        assert not module.refused_graphs


@pytest.mark.parametrize("queries", [1, 2048])
def test_attention_of_groups_writes_no_products(queries: int) -> None:
    """A fused kernel of PyTorch runs it, at the sizes of a Llama 8B."""
    query, key = (torch.randn(1, heads, rows, 128, device="cuda").half() for heads, rows in ((32, queries), (8, 2112)))
    mask = torch.ones(1, 1, queries, 2112, dtype=torch.bool, device="cuda").tril(2112 - queries)
    expected = SDPA(query.float(), key.float(), key.float(), mask, enable_gqa=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = attention(query, key, key, mask, enable_gqa=True)
    products = 32 * queries * 2112 * 2
    if queries > 1:
        assert torch.cuda.max_memory_allocated() - before < products
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-3)
