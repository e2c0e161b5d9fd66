"""Models of transformers with recurrent states generate what they generate by themselves."""

from __future__ import annotations

import ast
import inspect
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest
import torch

import pipeline

pytest.importorskip("transformers")

import transformers

from pipeline.compat.transformers import compile_for_generation
from pipeline.compat.transformers.recurrences import REPLACEMENTS, replace_recurrences
from tests.compat import families

EVERYDAY = ("lfm2", "qwen3_next", "mamba2")
ALL = sorted(families.WITH_STATES)
LENGTHS = (5, 3, 7)
UNBUILT: Any = {"compile": pipeline.default().replace("build", pipeline.stages.unbuilt)}


def made(family: str, **sizes: Any) -> tuple[Any, Any]:
    """A family's model, and that compiled for the reference executor."""
    model = families.model(family)
    sizes = {"max_cache_len": 64, "max_batch": 3, "max_prompt_len": 16, **sizes}
    return model, compile_for_generation(model, executor="reference", **{**UNBUILT, **sizes})


def check(model: Any, compiled: Any, lengths: tuple[int, ...] = LENGTHS, steps: int = 24) -> None:
    inputs = families.prompts("", lengths)
    expected = families.generated(model, inputs, steps)
    assert torch.equal(families.generated(compiled, inputs, steps), expected)
    assert len(expected.unique()) > 2, "tokens differ, so that equal ones say something"


@pytest.mark.parametrize("family", EVERYDAY)
def test_tokens_are_eagers(family: str) -> None:
    model, compiled = made(family, compile=pipeline.default())
    check(model, compiled)
    decoder = compiled.compiled["decoder"]
    assert not decoder.coverage.fallback and decoder.engines


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*ALL} - {*EVERYDAY}))
def test_tokens_are_eagers_in_every_family(family: str) -> None:
    model, compiled = made(family, compile=pipeline.default())
    check(model, compiled)
    assert not compiled.compiled["decoder"].coverage.fallback


@pytest.mark.parametrize("family", ["lfm2", "mamba2"])
def test_sequences_begin_without_a_state(family: str) -> None:
    model, compiled = made(family)
    other = compiled.new_state()
    for each in (compiled, other, compiled):
        check(model, each, (7,), 6)
    check(model, compiled, (2, 4), 6)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "mamba", "falcon_h1"])
def test_a_prompt_takes_several_calls(family: str) -> None:
    """Padding on the left fills a call for one row, and a call may have one token more than the last."""
    model, compiled = made(family, max_prompt_len=3)
    check(model, compiled, (10, 3, 7), 6)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mamba2", "qwen3_next", "kimi_linear", "mamba"])
def test_prompts_of_several_chunks(family: str) -> None:
    """So many that they are a loop in the engine."""
    model, compiled = made(family, max_batch=2, max_cache_len=320, max_prompt_len=300)
    for lengths in ((290, 150), (300,), (65,)):
        check(model, compiled, lengths, 3)


def test_states_are_float32_and_have_no_positions() -> None:
    _, compiled = made("falcon_h1", max_batch=2)
    state = compiled.runners["decoder"].state_dict()
    found = {name: (tuple(x.shape), x.dtype) for name, x in state.items() if name.endswith("_cache_0")}
    keys = ((2, 2, 64, 8), torch.float32)
    assert found == {
        "key_cache_0": keys,
        "value_cache_0": keys,
        "conv_0_cache_0": ((2, 96, 3), torch.float32),
        "recurrent_0_cache_0": ((2, 8, 8, 8), torch.float32),
    }


@pytest.mark.parametrize("kind", ["Mamba", "Mamba2"])
def test_layers_of_one_structure_are_one_plan(kind: str) -> None:
    """Also where a layer's rates, which no product reads, are inputs of the engine."""
    sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 5}
    sizes |= {"num_heads": 32, "head_dim": 4, "n_groups": 1} if kind == "Mamba2" else {}
    config = getattr(transformers, f"{kind}Config")(**{**families.MAMBA, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    compiled = compile_for_generation(model, max_cache_len=32, max_prompt_len=8, executor="reference")
    engines = compiled.compiled["decoder"].engines
    plans = [len({id(e.plan) for e in engines if e.name.endswith(f"_profile_{place}")}) for place in (0, 1)]
    assert len(engines) == 10 and plans == [3, 3], "the first layer, the last, and all between"


def functions(module: ModuleType) -> dict[str, Any]:
    """The functions of a module of transformers that are replaced."""
    return {name: getattr(module, name) for name in REPLACEMENTS if hasattr(module, name)}


def test_functions_of_transformers_stay_as_they_are() -> None:
    """Afterwards, whichever of two threads leaves first; and meanwhile in every other thread."""
    from transformers.models.mamba2 import modeling_mamba2

    before, model = functions(modeling_mamba2), families.model("mamba2")
    assert len(before) == 3
    leave = Event()

    def stay(entered: Event) -> None:
        with replace_recurrences(model):
            entered.set()
            leave.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with replace_recurrences(model):
            entered = Event()
            staying = pool.submit(stay, entered)
            assert entered.wait(60) and functions(modeling_mamba2) != before
        with pytest.raises(ValueError, match="max_cache_len is 0"):
            made("mamba2", max_cache_len=0)
        x, weight = torch.randn(1, 4, 6), torch.randn(4, 3)
        found = modeling_mamba2.causal_conv1d_fn(x, weight)
        assert torch.equal(found, before["causal_conv1d_fn"](x, weight)), "this thread has transformers' own"
        leave.set()
        staying.result(60)
    assert functions(modeling_mamba2) == before


def test_parameters_are_those_of_transformers() -> None:
    """Of each model's functions: a replacement names none that they do not have."""
    root = Path(str(transformers.__file__)).parent
    text = [path.read_text(encoding="utf-8") for path in (*root.rglob("modeling_*.py"), root / "masking_utils.py")]
    for name, make in REPLACEMENTS.items():
        _, *ours = inspect.signature(make).parameters.values()
        named = {each.name for each in ours if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        found = [node for source in text if f"def {name}(" in source for node in ast.parse(source).body]
        theirs = [node.args for node in found if isinstance(node, ast.FunctionDef) and node.name == name]
        assert theirs, f"transformers {transformers.__version__} has no {name}"
        for each in theirs:
            own = [*each.posonlyargs, *each.args, *each.kwonlyargs]
            assert named <= {argument.arg.lower() for argument in own}, name


def test_a_class_may_be_of_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of none that is there, or of one with functions of these names, which stay its own."""
    model, own = families.model("lfm2"), families.__name__
    monkeypatch.setattr(type(model), "__module__", "a_module_that_is_gone")
    monkeypatch.setattr(type(model.model), "__module__", own)
    monkeypatch.setattr(families, "causal_conv1d_fn", None, raising=False)
    made = compile_for_generation(model, max_cache_len=32, executor="reference", **UNBUILT)
    check(model, made, (5,), 4)


REFUSED = {
    "Zaya": "computes its recurrent states by its own functions",
    "MiniMax": "fails with an empty cache of transformers",
    "DeepseekV4": "caches tensors other than keys, values",
    "Rwkv": "returns no cache of keys and values",
    "Bert": "returns no cache of keys and values",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_another_past_is_refused_in_words(kind: str) -> None:
    more = {
        "Rwkv": {"attention_hidden_size": 32},
        "Bert": {"num_attention_heads": 4},
        "DeepseekV4": {**families.EXPERTS, "n_routed_experts": 4},
    }
    config = getattr(transformers, f"{kind}Config")(**{**families.SMALL, **more.get(kind, {})})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(pipeline.CaptureError, match=f"{kind}(ForCausalLM|LMHeadModel)(\\.forward)? {REFUSED[kind]}"):
        compile_for_generation(model, max_cache_len=32)
