"""The frozen description of a network: faithful, printed the same every time, digested."""

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from pipeline.network.attributes import ATTRIBUTES, UNREADABLE, WEIGHTS
from pipeline.network.description import (
    Layer,
    Network,
    Profile,
    Tensor,
    Weight,
    _make_unique,
    describe,
    network_weights,
    value_text,
)
from pipeline.trt import CAPABILITIES, Log, as_weights, enum_name, layer_class, layer_kind, new_network, trt

KERNEL = torch.arange(54.0).reshape(2, 3, 3, 3)
LOG = Log()
BUILDER = trt.Builder(LOG)


def known(pointer: int) -> Weight | None:
    return Weight("conv.weight", "float32", (2, 3, 3, 3)) if pointer == KERNEL.data_ptr() else None


def convolution(kernel: torch.Tensor = KERNEL) -> Any:
    network = new_network(BUILDER)
    source = network.add_input("x", trt.float32 if kernel.dtype == torch.float32 else trt.bfloat16, (-1, 3, 8, 8))
    layer = network.add_convolution_nd(source, 2, (3, 3), as_weights(kernel))
    layer.name, layer.stride_nd = "stem/conv", (2, 2)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    return network


PRINTED = """\
network 'net'
input x: float32[-1, 3, 8, 8]
output y: float32[-1, 2, 3, 3]
weight conv.weight: float32[2, 3, 3, 3]
profile x: [1, 3, 8, 8] [4, 3, 8, 8] [8, 3, 8, 8]
CONVOLUTION 'stem/conv' (x) -> (y: float32[-1, 2, 3, 3]) num_output_maps=2 num_groups=1 kernel_size_nd=[3,3] \
dilation_nd=[1,1] stride_nd=[2,2] pre_padding=[0,0] post_padding=[0,0] padding_mode=EXPLICIT_ROUND_DOWN \
kernel='conv.weight'
"""


def test_it_prints_readably_and_the_same_every_time() -> None:
    profile = Profile((("x", (1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8)),))
    twice = [describe(convolution(), name="net", weight_name=known, profile=profile) for _ in range(2)]
    assert str(twice[0]) == str(twice[1]) == PRINTED
    assert twice[0].digest == twice[1].digest
    assert twice[0].digest != describe(convolution(), name="net", weight_name=known).digest


def test_it_is_frozen_and_answers_queries() -> None:
    network = describe(convolution(), name="net", weight_name=known)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        network.name = "other"  # type: ignore[misc]
    assert network.kinds() == {"CONVOLUTION": 1}
    assert network.layer("stem/conv").attribute("stride_nd") == (2, 2)
    assert network.layer("stem/conv").attribute("nothing", 7) == 7
    assert network.layer("stem/conv").weight("kernel") == "conv.weight"
    assert network.layer("stem/conv").weight("bias") is None
    assert network.weight("conv.weight").shape == (2, 3, 3, 3)
    with pytest.raises(KeyError, match="no layer 'head'"):
        network.layer("head")
    with pytest.raises(KeyError, match="no weight 'head'"):
        network.weight("head")


def test_digests_tell_apart_what_equality_does_not() -> None:
    def having(value: Any) -> Network:
        layer = Layer("REDUCE", "r", ("x",), (), (("keep_dims", value),))
        return Network("n", (), (), (layer,))

    assert having(1) == having(True)
    assert len({having(value).digest for value in (1, True, 1.0, "1")}) == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [((1, (2,)), "[1,[2]]"), ("MAX", "MAX"), ("ij->i", "'ij->i'"), (None, "None"), (0.1, "0.1"), ((), "[]")],
)
def test_values_print_on_one_line(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_weights_nobody_knows_are_an_error_that_names_the_layer() -> None:
    with pytest.raises(ValueError, match=r"no name was recorded for the kernel of layer 'stem/conv' \(54 x float32\)"):
        describe(convolution(), name="net", weight_name=lambda pointer: None)


def test_weights_of_another_size_are_an_error() -> None:
    with pytest.raises(ValueError, match="has 54 elements"):
        describe(convolution(), name="net", weight_name=lambda pointer: Weight("w", "float32", (2,)))


def test_two_weights_of_one_name_are_an_error() -> None:
    network = new_network(BUILDER)
    for value in (one := torch.ones(2), torch.zeros(2, 1)):
        network.add_constant(tuple(value.shape), as_weights(value))
    with pytest.raises(ValueError, match="two weights have the name 'w'"):
        describe(
            network,
            name="net",
            weight_name=lambda pointer: Weight("w", "float32", (2,) if pointer == one.data_ptr() else (2, 1)),
        )


def test_weights_by_layer_and_role_come_first() -> None:
    def at(layer: str, role: str) -> Weight:
        return Weight(f"{layer}:{role}", "float32", (54,))

    network = describe(convolution(), name="net", weight_name=known, weight_at=at)
    assert network.layer("stem/conv").weights == (("kernel", "stem/conv:kernel"),)


def test_weights_that_numpy_lacks_are_found_too() -> None:
    kernel = KERNEL.bfloat16()
    (row,) = network_weights(convolution(kernel))
    assert (row.layer, row.role, row.dtype, row.count) == ("stem/conv", "kernel", "bfloat16", 54)
    assert row.pointer == kernel.data_ptr()


def test_empty_constants_need_no_name() -> None:
    network = new_network(BUILDER)
    network.add_constant((0, 3), trt.Weights(trt.float32))
    (layer,) = describe(network, name="net", weight_name=known).layers
    assert layer.weights == () and layer.attribute("shape") == (0, 3)


def test_equal_names_are_told_apart() -> None:
    """TensorRT 1.4 refuses a name that is taken and keeps its own; others need not."""
    network = new_network(BUILDER)
    value = network.add_input("x", trt.float32, (2,))
    for _ in range(3):
        layer = network.add_unary(value, trt.UnaryOperation.EXP)
        layer.name, layer.get_output(0).name = "exp", "y"
        value = layer.get_output(0)
    network.mark_output(value)
    described = describe(network, name="net", weight_name=known)
    assert len({layer.name for layer in described.layers}) == 3
    assert described.outputs == described.layers[-1].outputs
    assert described.layers[1].inputs == (described.layers[0].outputs[0].name,)


def test_a_taken_name_gets_a_number() -> None:
    taken = {"y"}
    assert [_make_unique("y", taken), _make_unique("y", taken), _make_unique("z", taken)] == ["y#2", "y#3", "z"]


def test_an_invalid_layer_is_an_error() -> None:
    network = new_network(BUILDER)
    left, right = (network.add_input(name, trt.float32, (size,)) for name, size in (("a", 2), ("b", 3)))
    network.add_elementwise(left, right, trt.ElementWiseOperation.SUM).name = "sum"
    with pytest.raises(ValueError, match=r"tensor 'sum_output' has no shape|has no shape"):
        describe(network, name="net", weight_name=known)


def sliced(dynamic: tuple[int, ...]) -> Layer:
    network = new_network(BUILDER)
    source = network.add_input("x", trt.float32, (4,))
    layer = network.add_slice(source, (1,), (2,), (1,))
    for index in dynamic:
        layer.set_input(index, network.add_input(f"in{index}", trt.int64, (1,)))
    mark = LOG.position()
    row = describe(network, name="net", weight_name=known).layers[0]
    assert LOG.messages[mark:] == []
    return row


@pytest.mark.parametrize("dynamic", [(), (1,), (2,), (1, 3), (1, 2, 3)])
def test_attributes_that_inputs_replace_are_left_out_and_never_asked_for(dynamic: tuple[int, ...]) -> None:
    row = sliced(dynamic)
    names = {"start": 1, "shape": 2, "stride": 3}
    assert {name for name, _ in row.attributes} == {"mode", "axes", *(n for n, i in names.items() if i not in dynamic)}
    assert [name is not None for name in row.inputs] == [i in (0, *dynamic) for i in range(max(dynamic, default=0) + 1)]


def test_a_resize_has_a_shape_or_scales() -> None:
    network = new_network(BUILDER)
    source = network.add_input("x", trt.float32, (1, 1, 4, 4))
    network.add_resize(source).scales = [1, 1, 2, 2]
    network.add_resize(source).shape = (1, 1, 2, 2)
    mark = LOG.position()
    first, second = describe(network, name="net", weight_name=known).layers
    assert (first.attribute("scales"), first.attribute("shape")) == ((1.0, 1.0, 2.0, 2.0), None)
    assert (second.attribute("scales"), second.attribute("shape")) == (None, (1, 1, 2, 2))
    assert LOG.messages[mark:] == []


@pytest.mark.skipif(CAPABILITIES.attention == "none", reason="this TensorRT has no attention")
def test_attention_is_described_at_its_input() -> None:
    network = new_network(BUILDER)
    query = network.add_input("q", trt.float16, (1, 2, 4, 8))
    attention = network.add_attention(query, query, query, trt.AttentionNormalizationOp.SOFTMAX, True)
    attention.decomposable = True
    mark = LOG.position()
    first, second = describe(network, name="net", weight_name=known).layers
    assert LOG.errors_since(mark) == ()
    assert (first.kind, second.kind) == ("ATTENTION_INPUT", "ATTENTION_OUTPUT")
    assert first.attribute("causal", True) is True and first.attribute("decomposable") is True
    assert first.attribute("causal_kind", "UPPER_LEFT") == "UPPER_LEFT"
    assert len({"causal", "causal_kind"} & {name for name, _ in first.attributes}) == 1
    assert first.attribute("attention") == second.attribute("attention") == 0


def test_boundaries_say_which_loop_they_bound() -> None:
    network = new_network(BUILDER)
    start = network.add_input("x", trt.float32, (2,))
    count = network.add_input("n", trt.int32, ())
    for _ in range(2):
        loop = network.add_loop()
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        recurrence = loop.add_recurrence(start)
        recurrence.set_input(1, network.add_unary(recurrence.get_output(0), trt.UnaryOperation.EXP).get_output(0))
        loop.add_loop_output(recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0)
    rows = describe(network, name="net", weight_name=known).layers
    assert [row.attribute("loop") for row in rows] == [0, 0, None, 0, 1, 1, None, 1]


def test_the_table_names_only_kinds_and_attributes_that_exist() -> None:
    kinds = CAPABILITIES.layer_kinds
    assert {*ATTRIBUTES, *WEIGHTS, *UNREADABLE} - kinds <= {"PLUGIN", "MOE", "DIST_COLLECTIVE", "DYNAMIC_QUANTIZE"}
    assert not set(ATTRIBUTES) & set(UNREADABLE)


def test_every_readable_property_of_a_layer_is_in_the_table() -> None:
    """What the bindings have and the table leaves out is listed here, with the reason."""
    left_out = {
        "padding_nd": "is pre_padding again",
        "compute_precision": "a setting of weakly typed networks",
        "loop": "is added by describe()",
        "conditional": "is added by describe()",
        "attention": "is added by describe()",
        "is_alpha_beta_int64": "says how alpha and beta are read",
        "plugin": "is read field by field",
        "set_input": "is no attribute",
        "update_lengths": "is the fourth input",
    }
    for kind in sorted(CAPABILITIES.layer_kinds - set(UNREADABLE)):
        own = {name for name in vars(layer_class(kind)) if not name.startswith("_")}
        listed = {attribute.name for attribute in ATTRIBUTES.get(kind, ())} | set(WEIGHTS.get(kind, ()))
        assert own - listed - set(left_out) == set(), kind


def test_kinds_are_read_past_a_type_of_their_own() -> None:
    network = new_network(BUILDER)
    source = network.add_input("x", trt.float32, (1, 2))
    layer = network.add_activation(source, trt.ActivationType.RELU)
    assert layer_kind(layer) == "ACTIVATION"
    assert describe(network, name="n", weight_name=known).layers[0].attribute("type") == "RELU"


def test_rows_print_absent_inputs() -> None:
    row = Layer("SLICE", "s", ("x", None, "size"), (Tensor("y", "float32", (2,)),))
    assert str(row) == "SLICE 's' (x, -, size) -> (y: float32[2])"


def plugin_layer() -> Any:
    """A stand-in with the interface that the bindings document: RTX makes no plugin layers."""
    field = SimpleNamespace(name="size", type=trt.PluginFieldType.INT32, data=b"\x03\x00\x00\x00")
    core = SimpleNamespace(plugin_name="Roi", plugin_version="2", plugin_namespace="")
    runtime = SimpleNamespace(get_fields_to_serialize=lambda: [field])
    interfaces = {trt.PluginCapabilityType.CORE: core, trt.PluginCapabilityType.RUNTIME: runtime}
    plugin = SimpleNamespace(
        get_capability_interface=interfaces.__getitem__,
        plugin_type="Old",
        plugin_version="1",
        plugin_namespace="ns",
        serialize=lambda: b"state",
    )
    return SimpleNamespace(plugin=plugin)


def test_plugins_are_described_with_their_state() -> None:
    later, older = (
        {attribute.name: attribute.type.read(plugin_layer(), attribute.name) for attribute in ATTRIBUTES[kind]}
        for kind in ("PLUGIN_V3", "PLUGIN_V2")
    )
    assert (later["plugin_name"], later["plugin_version"], later["plugin_namespace"]) == ("Roi", "2", "")
    assert later["fields"] == (("size", "INT32", sha256(b"\x03\x00\x00\x00").hexdigest()),)
    assert (older["plugin_type"], older["serialized"]) == ("Old", sha256(b"state").hexdigest())


def test_names_of_enums_are_looked_up_once() -> None:
    """The bindings take 20 microseconds for the name of a layer type: they try every member."""
    assert enum_name(trt.LayerType.KV_CACHE_UPDATE) == trt.LayerType.KV_CACHE_UPDATE.name
    assert all(enum_name(member) == member.name for member in trt.SampleMode.__members__.values())
