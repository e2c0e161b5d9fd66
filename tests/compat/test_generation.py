"""Models of transformers generate what they generate by themselves, over engines whose cache is updated in place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo.eval_frame import TorchPatcher
from torch.distributions import Distribution

import pipeline
from pipeline.trt import CAPABILITIES

pytest.importorskip("transformers")

from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.caches import CachedTensor, find_cached_tensors
from pipeline.compiled import Compiled
from pipeline.converters.declare import Rejection
from pipeline.impl.attention import MANY_KEYS
from pipeline.verification.engines_in_torch import replace_engines
from tests.compat import families
from tests.meta.executor_faults import factor, planted
from tests.testing.in_turn import in_turn

EVERYDAY = ("llama", "gemma2", "t5")
SIZES = {"max_cache_len": 160, "max_batch": 3, "max_prompt_len": 16}
LENGTHS = (5, 3, 7)
STEPS = 64
UNBUILT: Any = {"compile": pipeline.default().replace("build", pipeline.stages.unbuilt)}


def check(family: str, max_cache_len: int = SIZES["max_cache_len"]) -> Any:
    """Compile a family's model, and compare its greedy tokens with eager's."""
    model = families.model(family)
    inputs = families.prompts(family, LENGTHS)
    expected = families.generated(model, inputs, STEPS)
    compiled = compile_for_generation(model, executor="reference", **{**SIZES, "max_cache_len": max_cache_len})
    assert torch.equal(families.generated(compiled, inputs, STEPS), expected)
    assert len(expected.unique()) > 2, "tokens differ, so that equal ones say something"
    networks = compiled.compiled["decoder"].networks
    for profile in ("profile_0", "profile_1"):
        updates = [n.kinds().get("KV_CACHE_UPDATE", 0) for n in networks if n.name.endswith(profile)]
        assert sum(updates) == (4 if CAPABILITIES.kv_cache_update else 0), "of both layers, for tokens and for prompts"
    return compiled


@pytest.mark.parametrize("family", EVERYDAY)
def test_tokens_are_eagers(family: str) -> None:
    compiled = check(family)
    assert not compiled.compiled["decoder"].coverage.fallback


def test_tokens_are_eagers_with_few_positions() -> None:
    assert 80 < MANY_KEYS <= SIZES["max_cache_len"]
    check("llama", 80)


def test_tokens_and_prompts_in_pytorch_and_in_engines_use_the_same_caches() -> None:
    names = "engine_0_profile_0", "engine_1_profile_1"  # tokens of the first layer, prompts of the second

    def chosen(compiled: Compiled) -> Compiled:
        return replace_engines(compiled, dict.fromkeys(names, Rejection("it is a test")))

    model, inputs = families.model("llama"), families.prompts("llama", LENGTHS)
    compile = pipeline.default().replace("build", pipeline.stages.unbuilt).replace("choose", chosen)
    compiled = compile_for_generation(model, executor="reference", compile=compile, **SIZES)
    kinds = {segment.name: segment.kind for segment in compiled.compiled["decoder"].partitioned.segments}
    assert [kinds.get(name.replace("engine", "torch")) for name in names] == [
        "torch"
    ] * 2 and "engine" in kinds.values()
    assert torch.equal(families.generated(compiled, inputs, 12), families.generated(model, inputs, 12))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(families.FAMILIES.keys() - {*EVERYDAY, *families.ALIKE}))
def test_tokens_are_eagers_in_every_family(family: str) -> None:
    check(family)


@pytest.mark.parametrize("family", ["llama", pytest.param("t5", marks=pytest.mark.slow)])
def test_logits_are_verified(family: str) -> None:
    sizes: Any = {"max_cache_len": 24, "max_prompt_len": 8, "executor": "reference", **UNBUILT}
    model = families.model(family, torch.float16)
    (row,) = compile_for_generation(model, verify=True, **sizes).agreement.rows
    assert row.exact == "float32" and row.norm_bound > row.norm_error > 0
    assert model.dtype == torch.float16
    with planted(factor, "SOFTMAX"), pytest.raises(pipeline.AgreementError, match="verify='warn'") as caught:
        compile_for_generation(model, verify=True, **sizes)
    assert "logits" in str(caught.value)


def check_one_row(family: str, dtype: torch.dtype) -> Any:
    """Compile a family's model for one row in halves, and compare its logits with eager's, as long as tokens agree."""
    model, inputs = families.model(family, dtype), families.prompts(family, (5,))
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}
    scored = {"return_dict_in_generate": True, "output_logits": True}
    want: Any = families.generated(model, inputs, 16, **scored)
    compiled = compile_for_generation(model, max_cache_len=64, max_prompt_len=16, executor="reference", **UNBUILT)
    got: Any = families.generated(compiled, inputs, 16, **scored)
    equal = got.sequences[0, -16:] == want.sequences[0, -16:]
    for step, (ours, theirs) in enumerate(zip(got.logits, want.logits, strict=True)):
        if equal[:step].all():
            off = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1)
            assert off <= 16 * torch.finfo(dtype).eps
    return compiled


@pytest.mark.slow
@in_turn("family, dtype", families.OF_ONE_ROW, (torch.float16, torch.bfloat16))
def test_logits_of_one_row_are_eagers(family: str, dtype: torch.dtype) -> None:
    check_one_row(family, dtype)


@pytest.mark.parametrize("max_batch", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_one_head_of_keys_builds_for_one_row(dtype: torch.dtype, max_batch: int) -> None:
    """Falcon's `multi_query`, whose head RTX 1.4 could not repeat by a reshape for one row."""
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"vocab_size": 99, "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 4, "pad_token_id": 0}
    model = FalconForCausalLM(FalconConfig(**sizes, new_decoder_architecture=False, multi_query=True)).to(dtype).eval()
    sizes = {"max_cache_len": 32, "max_batch": max_batch, "max_prompt_len": 8}
    for shared, count in ((True, 2), (False, 1)):  # a single layer is not cut off
        compiled = compile_for_generation(model, executor="reference", shared_weights=shared, **sizes)
        assert len(compiled.compiled["decoder"].engines) == count


@pytest.mark.parametrize("asks", [False, True])
def test_one_row_where_the_model_does_not_ask_for_it(asks: bool) -> None:
    """Falcon's keys are expanded and made one piece: of their strides torch asks whether there is one row."""
    from transformers import FalconConfig, FalconForCausalLM

    class Model(FalconForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            made = super().forward(*args, **kwargs)
            if asks and made.logits.shape[0] == 1:
                made.logits = made.logits.flip(-1)
            return made

    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_kv_heads": 2}
    names: Any = {"new_decoder_architecture": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    model = Model(FalconConfig(**sizes, **names)).eval()
    compiled = compile_for_generation(model, executor="reference", max_cache_len=16, max_batch=3, max_prompt_len=4)
    prompts, how = torch.randint(1, 99, (3, 4)), {"max_new_tokens": 3, "do_sample": False}
    for rows in (2, 3):
        assert compiled.generate(prompts[:rows], **how).tolist() == model.generate(prompts[:rows], **how).tolist()
    if asks:
        with pytest.raises(pipeline.ShapeError, match="compiled for 2 to 3"):
            compiled.generate(prompts[:1], **how)
    else:
        assert compiled.generate(prompts[:1], **how).tolist() == model.generate(prompts[:1], **how).tolist()


@pytest.fixture(scope="module")
def llama() -> Any:
    return compile_for_generation(families.model("llama"), executor="reference", **SIZES)


def test_it_is_one_of_the_models_class(llama: Any) -> None:
    from transformers import LlamaForCausalLM

    assert isinstance(llama, LlamaForCausalLM) and set(llama.compiled) == {"decoder"}
    assert all(p.is_meta for p in llama.parameters()), "it holds no weights beside those of the engines"


def test_what_transformers_and_torch_ask_of_a_model_is_there(llama: Any) -> None:
    hidden = {name for name in vars(llama) if not name.startswith("_") and callable(getattr(type(llama), name, None))}
    assert not hidden, "methods of the model's class are not hidden by attributes"
    assert next(iter(llama.modules())) is llama


@pytest.mark.parametrize("family", ["llama", "whisper"])
def test_the_cache_is_given_with_the_tokens(family: str) -> None:
    model, inputs = families.model(family), families.prompts(family, (5, 5))
    compiled = compile_for_generation(model, max_cache_len=24, max_batch=2, max_prompt_len=8)
    scored = {"return_dict_in_generate": True, "output_logits": True}
    want, got = (families.generated(each, inputs, 6, **scored) for each in (model, compiled))
    assert torch.equal(got.sequences, want.sequences)
    if family == "llama":
        pairs = zip(got.past_key_values.self_attention_cache.layers, want.past_key_values.layers, strict=True)
    else:
        pairs = zip(_both(got.past_key_values), _both(want.past_key_values), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-4)


def _both(cache: Any) -> list[Any]:
    return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]


def test_pieces_are_built_side_by_side_and_keep_their_own_caches() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=99, pad_token_id=0, eos_token_id=None, num_hidden_layers=4, **sizes)
    model, inputs = LlamaForCausalLM(config).eval(), families.prompts("llama", LENGTHS)
    with ThreadPoolExecutor(2) as side_by_side:
        compile = pipeline.default(require_full_compilation=True, build_executor=side_by_side)
        compile = compile.replace("partition", pipeline.in_pieces(2))
        compiled = compile_for_generation(model, executor="reference", compile=compile, shared_weights=False, **SIZES)
    decoder = compiled.compiled["decoder"]
    updates = [network.kinds().get("KV_CACHE_UPDATE", 0) for network in decoder.networks]
    assert updates == ([4, 4] if CAPABILITIES.kv_cache_update else [0, 0]) and len(decoder.engines) == 2
    weights = [{w.name for w in n.weights if "layers." in w.name and "proj" in w.name} for n in decoder.networks]
    assert all(weights) and not set.intersection(*weights), "no weight of a layer is in two engines"
    expected = families.generated(model, inputs, STEPS)
    for each in (compiled, compiled.new_state(), compiled):
        assert torch.equal(families.generated(each, inputs, STEPS), expected)


def test_layers_of_one_structure_are_built_once() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=99, pad_token_id=0, eos_token_id=None, num_hidden_layers=6, **sizes)
    model, inputs = LlamaForCausalLM(config).eval(), families.prompts("llama", LENGTHS)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    compile = pipeline.default().insert(pipeline.shared_weights(64), after="partition")
    compiled = compile_for_generation(model, executor="reference", compile=compile, **SIZES)
    decoder = compiled.compiled["decoder"]
    engines = [[e for e in decoder.engines if e.name.endswith(f"_profile_{place}")] for place in (0, 1)]
    plans = [len({id(engine.plan) for engine in each}) for each in engines]
    assert [len(each) for each in engines] == [7, 7], "cut behind the cache updates of six layers"
    assert plans == [3, 3], "what is before the first cut, from one layer to the next, and behind the last"
    expected = families.generated(model, inputs, STEPS)
    other = compiled.new_state()
    for each in (compiled, other, compiled):
        assert torch.equal(families.generated(each, inputs, STEPS), expected)


def test_stages_come_in_their_order_and_a_limit_is_kept() -> None:
    from pipeline.compat.transformers.generation import _with_engine_cuts, _with_shared_weights

    own = pipeline.default().insert(pipeline.shared_weights(64), after="partition")
    for compile in (pipeline.default(), own):
        names = _with_shared_weights(compile).names
        assert names[names.index("partition") :][:3] == ("partition", "shared_weights", "engine_per_profile")
    assert _with_shared_weights(own)["shared_weights"] == own["shared_weights"]
    assert _with_engine_cuts(own, "layers.*") == own, "without an engine for each profile nothing is cut"
    few = _with_shared_weights(pipeline.default(max_engines=1))
    assert _with_engine_cuts(few, "layers.*") == few


def test_sampling_is_transformers_own(llama: Any) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", LENGTHS)
    how = {"do_sample": True, "temperature": 0.9, "top_k": 12}
    drawn = []
    for each in (model, llama):
        torch.manual_seed(3)
        drawn.append(families.generated(each, inputs, 12, **how))
    assert torch.equal(*drawn)


def test_two_rows_at_most() -> None:
    """torch makes a constant of a batch of 1 or 2 where it asks whether it is 1. Experts that are a loop, whose
    turns data decides, are matmuls of groups while they are captured."""
    model, inputs = families.model("deepseek_v3"), families.prompts("deepseek_v3", LENGTHS[:2])
    model.set_experts_implementation("eager")
    compiled = compile_for_generation(model, executor="reference", **{**SIZES, "max_batch": 2})
    assert model.config._experts_implementation == "eager"
    assert "eager" not in ALL_EXPERTS_FUNCTIONS
    for rows in (2, 1):
        given = {name: value[:rows] for name, value in inputs.items()}
        assert torch.equal(families.generated(compiled, given, 6), families.generated(model, given, 6))


def test_a_checkpoint_may_say_that_it_has_no_cache(llama: Any) -> None:
    model, inputs = families.model("llama"), families.prompts("llama", LENGTHS)
    ours, theirs = (families.generated(each, inputs, 6, use_cache=False) for each in (llama, model))
    assert torch.equal(ours, theirs)


def test_states_generate_beside_each_other(llama: Any) -> None:
    other, inputs = llama.new_state(), families.prompts("llama", LENGTHS)
    expected = families.generated(llama, inputs, 8)
    other.generate(**families.prompts("llama", (9,)), max_new_tokens=3)
    assert torch.equal(families.generated(llama, inputs, 8), expected)
    assert torch.equal(families.generated(other, inputs, 8), expected)
    assert other.compiled["decoder"] is llama.compiled["decoder"]


def test_more_tokens_than_positions_are_an_error(llama: Any) -> None:
    with pytest.raises(pipeline.ExecutionError, match="161 tokens, and the cache has 160 positions"):
        families.generated(llama, families.prompts("llama", (7,)), 160)
    long = llama.new_state()
    with pytest.raises(pipeline.ExecutionError, match="161 tokens, and the cache has 160 positions"):
        long.generate(**families.prompts("llama", (161,)), max_new_tokens=2)
    caches = long.runners["decoder"].state_dict().values()
    assert len(caches) == 4 and not any(cache.any() for cache in caches), "nothing was written"
    with pytest.raises(ValueError, match="max_prompt_len is 9"):
        compile_for_generation(families.model("llama"), max_cache_len=8, max_prompt_len=9)


def test_programs_of_convert_and_export_with_cache_compile() -> None:
    """As transformers exports them, one token after the other."""
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache, convert_and_export_with_cache

    model = families.model("llama")
    config = model.generation_config
    config.cache_implementation, config.use_cache = "static", True
    config.cache_config = {"batch_size": 1, "max_cache_len": 12}
    exported = convert_and_export_with_cache(model)
    compiled = pipeline.default(require_full_compilation=True)(exported)
    module = compiled.module("reference")
    eager = TorchExportableModuleWithStaticCache(model)
    for position, token in enumerate((5, 17, 2, 60)):
        args = {"input_ids": torch.tensor([[token]]), "cache_position": torch.tensor([position])}
        torch.testing.assert_close(module(**args), eager(**args), atol=1e-4, rtol=1e-4)
    names = {f"{what}_{i}" for what in ("key_cache", "value_cache", "cumulative_length") for i in (0, 1)}
    assert module.state_dict().keys() == names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_row_that_is_masked_throughout_stays_finite_whatever_the_bias(dtype: torch.dtype) -> None:
    """As in transformers, where the lowest number takes the bias's place: their sum would be minus infinity."""
    from pipeline.compat.transformers.attention import masked_attention

    class Attends(torch.nn.Module):
        def forward(self, *given: torch.Tensor, **bias: torch.Tensor) -> Any:
            return masked_attention(self, *given, **bias)[0]

    inputs = [torch.randn(1, 4, n, 8).to(dtype) for n in (2, 160, 160)]
    mask = torch.arange(160) < torch.tensor([0, 5])[None, None, :, None]
    bias = {"position_bias": torch.full((1, 4, 2, 160), -200.0, dtype=dtype)}
    compiled = pipeline.default(require_full_compilation=True)(Attends().eval(), (*inputs, mask), bias)
    got = compiled.module("reference")(*inputs, mask, **bias)
    exact = [x.double() for x in inputs]
    want = masked_attention(Attends(), *exact, mask)[0]
    assert got.isfinite().all()
    assert (got[:, 1].double() - want[:, 1]).abs().max() < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("refuses", [True, False])
def test_scores_that_are_to_be_capped(
    refuses: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error where transformers' own sdpa raises one; that of older versions ignores the cap."""
    from pipeline.compat.transformers import attention

    def own(*args: Any, softcap: float | None = None, **kwargs: Any) -> None:
        if refuses and softcap is not None:
            raise ValueError("no softcap")

    monkeypatch.setattr(attention, "sdpa_attention_forward", own)
    attention._sdpa_refuses_softcap.cache_clear()
    query = torch.randn(1, 2, 3, 8)
    given: Any = (torch.nn.Module(), query, query, query, None)
    if refuses:
        with pytest.raises(ValueError, match="attn_implementation='eager'"):
            attention.masked_attention(*given, softcap=30.0)
    else:
        assert torch.equal(attention.masked_attention(*given, softcap=30.0)[0], attention.masked_attention(*given)[0])
        assert "ignores the model's softcap" in caplog.text
    attention._sdpa_refuses_softcap.cache_clear()


def test_distributions_check_as_before_where_the_model_tells_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=99, attn_implementation="flex_attention", **sizes)).eval()
    TorchPatcher.patch.cache_clear()
    monkeypatch.setattr(Distribution, "_validate_args", True)
    found = find_cached_tensors(model, {"input_ids": torch.zeros(1, 1, dtype=torch.int64)})
    assert found == [dict.fromkeys(("key", "value"), CachedTensor((1, 2, 1, 16), torch.float32, 2))]
    assert Distribution._validate_args


def test_what_is_no_language_model_is_told() -> None:
    with pytest.raises(TypeError, match=r"model is a Linear: expected a language model of transformers"):
        compile_for_generation(torch.nn.Linear(2, 2), max_cache_len=4)
    with pytest.raises(TypeError, match=r"has no argument 'max_batchsize': did you mean max_batch\?"):
        compile_for_generation(families.model("llama"), max_cache_len=4, max_batchsize=4)
    with pytest.raises(TypeError, match=r"compile= was passed together with the settings cuda_graphs"):
        compile_for_generation(families.model("llama"), max_cache_len=4, compile=pipeline.default(), cuda_graphs=True)
