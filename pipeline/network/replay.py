"""Create a TensorRT network from its frozen description (a replay): the inverse of `describe`.

Networks cannot be pickled, so other processes receive descriptions and replay them. Replay also proves that
descriptions are complete: the description of a replayed network equals the original description. A layer is created
with the arguments of its `add_` method; then the attributes that differ from its row are set. At the end, optional
inputs and inputs from later layers are connected.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from pipeline.errors import PipelineError
from pipeline.network.attributes import ATTRIBUTES, Value, axes_to_bits
from pipeline.network.description import Layer, Network
from pipeline.network.handle import name_dimensions
from pipeline.trt import Log, new_network, trt, trt_dtype, typed_layer

__all__ = ["ReplayError", "WeightOf", "replay"]

Inputs: TypeAlias = Sequence[trt.ITensor]
Encode: TypeAlias = Callable[[Any], Any]
WeightsByRole: TypeAlias = Callable[[str], Any]
LayerMaker: TypeAlias = Callable[[trt.INetworkDefinition, Layer, Inputs, WeightsByRole], trt.ILayer]
"""A function that creates a layer from the network, the layer's row, its inputs, and a lookup of weights by role."""


def _enum_member(enum_name: str) -> Encode:
    """Return a function from a name to the member of TensorRT's enum ``enum_name``, which some versions lack."""
    return lambda member: getattr(trt, enum_name).__members__[member]


def _maker(method: str, input_count: int, **arguments: Encode) -> LayerMaker:
    """Return a function that calls ``add_<method>`` with ``input_count`` inputs and the encoded ``arguments``."""

    def make(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
        values = (encode(row.attribute(name)) for name, encode in arguments.items())
        return getattr(net, f"add_{method}")(*tensors[:input_count], *values)

    return make


def _maker_from_list(method: str, **arguments: Encode) -> LayerMaker:
    """Return a function that calls ``add_<method>`` with a list of all inputs and the encoded ``arguments``."""
    return lambda net, row, given, weights: _maker(method, 1, **arguments)(net, row, [list(given)], weights)


def _convolution_maker(method: str) -> LayerMaker:
    def make(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
        maps, size = row.attribute("num_output_maps"), row.attribute("kernel_size_nd")
        return getattr(net, f"add_{method}_nd")(tensors[0], maps, size, weights("kernel"), weights("bias"))

    return make


def _make_scale(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    mode = trt.ScaleMode.__members__[row.attribute("mode")]
    roles = map(weights, ("shift", "scale", "power"))
    return net.add_scale_nd(tensors[0], mode, *roles, row.attribute("channel_axis"))


def _make_normalization(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    method = "normalization_v2" if row.attribute("is_v2") else "normalization"
    return _maker(method, 3, axes=axes_to_bits)(net, row, tensors, weights)


def _make_matmul(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    """Add the matmul layer that a row of a network's description describes, and return it."""
    first, second = (trt.MatrixOperation.__members__[row.attribute(name)] for name in ("op0", "op1"))
    return net.add_matrix_multiply(tensors[0], first, tensors[1], second)


def _make_slice(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    """Create a slice layer. Start, size and stride are zeros if the layer reads them from inputs."""
    plain = [row.attribute(name) for name in ("start", "shape", "stride")]
    count = next((len(value) for value in (*plain, row.attribute("axes")) if value is not None), len(tensors[0].shape))
    return net.add_slice(tensors[0], *((0,) * count if value is None else value for value in plain))


def _make_fill(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    operation, dtype = (_enum_member("FillOperation")(row.attribute("operation")), trt_dtype(row.attribute("to_type")))
    return net.add_fill(row.attribute("shape", (0,)), operation, dtype)


def _make_topk(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    operation, axes = _enum_member("TopKOperation")(row.attribute("op")), axes_to_bits(row.attribute("axes"))
    return net.add_topk(tensors[0], operation, row.attribute("k", 1), axes, trt_dtype(row.attribute("indices_type")))


def _make_collective(net: trt.INetworkDefinition, row: Layer, inputs: Inputs, weights: WeightsByRole) -> trt.ILayer:
    """Create a collective layer; its metadata stores the operation and reduction, for `attributes.read_collective`."""
    operation, reduction = row.attribute("operation"), row.attribute("reduction")
    kinds = trt.CollectiveOperation.__members__[operation], trt.ReduceOperation.__members__[reduction]
    layer = net.add_dist_collective(inputs[0], *kinds, -1, None)
    if layer is not None:
        layer.metadata = f"{operation} {reduction}"
    return layer


def _make_dynamic_quantize(
    net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole
) -> trt.ILayer:
    types = {"to_type": trt_dtype, "scale_type": trt_dtype}
    if row.attribute("block_shape"):
        return _maker("dynamic_quantize_v2", 1, block_shape=tuple, **types)(net, row, tensors, weights)
    return _maker("dynamic_quantize", 1, axis=int, block_size=int, **types)(net, row, tensors, weights)


LAYERS: Mapping[str, LayerMaker] = MappingProxyType(
    {
        "ACTIVATION": _maker("activation", 1, type=_enum_member("ActivationType")),
        "ASSERTION": _maker("assertion", 1, message=str),
        "CAST": _maker("cast", 1, to_type=trt_dtype),
        "CONCATENATION": _maker_from_list("concatenation"),
        "CONSTANT": lambda net, row, given, weights: net.add_constant(row.attribute("shape"), weights("weights")),
        "CONVOLUTION": _convolution_maker("convolution"),
        "CUMULATIVE": _maker("cumulative", 2, op=_enum_member("CumulativeOperation"), exclusive=bool, reverse=bool),
        "DECONVOLUTION": _convolution_maker("deconvolution"),
        "DEQUANTIZE": _maker("dequantize", 2, to_type=trt_dtype),
        "DIST_COLLECTIVE": _make_collective,
        "DYNAMIC_QUANTIZE": _make_dynamic_quantize,
        "EINSUM": _maker_from_list("einsum", equation=str),
        "ELEMENTWISE": _maker("elementwise", 2, op=_enum_member("ElementWiseOperation")),
        "FILL": _make_fill,
        "GATHER": _maker("gather_v2", 2, mode=_enum_member("GatherMode")),
        "GRID_SAMPLE": _maker("grid_sample", 2),
        "IDENTITY": _maker("identity", 1),
        "KV_CACHE_UPDATE": _maker("kv_cache_update", 3, cache_mode=_enum_member("KVCacheMode")),
        "LRN": _maker("lrn", 1, window_size=int, alpha=float, beta=float, k=float),
        "MATRIX_MULTIPLY": _make_matmul,
        "NMS": _maker("nms", 3, indices_type=trt_dtype),
        "NON_ZERO": _maker("non_zero", 1, indices_type=trt_dtype),
        "NORMALIZATION": _make_normalization,
        "ONE_HOT": _maker("one_hot", 3, axis=int),
        "PADDING": _maker("padding_nd", 1, pre_padding_nd=tuple, post_padding_nd=tuple),
        "PARAMETRIC_RELU": _maker("parametric_relu", 2),
        "POOLING": _maker("pooling_nd", 1, type=_enum_member("PoolingType"), window_size_nd=tuple),
        "QUANTIZE": _maker("quantize", 2, to_type=trt_dtype),
        "RAGGED_SOFTMAX": _maker("ragged_softmax", 2),
        "REDUCE": _maker("reduce", 1, op=_enum_member("ReduceOperation"), axes=axes_to_bits, keep_dims=bool),
        "RESIZE": _maker("resize", 1),
        "REVERSE_SEQUENCE": _maker("reverse_sequence", 2),
        "ROTARY_EMBEDDING": _maker("rotary_embedding", 3, interleaved=bool, rotary_embedding_dim=int),
        "SCALE": _make_scale,
        "SCATTER": _maker("scatter", 3, mode=_enum_member("ScatterMode")),
        "SELECT": _maker("select", 3),
        "SHAPE": _maker("shape", 1),
        "SHUFFLE": _maker("shuffle", 1),
        "SLICE": _make_slice,
        "SOFTMAX": _maker("softmax", 1),
        "SQUEEZE": _maker("squeeze", 2),
        "TOPK": _make_topk,
        "UNARY": _maker("unary", 1, op=_enum_member("UnaryOperation")),
        "UNSQUEEZE": _maker("unsqueeze", 2),
    }
)
# A loop or conditional is no layer: it creates its boundary layers itself.
BOUNDARIES: Mapping[str, LayerMaker] = MappingProxyType(
    {
        "TRIP_LIMIT": _maker("trip_limit", 1, kind=_enum_member("TripLimit")),
        "ITERATOR": _maker("iterator", 1, axis=int, reverse=bool),
        "RECURRENCE": _maker("recurrence", 1),
        "LOOP_OUTPUT": _maker("loop_output", 1, kind=_enum_member("LoopOutput"), axis=int),
        "CONDITION": lambda conditional, row, given, weights: conditional.set_condition(given[0]),
        "CONDITIONAL_INPUT": _maker("input", 1),
        "CONDITIONAL_OUTPUT": _maker("output", 2),
    }
)
UNREPLAYED: Mapping[str, str] = MappingProxyType(
    {
        "PLUGIN_V2": "a description has only the digest of a plugin's state",
        "PLUGIN_V3": "a description has only the digest of a plugin's state",
    }
)


WeightOf: TypeAlias = Callable[[str], Any]


class ReplayError(PipelineError):
    """A layer of a description cannot be created; the message names the layer and the reason."""


def replay(network: Network, weight_of: WeightOf, builder: trt.Builder, log: Log) -> trt.INetworkDefinition:
    """Create an `INetworkDefinition` from its description; the caller adds the optimization profile.

    weight_of: returns the `trt.Weights` of a name; their memory must live until the engine is built. Raise a
    `ReplayError` with TensorRT's message if it rejects a layer, or if a layer's kind cannot be replayed.
    """
    return _Replay(network, weight_of, new_network(builder), log).run()


class _Replay:
    """The state of a replay: the new network, tensors by name, and loops, conditionals and attentions by number."""

    def __init__(self, network: Network, weight_of: WeightOf, net: trt.INetworkDefinition, log: Log) -> None:
        self.network, self.weight_of, self.net, self.log = network, weight_of, net, log
        self.tensors: dict[str, trt.ITensor] = {}
        self.owners: dict[tuple[str, Value], object] = {}

    def run(self) -> trt.INetworkDefinition:
        self.net.name = self.network.name
        for tensor in self.network.inputs:
            new_input = self.net.add_input(tensor.name, trt_dtype(tensor.dtype), tensor.shape)
            name_dimensions(new_input, tensor.dimension_names)
            self.tensors[tensor.name] = new_input
        layers = [self.create_layer(row) for row in self.network.layers]
        for row, layer in zip(self.network.layers, layers, strict=True):
            for index, name in enumerate(row.inputs):  # optional inputs, and those from later layers
                if name is not None and (index >= layer.num_inputs or layer.get_input(index) is None):
                    layer.set_input(index, self.tensors[name])
        for tensor in self.network.outputs:
            self.net.mark_output(self.tensors[tensor.name])
        for weight in self.network.weights:
            self.net.set_weights_name(self.weight_of(weight.name), weight.name)
        return self.net

    def create_layer(self, row: Layer) -> trt.ILayer:
        """Create the layer that a row describes, but do not connect inputs that come from later layers."""
        mark = self.log.position()
        layer = self.add_layer_by_kind(row)
        if layer is None:
            raise self.layer_error(row, self.log.error_text_since(mark))
        layer.name = row.name
        for index, tensor in enumerate(row.outputs):
            self.tensors[tensor.name] = layer.get_output(index)
            layer.get_output(index).name = tensor.name
        for attribute in ATTRIBUTES.get(row.kind, ()):
            name, value, write = attribute.name, row.attribute(attribute.name), attribute.type.write
            if write is not None and value is not None and attribute.type.read(layer, name) != value:
                write(layer, name, value)
        return layer

    def add_layer_by_kind(self, row: Layer) -> trt.ILayer:
        """Add the layer that a row of the description describes, by the function for its kind, and return it."""
        inputs = [None if name is None else self.tensors.get(name) for name in row.inputs]
        if row.kind in ("ATTENTION_INPUT", "ATTENTION_OUTPUT"):
            return self.attention_boundary(row, inputs)
        if row.kind in BOUNDARIES:
            return BOUNDARIES[row.kind](self.loop_or_conditional(row), row, inputs, partial(self.trt_weights, row))
        if row.kind not in LAYERS:
            raise self.layer_error(row, UNREPLAYED.get(row.kind, f"layers of kind {row.kind} cannot be replayed"))
        return LAYERS[row.kind](self.net, row, inputs, partial(self.trt_weights, row))

    def loop_or_conditional(self, row: Layer) -> Any:
        """Return the loop or conditional to which a boundary layer belongs; create it for the first of its layers."""
        number = row.attribute("loop")
        key = ("loop", number) if number is not None else ("conditional", row.attribute("conditional"))
        if key not in self.owners:
            self.owners[key] = self.net.add_loop() if key[0] == "loop" else self.net.add_if_conditional()
        return self.owners[key]

    def attention_boundary(self, row: Layer, inputs: list[trt.ITensor]) -> trt.ILayer:
        """Return the layer of an ATTENTION_INPUT row, for which TensorRT adds both layers, or ATTENTION_OUTPUT row."""
        if row.kind == "ATTENTION_OUTPUT":
            return typed_layer(self.net, self.net.num_layers - 1)
        norm, kind = trt.AttentionNormalizationOp.__members__[row.attribute("norm_op")], row.attribute("causal_kind")
        if kind is None:
            attention = self.net.add_attention(*inputs[:3], norm, row.attribute("causal"))
        else:
            attention = self.net.add_attention_v2(*inputs[:3], norm, trt.CausalMaskKind.__members__[kind])
        if attention is None:
            return None
        attention.decomposable = row.attribute("decomposable")
        return typed_layer(self.net, self.net.num_layers - 2)

    def trt_weights(self, row: Layer, role: str) -> Any:
        name = row.weight(role)
        return trt.Weights(trt_dtype(row.outputs[0].dtype)) if name is None else self.weight_of(name)

    def layer_error(self, row: Layer, why: str) -> ReplayError:
        return ReplayError(f"cannot create layer {row.name!r} ({row.kind}) of network {self.network.name!r}: {why}")
