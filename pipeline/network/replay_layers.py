"""Create TensorRT layers from the rows of a network description, with the arguments that TensorRT requires.

`replay` creates a layer here, with the arguments of its `add_` method, and sets the attributes that differ from its
row. At the end it connects optional inputs and inputs from later layers.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from pipeline.network.attributes import axes_to_bits
from pipeline.network.description import Layer
from pipeline.trt import trt, trt_dtype

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


def _make_constant(net: trt.INetworkDefinition, row: Layer, tensors: Inputs, weights: WeightsByRole) -> trt.ILayer:
    return net.add_constant(row.attribute("shape"), weights("weights"))


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
        "CONSTANT": _make_constant,
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
        "TRIP_LIMIT": lambda loop, row, given, weights: loop.add_trip_limit(
            given[0], trt.TripLimit.__members__[row.attribute("kind")]
        ),
        "ITERATOR": lambda loop, row, given, weights: loop.add_iterator(
            given[0], row.attribute("axis"), row.attribute("reverse")
        ),
        "RECURRENCE": lambda loop, row, given, weights: loop.add_recurrence(given[0]),
        "LOOP_OUTPUT": lambda loop, row, given, weights: loop.add_loop_output(
            given[0], trt.LoopOutput.__members__[row.attribute("kind")], row.attribute("axis")
        ),
        "CONDITION": lambda conditional, row, given, weights: conditional.set_condition(given[0]),
        "CONDITIONAL_INPUT": lambda conditional, row, given, weights: conditional.add_input(given[0]),
        "CONDITIONAL_OUTPUT": lambda conditional, row, given, weights: conditional.add_output(*given[:2]),
    }
)
UNREPLAYED: Mapping[str, str] = MappingProxyType(
    {
        "PLUGIN_V2": "a description has only the digest of a plugin's state",
        "PLUGIN_V3": "a description has only the digest of a plugin's state",
    }
)
