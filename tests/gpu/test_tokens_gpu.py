"""Language models on a GPU: tokens, the cache where it lies, graphs by profile, and errors that nobody waits for."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

import pipeline
from pipeline.compat.transformers import compile_for_generation, encoder_parts
from pipeline.trt import CAPABILITIES
from pipeline.verification.bounds import Bound
from tests.compat import along, families, sights

pytestmark = pytest.mark.gpu

Given = dict[str, torch.Tensor]
HALVES = (torch.float16, torch.bfloat16)
WITH_STATES = (("lfm2", torch.float16), ("mamba2", torch.bfloat16), ("qwen3_next", torch.float16))
"""Families with states for every day, each in one dtype."""
ALL_CHOSEN: Mapping[str, Mapping[str, int]] = {
    "deepseek_v32": {"index_topk": 160, "num_experts_per_tok": 4},
    "switch": {"num_experts": 1},
}
"""What positions, or experts, these choose by a few scores is decided by what is rounded: here they choose all. Which
they choose is compared on a CPU."""


def on_gpu(family: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> tuple[Any, dict[str, torch.Tensor]]:
    model = families.model(family, dtype, **ALL_CHOSEN.get(family, {})).cuda()
    inputs = {name: value.cuda() for name, value in families.prompts(family, lengths).items()}
    if "input_features" in inputs:
        inputs["input_features"] = inputs["input_features"].to(dtype)
    return model, inputs


def check(
    family: str,
    dtype: torch.dtype,
    lengths: tuple[int, ...],
    max_cache_len: int,
    max_prompt_len: int = 16,
    steps: int = 64,
    **more: Any,
) -> None:
    """Tokens are eager's, ties aside: where a row has the same tokens, its logits are as close as the dtype allows."""
    model, inputs = on_gpu(family, dtype, lengths)
    sizes = {"max_cache_len": max_cache_len, "max_batch": len(lengths), "max_prompt_len": max_prompt_len, **more}
    compare(model, compile_for_generation(model, **sizes), inputs, dtype, steps)


def compare(model: Any, compiled: Any, inputs: dict[str, torch.Tensor], dtype: torch.dtype, steps: int) -> None:
    """Logits are eager's as long as a row has the same tokens, or as close to those in float32 as eager's are."""
    scored = {"return_dict_in_generate": True, "output_logits": True}
    want: Any = families.generated(model, inputs, steps, **scored)
    got: Any = families.generated(compiled, inputs, steps, **scored)
    true = functools.cache(lambda: in_float32(model, inputs, want.sequences, steps))
    bound = 16 * torch.finfo(dtype).eps
    equal = got.sequences[:, -steps:] == want.sequences[:, -steps:]
    for step, (ours, theirs) in enumerate(zip(got.logits, want.logits, strict=True)):
        same = equal[:, :step].all(1)  # up to here
        if same.any() and _error(ours[same], theirs[same]) > bound:
            exact = true()[step][same]
            assert _error(ours[same], exact) <= Bound(dtype).error_bound(_error(theirs[same], exact))


def in_float32(
    model: Any, inputs: dict[str, torch.Tensor], tokens: torch.Tensor, steps: int
) -> tuple[torch.Tensor, ...]:
    """The logits along tokens, of the model in float32."""
    scored = {"return_dict_in_generate": True, "output_logits": True}
    forced = {"prefix_allowed_tokens_fn": lambda row, before: [int(tokens[row, len(before)])]}
    found: Any = families.generated(
        copy.deepcopy(model).float(), sights.cast(inputs, torch.float32), steps, **scored, **forced
    )
    return found.logits  # type: ignore[no-any-return]


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest, relative to the largest magnitude, or to 1."""
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    ("family", "max_cache_len"), [*((family, 160) for family in sorted(families.FAMILIES)), ("llama", 80)]
)
def test_logits_along_eagers_tokens(family: str, max_cache_len: int, dtype: torch.dtype) -> None:
    check(family, dtype, (5, 3, 7), max_cache_len)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", families.OF_ONE_ROW)
def test_logits_of_one_row_along_eagers_tokens(family: str, dtype: torch.dtype) -> None:
    check(family, dtype, (5,), 160)


@pytest.mark.parametrize("lengths", [(5,), (5, 3, 7)], ids=["one row", "three rows"])
def test_logits_after_a_prompt_of_several_calls(lengths: tuple[int, ...]) -> None:
    check("llama", torch.float16, lengths, 160, 3)


@pytest.mark.parametrize("lengths", [(5,), (5, 3, 7)], ids=["one row", "three rows"])
def test_logits_after_prompts_of_fixed_lengths(lengths: tuple[int, ...]) -> None:
    check("llama", torch.float16, lengths, 160, prompt_lens=(5, 7))


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, marks=() if (family, dtype) in WITH_STATES else pytest.mark.slow)
        for family in sorted(families.WITH_STATES)
        for dtype in HALVES
    ],
    ids=str,
)
def test_states_along_eagers_tokens(family: str, dtype: torch.dtype) -> None:
    check(family, dtype, (5, 3, 7), 64, steps=32)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["kimi_linear", "mamba", "mamba2", "qwen3_5"])
def test_states_after_prompts_of_several_chunks(family: str) -> None:
    check(family, torch.float16, (290, 150), 320, 300, 4)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in sights.SIGHTS for dtype in HALVES if (name, dtype) != ("florence2", torch.float16)],
    ids=str,
)  # BART asks whether numbers of float16 are finite: data decides
def test_logits_where_images_are_seen(name: str, dtype: torch.dtype) -> None:
    model, inputs = sights.model(name, dtype)
    model, inputs = model.cuda(), {key: value.cuda() for key, value in inputs.items()}
    sizes = {"max_cache_len": 48, "max_batch": 2, "max_prompt_len": 16}
    compiled = compile_for_generation(model, encoder_example=inputs, cuda_graphs=True, **sizes)
    compare(model, compiled, inputs, dtype, 24)
    text = {key: value.cuda() for key, value in families.prompts("llama", (4, 7)).items()}
    compare(model, compiled, text, dtype, 24)


@pytest.mark.parametrize(
    ("name", "examples", "others"),
    [
        ("llava", [sights.images(1), sights.images(3)], [sights.images(2)]),
        ("llava_next", [sights.tiles(2, 2), sights.tiles(1, 2)], [sights.tiles(2, 1)]),
        ("qwen2_5_vl", [sights.patches((4, 4)), sights.patches((2, 4))], [sights.patches((4, 2), (2, 2))]),
        ("qwen3_vl", [sights.patches((4, 8))], [sights.patches((8, 4)), sights.patches((4, 2), (2, 2))]),
        ("mistral3", [sights.sized((42, 28))], [sights.sized((28, 42)), sights.sized((28, 14), (42, 42))]),
        ("qwen3_omni", [sights.sound(300)], [sights.sound(200), sights.sound(100)]),
    ],
    ids=["llava", "llava_next", "qwen2_5_vl", "qwen3_vl", "mistral3", "qwen3_omni"],
)
def test_logits_where_images_of_several_sizes_are_seen(
    name: str, examples: list[Given], others: list[Given], caplog: pytest.LogCaptureFixture
) -> None:
    """Programs of towers take others too: a warning would say that they run in PyTorch."""
    model = sights.model(name, torch.float16)[0].cuda()
    every = [{key: x.cuda() for key, x in sights.cast(each, torch.float16).items()} for each in (*examples, *others)]
    sizes = {"max_cache_len": 80, "max_batch": 2, "max_prompt_len": 48}
    compiled = compile_for_generation(model, encoder_example=every[: len(examples)], cuda_graphs=True, **sizes)
    for inputs in every:
        compare(model, compiled, inputs, torch.float16, 16)
    told = [each.getMessage() for each in caplog.records if each.name == encoder_parts.__name__]
    assert not [each for each in told if "multi_modal_projector" not in each]  # as large as that small tower


@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float16), ("t5", torch.bfloat16)], ids=str)
def test_logits_of_prompts_that_are_embeddings(family: str, dtype: torch.dtype) -> None:
    model, inputs = on_gpu(family, dtype, (5, 5))
    embeds = model.get_input_embeddings()(inputs["input_ids"]).detach()
    prompt = {"inputs_embeds": embeds + torch.randn_like(embeds) / 8, "attention_mask": inputs["attention_mask"]}
    sizes = {"max_cache_len": 64, "max_batch": 2, "max_prompt_len": 8}
    compiled = compile_for_generation(model, encoder_example=prompt, cuda_graphs=True, **sizes)
    compare(model, compiled, prompt, dtype, 24)
    compare(model, compiled, inputs, dtype, 24)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", torch.float16), ("t5", torch.float16), ("lfm2", torch.bfloat16)], ids=str
)
def test_scores_of_beams_are_those_of_the_tokens(family: str, dtype: torch.dtype, graphs: bool) -> None:
    (model, inputs), steps = on_gpu(family, dtype, (5, 3)), 12
    sizes = {"max_cache_len": 32, "max_batch": 8, "max_prompt_len": 8}
    compiled = compile_for_generation(model, cuda_graphs=graphs, **sizes)
    how = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, "return_dict_in_generate": True}
    found: Any = families.generated(compiled, inputs, steps, output_scores=True, **how)
    logits = along.logits(model, inputs, found.sequences, steps)
    want = along.log_probability(logits, found.sequences)
    bound = steps * 16 * torch.finfo(dtype).eps * logits.abs().max().clamp(min=1)
    assert len(found.sequences.unique(dim=0)) == 6
    assert (found.sequences_scores - want).abs().max() <= bound


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float16), ("t5", torch.bfloat16)], ids=str)
def test_logits_where_a_model_drafts(family: str, dtype: torch.dtype, draft: int) -> None:
    (model, inputs), steps = on_gpu(family, dtype, (7,)), 24
    assistant, _ = on_gpu(family, dtype, (7,))
    for each in assistant.parameters():
        each.data += torch.randn_like(each) * each.std().nan_to_num() * 0.3
    sizes = {"max_cache_len": 64, "max_prompt_len": 8}
    compiled = compile_for_generation(model, max_draft_len=draft, cuda_graphs=True, **sizes)
    scored = {"return_dict_in_generate": True, "output_logits": True}
    for by in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
        found: Any = families.generated(compiled, inputs, steps, **by, **scored)
        want = along.logits(model, inputs, found.sequences, steps)[0]
        bound = 16 * torch.finfo(dtype).eps * want.abs().max().clamp(min=1)
        assert (torch.cat(found.logits).float() - want).abs().max() <= bound


class Slow(LogitsProcessor):
    """Keeps the GPU busy, so that the host runs ahead of it as far as it may."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(2_000_000)
        return scores


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_tokens_that_nobody_waits_for_are_those_of_transformers_loop(graphs: bool, slow: bool) -> None:
    model, inputs = on_gpu("llama", torch.float16, (5, 3, 7))
    sizes = {"max_cache_len": 160, "max_batch": 3, "max_prompt_len": 16}
    compiled = compile_for_generation(model, cuda_graphs=graphs, **sizes)
    free = families.generated(compiled, inputs, 40, return_dict_in_generate=True).sequences
    ends: Any = {"eos_token_id": [int(t) for t in free[:2, -20]], "pad_token_id": 0, "min_new_tokens": 0}
    for how in ({}, ends, {**ends, "do_sample": True, "top_k": 12}):
        given: Any = {**how, "logits_processor": LogitsProcessorList([Slow()] * slow)}
        found = []
        for more in ({"return_dict_in_generate": True}, {}):  # outputs other than tokens are made by transformers' loop
            torch.manual_seed(5)
            made = families.generated(compiled, inputs, 40, **given, **more)
            found.append((getattr(made, "sequences", made), torch.rand(2, device="cuda")))
        for want, got in zip(*found, strict=True):
            assert torch.equal(want, got)
    one = {"input_ids": inputs["input_ids"][2:]}
    streamed = [families.Streamed(), families.Streamed()]
    for streamer, more in zip(streamed, ({"return_dict_in_generate": True}, {}), strict=True):
        families.generated(compiled, one, 24, streamer=streamer, **more)
    assert streamed[0].got == streamed[1].got and streamed[0].got[-1] == "end"


class Rows(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 4, 64, 32, dtype=torch.float16))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at = position + torch.arange(x.shape[2], device=x.device)
        self.cache.index_copy_(2, at, x)  # type: ignore[operator, union-attr]
        return (self.cache * 2).sum(2)  # type: ignore[operator]


def compiled_rows() -> pipeline.Compiled:
    x = torch.randn(2, 4, 3, 32, dtype=torch.float16, device="cuda")
    profiles = [({2: 1}, {}), ({2: torch.export.Dim("rows", min=2, max=16)}, {})]
    args = (x, torch.tensor(0, device="cuda"))
    return pipeline.default(require_full_compilation=True)(Rows().cuda().eval(), args=args, profiles=profiles)


@pytest.mark.skipif(not CAPABILITIES.kv_cache_update, reason="this TensorRT has no cache update")
@pytest.mark.parametrize("graphs", [False, True])
def test_the_cache_stays_where_it_is(graphs: bool) -> None:
    module = compiled_rows().module("tensorrt", cuda_graphs=graphs)
    model, place = Rows().cuda().eval(), module.state_dict()["cache"].data_ptr()
    other = module.new_state()
    for step in range(40):
        x = torch.randn(2, 4, (1, 5)[step % 4 == 0], 32, dtype=torch.float16, device="cuda")
        at = torch.tensor(step, device="cuda")
        torch.testing.assert_close(module(x, at), model(x, at), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(module.state_dict()["cache"], model.cache)
    assert module.state_dict()["cache"].data_ptr() == place and not other.state_dict()["cache"].any()
    other(x, at)
    torch.testing.assert_close(module.state_dict()["cache"], model.cache)


@pytest.mark.parametrize("graphs", [False, True])
def test_positions_outside_are_the_next_calls_error(graphs: bool) -> None:
    module = compiled_rows().module("tensorrt", cuda_graphs=graphs)
    x, at = torch.randn(2, 4, 1, 32, dtype=torch.float16, device="cuda"), torch.tensor(3, device="cuda")
    for _ in range(3):
        module(x, at)
    before = module.state_dict()["cache"].clone()
    module(x, torch.tensor(64, device="cuda"))
    torch.cuda.synchronize()
    with pytest.raises(pipeline.ExecutionError, match="an earlier call has positions outside of the buffer cache"):
        module(x, at)
    assert torch.equal(module.state_dict()["cache"], before), "nothing was written"
    module.reset()
    module(x, at)


def test_steps_leak_nothing() -> None:
    module = compiled_rows().module("tensorrt", cuda_graphs=True)
    x, at = torch.randn(2, 4, 1, 32, dtype=torch.float16, device="cuda"), torch.tensor(3, device="cuda")
    for _ in range(10):
        module(x, at)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(10_000):
        module(x, at)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
