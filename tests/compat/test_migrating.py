"""The guide from Torch-TensorRT: the code of each of its rows runs, each setting it names is known."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline import impl
from pipeline.compat.torch_tensorrt import converter_utils
from pipeline.compat.torch_tensorrt import impl as compat_impl
from pipeline.impl import base
from pipeline.settings_migration import ELSEWHERE
from pipeline.trt import trt
from tests.docs.test_examples import ROOT, blocks

GUIDE = (ROOT / "docs" / "torch-tensorrt-names.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (.*?)\n(.*?)(?=^##|\Z)", GUIDE, re.M | re.S))


def rows(section: str) -> list[tuple[str, str]]:
    """What it is called there, and our code, of each row of a section's table."""
    found = re.findall(r"^\| (.*?) \| `(.*)` \|$", SECTIONS[section], re.M)
    assert len(found) == len(re.findall(r"^\| ", SECTIONS[section], re.M)) - 1, "a row without code"
    return found


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the guide's blocks define, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    log = logging.getLogger("pipeline")
    level = log.level
    found: dict[str, Any] = {}
    for block in blocks(GUIDE, "python"):
        exec(compile(block, "torch-tensorrt-names.md", "exec"), found)
    yield found
    log.setLevel(level)
    torch.compiler.reset()


@pytest.mark.parametrize("section", ["Compiling and running", "Settings", "Converters", "Names"])
def test_each_row_runs(section: str, names: dict[str, Any]) -> None:
    for theirs, ours in rows(section):
        try:
            exec(compile(ours, theirs, "exec"), names)
        except Exception as error:
            error.add_note(f"{theirs}: {ours}")
            raise


def test_each_building_block_is_one() -> None:
    made: list[str] = []

    @pipeline.dynamo_tensorrt_converter(torch.ops.aten.add.Tensor, priority=pipeline.ConverterPriority.HIGH)
    def every(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        known = {"ctx": ctx, "name": name, "x": args[0], "y": args[1]}
        for theirs, ours in rows("Our own building blocks"):
            result = eval(ours, {**known, "impl": impl, "base": base, "torch": torch, "trt": trt})
            assert isinstance(result, trt.ITensor | int), theirs
            made.append(ours)
        return impl.elementwise.add(ctx, name, "SUM", *args)

    x = torch.randn(2, 8)
    compile = pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(every)).until("convert")
    compile(torch.export.export(_Sum(), (x, x)))
    assert len(made) > 15


def blocks_of_code() -> dict[str, str]:
    """What a building block stands for, by its call as the guide writes it."""
    found = {}
    families = {name: each for name, each in vars(compat_impl).items() if inspect.ismodule(each)}
    for family, module in families.items():
        for name, function in vars(module).items():
            said = " ".join((getattr(function, "__doc__", None) or "").split())
            if is_block(function) or said.startswith("Refused"):
                own = ", ".join(list(inspect.signature(function).parameters)[4:]) if is_block(function) else "…"
                found[f"impl.{family}.{name}({own})"] = said
    return found


def is_block(function: Any) -> bool:
    """Whether a function of a family has the four arguments of a building block."""
    ours = inspect.isfunction(function) and function.__module__.startswith("pipeline.compat")
    return ours and [*inspect.signature(function).parameters][:4] == ["ctx", "target", "source_ir", "name"]


def test_every_building_block_is_listed_as_it_is() -> None:
    listed = dict(re.findall(r"^\| `(impl\..*?)` \| (.*) \|$", SECTIONS["Building blocks"], re.M))
    assert listed == blocks_of_code()
    assert len(listed) > 150


THEIRS = """
    SourceIR ConversionContext ConversionCtx dynamo_tensorrt_converter ConverterPriority ConverterSupport
    CallingConvention ConverterRegistry DYNAMO_CONVERTERS DYNAMO_ATEN_CONVERTERS DynamoConverterImplSignature
    ConverterImplSignature LegacyConverterImplSignature has_static_shapes has_dynamic_shapes has_static_shapes_in_args
    has_dynamic_shapes_in_args Target Argument TRTTensor TRTNetwork TRTLayer TRTDataType Shape get_unvalidated keys get
    unique_targets get_all_converters_with_target get_converter_support_info display_all_available_converters
    qualified_name_or_str set_compilation_settings set_disallowed_targets get_disallowed_targets validate_invariants net
    compilation_settings requires_output_allocator weight_refit_map cpu_weights_reference_holder record_weight
    clear_cpu_weights_reference_holder convert_module interpret_module_to_result TRTInterpreter TRTInterpreterResult
    UnsupportedOperatorException get_graph_converter_support register_torch_trt_decomposition TORCH_TRT_DECOMPOSITIONS
    get_decompositions torch_enabled_decompositions torch_disabled_decompositions lower_graph_testing get_trt_tensor
    create_constant cast_trt_tensor cast_int_int_div_trt_tensor cast_int_or_float_to_bool broadcast broadcastable
    broadcast_to_same_shape prepend_ones append set_item to_numpy to_torch to_trt_weights args_bounds_check
    enforce_tensor_types set_layer_name get_positive_dim get_axes_for_reduce_op has_dynamic_shape flatten_dims
    calculate_strides extend_attr_to_tuple get_node_name get_node_io is_only_operator_on_placeholder tensorrt_converter
    CONVERTERS acc_ops add_activation_layer add_unary_layer add_binary_elementwise_layer add_matrix_multiply_layer
    type_cast mark_as_int8_layer get_dyn_range load_tensorrt_llm_for_nccl custom_op generate_plugin
    generate_plugin_converter
"""
"""The public names of Torch-TensorRT's converter API, building blocks aside."""


@pytest.mark.parametrize("name", THEIRS.split())
def test_every_name_of_theirs_is_told(name: str) -> None:
    assert re.search(rf"\b{name}\b", " ".join(re.findall(r"`([^`\n]*)`", GUIDE)))


def test_helpers_of_theirs_are_ours() -> None:
    helpers = re.findall(
        r"get_trt_tensor.*?is_only_operator_on_placeholder|add_activation_layer.*?load_\w+", THEIRS, re.S
    )
    names = " ".join(helpers).split()
    assert set(names) == set(converter_utils.__all__)
    assert all(callable(getattr(converter_utils, name)) for name in names)


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_a_mutable_module_follows_its_weights(names: dict[str, Any]) -> None:
    model, x = names["model"], names["x"]
    with torch.no_grad():
        mutable = torch.compile(model, backend=pipeline.backend(executor="reference"))
        mutable(x)
        model.load_state_dict(names["other"].state_dict())
        torch.testing.assert_close(mutable(x), model(x), rtol=1e-4, atol=1e-5)


SAME = re.search(r"## Settings\n\n(.*?) have the same names", GUIDE, re.S)
NAMED = re.findall(r"`(\w+?)(?:=[^`]*)?`", "".join(theirs for theirs, _ in rows("Settings")))


def test_settings_that_have_the_same_names() -> None:
    assert SAME is not None
    assert set(re.findall(r"`(\w+)`", SAME[1])) <= set(pipeline.CompilationSettings.names())


@pytest.mark.parametrize("name", sorted({*NAMED, *ELSEWHERE} - {"precision"}))  # `default` has one of its own
def test_a_setting_of_theirs_says_how_to_go_on(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        pipeline.default(**{name: True})
    assert str(caught.value) == f"{name!r} is not a compilation setting; {ELSEWHERE[name]}"
