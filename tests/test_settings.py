"""CompilationSettings: what it takes, what it refuses, how it prints."""

import inspect
import operator
import re
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings import CompilationSettings

aten = torch.ops.aten
whole = st.integers(0, 2**40)
NAMES = ["aten.topk.default", "aten::gelu", "torch.ops.aten.add.Tensor"]
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "truncate_double": st.booleans(),
    "require_full_compilation": st.booleans(),
    "require_fused_quantization": st.booleans(),
    "min_block_size": st.integers(1, 50),
    "max_engines": st.none() | st.integers(1, 50),
    "torch_executed_ops": st.frozensets(st.sampled_from([*NAMES, aten.mul.Tensor, aten.sum.dim_IntList, operator.add])),
    "assume_dynamic_shape_support": st.booleans(),
    "immutable_weights": st.booleans(),
    "refittable_weights": st.lists(st.sampled_from(["layers.0.*", "head.weight"])),
    "refit_identical_engine_weights": st.booleans(),
    "strip_engine_weights": st.booleans(),
    "version_compatible": st.booleans(),
    "optimization_level": st.none() | st.integers(0, 5),
    "workspace_size": st.none() | whole,
    "max_aux_streams": st.none() | st.integers(0, 8),
    "compute_capabilities": st.lists(st.sampled_from(["7.5", "8.6", "8.9", "12.0", "12.1"])),
    "device": st.sampled_from([None, "cuda", "cpu"]),
    "decisions": st.sampled_from(["refuse", "example"]),
    "decompose_attention": st.booleans(),
    "use_fp32_acc": st.none() | st.booleans(),
    "faster_in_torch": st.booleans(),
    "measurements": st.booleans() | st.sampled_from(["/tmp/times.json", "times.json"]),
    "collectives_in_engine": st.booleans(),
    "load_built_engines": st.booleans(),
    "progress": st.none() | st.booleans(),
    "cache_built_engines": st.booleans(),
    "reuse_cached_engines": st.booleans(),
    "engine_cache_dir": st.sampled_from([None, "/tmp/engines", "s3://bucket/engines"]),
    "engine_cache_size": whole,
    "cuda_graphs": st.booleans(),
    "max_cuda_graphs": st.integers(1, 20),
    "engine_graphs": st.booleans(),
    "reuse_outputs": st.booleans(),
    "execution_contexts": st.integers(1, 20),
    "kernel_specialization": st.sampled_from(["none", "eager", "lazy"]),
    "weight_streaming_budget": st.none() | whole,
    "torch_compile": st.sampled_from([None, "default", "max-autotune-no-cudagraphs"]),
    "copy_weights": st.booleans(),
    "runtime_cache": st.booleans() | st.sampled_from(["/tmp/kernels", "kernels"]),
}
some_fields = st.fixed_dictionaries({}, optional=FIELDS)


def in_encoder(path: str) -> bool:
    """A predicate on module paths, with a name that prints."""
    return path.startswith("encoder")


def test_every_field_has_a_strategy_here_and_a_line_in_the_docstring() -> None:
    assert list(FIELDS) == list(CompilationSettings.names())
    for name in CompilationSettings.names():
        assert f"\n{name}: " in (inspect.getdoc(CompilationSettings) or "")


@given(some_fields)
def test_equal_fields_make_equal_settings_that_hash_and_print_alike(fields: dict[str, Any]) -> None:
    one, other = CompilationSettings(**fields), CompilationSettings().evolve(**fields)
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)


@given(some_fields, some_fields)
def test_evolve_changes_what_it_names_and_nothing_else(first: dict[str, Any], second: dict[str, Any]) -> None:
    before = CompilationSettings(**first)
    printed = repr(before)
    assert before.evolve(**second) == CompilationSettings(**{**first, **second})
    assert repr(before) == printed
    assert before.evolve() == before


@given(some_fields)
def test_repr_shows_exactly_what_differs_from_the_default(fields: dict[str, Any]) -> None:
    settings, default = CompilationSettings(**fields), CompilationSettings()
    for name in CompilationSettings.names():
        assert bool(re.search(rf"\b{name}=", repr(settings))) == (getattr(settings, name) != getattr(default, name))


def test_repr_is_the_same_in_every_process() -> None:
    settings = CompilationSettings(torch_executed_ops=[in_encoder, operator.add, "aten::gelu", aten.mul.Tensor])
    entries = "'aten::gelu', _operator.add, tests.test_settings.in_encoder, torch.ops.aten.mul.Tensor"
    assert (
        repr(settings).replace(__name__, "tests.test_settings")
        == f"CompilationSettings(torch_executed_ops={{{entries}}})"
    )
    assert repr(CompilationSettings()) == "CompilationSettings()"


def test_settings_are_frozen_and_keyword_only() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        CompilationSettings().min_block_size = 1
    with pytest.raises(TypeError):
        CompilationSettings(True)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("min_block_size", 0, ValueError),
        ("min_block_size", True, TypeError),
        ("min_block_size", None, TypeError),
        ("max_engines", 0, ValueError),
        ("optimization_level", "3", TypeError),
        ("workspace_size", -1, ValueError),
        ("workspace_size", 1.5, TypeError),
        ("torch_executed_ops", [3], TypeError),
        ("torch_executed_ops", ["relu"], ValueError),
        ("torch_executed_ops", ["aten.relu.out_of_range"], ValueError),
        ("torch_executed_ops", [torch.nn.functional.relu], TypeError),
        ("workspace_size", 2**70, ValueError),
        ("max_aux_streams", 2**40, ValueError),
        ("compute_capabilities", ["86"], ValueError),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(name: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=name):
        CompilationSettings(**{name: value})


def test_compute_capabilities_have_one_form() -> None:
    assert CompilationSettings(compute_capabilities=["12.0", "8.6", "12.0"]).compute_capabilities == ("8.6", "12.0")


@pytest.mark.parametrize(
    "entry",
    [
        aten.add.Tensor,
        aten.add,
        "aten.add.Tensor",
        "aten.add",
        "aten::add.Tensor",
        "torch.ops.aten.add.Tensor",
        in_encoder,
    ],
)
def test_every_way_to_name_an_operator_keeps_it_in_torch(entry: Any) -> None:
    settings = CompilationSettings(torch_executed_ops=[entry])
    assert settings.runs_in_torch(aten.add.Tensor, "encoder.layers.0")
    assert not settings.runs_in_torch(aten.mul.Tensor, "decoder")
    assert not CompilationSettings().runs_in_torch(aten.add.Tensor, "encoder")


def test_a_builtin_is_an_operator_and_not_a_predicate() -> None:
    settings = CompilationSettings(torch_executed_ops=[operator.mul])
    assert settings.runs_in_torch(operator.mul)
    assert not settings.runs_in_torch(operator.add)


def test_a_predicate_made_without_a_module_is_a_predicate() -> None:
    space: dict[str, Any] = {}
    exec("inside = lambda path: 'head' in path", space)
    settings = CompilationSettings(torch_executed_ops=[space["inside"]])
    assert space["inside"].__module__ in (None, "builtins")
    assert settings.runs_in_torch(aten.mul.Tensor, "head.0")
    assert not settings.runs_in_torch(aten.mul.Tensor, "body")
