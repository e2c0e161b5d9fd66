"""Kernels of one row by weights that an engine reads: each reads eight numbers at a time, and writes nothing twice.

TensorRT-RTX computes the row in the kernel of the product, where each block, one for each column, computes all of it
again, and writes all of what another kernel reads of it. The source of a kernel, which the plan holds, tells."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.kernels import CAPABILITY
from pipeline.build.kernels import Kernel, kernels
from pipeline.build.wrong_kernels import sources
from pipeline.compat.transformers import compile_for_generation, generation
from pipeline.impl import one_row
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(not CAPABILITIES.fast_sums, reason="this TensorRT has products that are as fast")
WIDTH, FEED = 1024, 2048


def engines(dtype: torch.dtype) -> dict[str, bytes]:
    """The plans of a decoder's engines for single tokens, the ones that differ."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": FEED, "num_attention_heads": 16, "num_key_value_heads": 4}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, pad_token_id=0, num_hidden_layers=3, **sizes))
    made: Any = compile_for_generation(
        model.to(dtype).eval(), max_cache_len=256, max_prompt_len=16, compute_capabilities=(CAPABILITY,)
    )
    every = [each for each in made.compiled["decoder"].engines if each.name.endswith("_0")]
    found = {each.digest: each for each in reversed(every)}
    return {each.name: bytes(each.plan) for each in found.values()}


def bodies(plan: bytes) -> dict[str, str]:
    """The sources of sums' kernels: what each block computes before it sums."""
    found = {}
    for name, start in sources(plan).items():
        source = plan[start : plan.find(b"\0", start)].decode(errors="replace")
        _, _, body = source.partition("block_reduction::read_input<0")
        if body:
            found[name.decode()] = body.partition("block_reduction::write_output<0")[0]
    return found


def written_by_each_block(body: str) -> int:
    """How many results each block writes before it sums."""
    return len(re.findall(r"\)__v\d+\)\[[^\]]*\] = __v", body))


def wide(plan: bytes) -> list[tuple[int, int]]:
    """The blocks of each kernel that sums, and how many numbers it reads at a time."""
    text = plan.decode("latin1")
    calls = re.findall(r"name=__myl_\w*Sum\w* .*?grid = \{ (\d+) .*? vec_width=(\d+)", text)
    return [(int(blocks), int(width)) for blocks, width in calls]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_no_block_writes_what_another_writes(dtype: torch.dtype) -> None:
    plans = engines(dtype)
    assert {blocks for blocks, _ in wide(plans["engine_1_profile_0"])} >= {WIDTH, 2 * FEED, 1536}
    for name, plan in plans.items():
        found = bodies(plan)
        assert found, name
        assert any(blocks >= WIDTH for blocks, _ in wide(plan)), name
        assert all(width == 8 for blocks, width in wide(plan) if blocks >= WIDTH), name
        assert [kernel for kernel, body in found.items() if written_by_each_block(body)] == []


def test_a_result_that_leaves_the_engine_would_be_written_by_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_row, "_leaves", lambda net, node: False)
    found = bodies(engines(torch.float16)["engine_1_profile_0"])
    assert [written_by_each_block(body) for body in found.values() if written_by_each_block(body)] == [1]


def layer(dtype: torch.dtype) -> list[Kernel]:
    return list(kernels(engines(dtype)["engine_1_profile_0"]))


def test_a_layer_has_ten_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(layer(torch.float16)) == 10
    monkeypatch.setattr(generation, "FOR_ONE_ROW", ())
    assert len(layer(torch.float16)) == 12, "a kernel for each norm, of one block"
