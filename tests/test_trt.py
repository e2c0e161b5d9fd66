"""The bindings in one place: what they can do, dtypes, weights, the log, layers by kind."""

import contextlib
import gc
import logging
import os
import subprocess
import sys

import attrs
import pytest
import torch

from pipeline.trt import (
    CAPABILITIES,
    DTYPE_NAMES,
    Log,
    as_weights,
    compute_capability,
    dtype_name,
    enum_member,
    enum_name,
    has_gpu,
    layer_class,
    layer_kind,
    new_network,
    to_torch,
    to_trt,
    torch_dtype,
    trt,
    typed_layer,
    weights_pointer,
)

PLAIN = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
)


def importing(flavour: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIPELINE_TENSORRT": flavour}
    program = "import pipeline.trt; print(pipeline.trt.CAPABILITIES.flavour)"
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_the_environment_chooses_the_bindings() -> None:
    assert importing(CAPABILITIES.flavour).stdout.strip() == CAPABILITIES.flavour


def test_an_unknown_choice_lists_the_known() -> None:
    assert "but must be one of tensorrt, tensorrt_rtx" in importing("tensorflow").stderr


@pytest.mark.skipif(CAPABILITIES.flavour == "tensorrt", reason="tensorrt is installed here")
def test_a_choice_that_is_not_installed_says_how_to_install_it() -> None:
    assert "ImportError" in (said := importing("tensorrt").stderr)
    assert "pip install tensorrt " in said


def test_capabilities_are_frozen_and_say_what_was_probed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        CAPABILITIES.plugins = True  # type: ignore[misc]
    assert CAPABILITIES.version == trt.__version__
    assert ".".join(map(str, CAPABILITIES.version_tuple[:2])) == ".".join(trt.__version__.split(".")[:2])
    assert CAPABILITIES.plugins == hasattr(trt.INetworkDefinition, "add_plugin_v3")
    assert CAPABILITIES.attention in ("none", "v1", "v2")


@pytest.mark.parametrize("text", CAPABILITIES.compute_capabilities)
def test_compute_capabilities_are_written_as_nvidia_writes_them(text: str) -> None:
    assert enum_name(compute_capability(text)) == "SM" + text.replace(".", "")


def test_an_unknown_compute_capability_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"no ComputeCapability\.SM42"):
        compute_capability("4.2")


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_dtypes_go_there_and_back(dtype: torch.dtype) -> None:
    assert to_torch(to_trt(dtype)) == dtype == torch_dtype(dtype_name(to_trt(dtype)))


def test_every_dtype_of_tensorrt_has_torchs_name() -> None:
    assert set(DTYPE_NAMES) == set(trt.DataType.__members__)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int16])
def test_a_dtype_that_tensorrt_lacks_is_a_type_error(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"TensorRT has no dtype for {dtype}"):
        to_trt(dtype)


def test_an_unknown_name_of_a_dtype_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="float99"):
        torch_dtype("float99")


def test_enums_by_name() -> None:
    assert enum_member(trt.PoolingType, "MAX") == trt.PoolingType.MAX
    with pytest.raises(ValueError, match=r"no PoolingType\.MIN; it has MAX, AVERAGE"):
        enum_member(trt.PoolingType, "MIN")


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_weights_point_at_the_tensor_and_come_back_so(dtype: torch.dtype) -> None:
    value = torch.ones(6).to(dtype)
    network = new_network(trt.Builder(Log()))
    network.add_constant((2, 3), as_weights(value))
    assert weights_pointer(typed_layer(network, 0).weights) == value.data_ptr()


def test_weights_of_a_view_that_is_not_contiguous_are_refused() -> None:
    with pytest.raises(ValueError, match="contiguous CPU tensor"):
        as_weights(torch.ones(2, 3).t())


def network_with_an_error(log: Log) -> None:
    network = new_network(trt.Builder(log))
    left, right = (network.add_input(name, trt.float32, (size, 3)) for name, size in (("a", 2), ("b", 4)))
    layer = network.add_elementwise(left, right, trt.ElementWiseOperation.SUM)
    with contextlib.suppress(RuntimeError):  # since 1.5 the question raises as well
        assert layer.get_output(0).shape is not None


def test_the_log_keeps_tensorrts_own_errors_and_no_noise() -> None:
    log = Log()
    mark = log.position()
    network_with_an_error(log)
    (error,) = log.errors_since(mark)
    assert "broadcast dimensions must be conformable" in error
    assert log.errors_since(log.position()) == ()


def test_the_log_forwards_at_matching_levels(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pipeline.tensorrt"):
        network_with_an_error(Log())
    levels = {record.levelno for record in caplog.records if "broadcast dimensions" in record.message}
    assert levels == {logging.ERROR}
    assert not any("Cuda Runtime" in r.message for r in caplog.records if r.levelno > logging.DEBUG)


def test_what_no_user_can_change_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    builder = trt.Builder(log := Log())
    network = new_network(builder)
    network.add_input("unread", trt.float32, (2,))
    network.mark_output(network.add_identity(network.add_input("x", trt.float32, (2,))).get_output(0))
    with caplog.at_level(logging.INFO, "pipeline.tensorrt"):
        assert builder.build_serialized_network(network, builder.create_builder_config()) is not None
    assert any("RemoveDeadLayers" in message.text for message in log.messages)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_networks_are_strongly_typed_without_a_word() -> None:
    log = Log()
    network = new_network(trt.Builder(log))
    assert [message for message in log.messages if message.severity == "WARNING" and not message.is_noise] == []
    assert network.num_layers == 0


def test_layers_have_the_class_of_their_kind_even_when_the_object_is_made_anew() -> None:
    network = new_network(trt.Builder(Log()))
    source = network.add_input("x", trt.float32, (1, 2, 4, 4))
    network.add_pooling_nd(source, trt.PoolingType.AVERAGE, (2, 2))
    gc.collect()
    layer = typed_layer(network, 0)
    assert type(layer) is trt.IPoolingLayer
    assert layer_kind(layer) == "POOLING"
    assert layer.type == trt.PoolingType.AVERAGE


@pytest.mark.parametrize("kind", sorted(CAPABILITIES.layer_kinds - {"PLUGIN"}))
def test_every_kind_has_a_class(kind: str) -> None:
    assert layer_class(kind) is not trt.ILayer


def test_has_gpu_is_what_torch_says() -> None:
    assert has_gpu() == torch.cuda.is_available()
