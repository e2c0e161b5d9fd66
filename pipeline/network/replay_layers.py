"""Create TensorRT layers from the rows of a network description, with the arguments that TensorRT requires.

A layer is first created with the arguments of its `add_` method; then the attributes that differ from its row are set.
At the end, `replay` connects optional inputs and inputs from later layers.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from pipeline.network.attributes import axes_to_bits
from pipeline.network.description import Layer
from pipeline.trt import trt, trt_dtype

Encode: TypeAlias = Callable[[Any], Any]
Weights: TypeAlias = Callable[[str], Any]
Make: TypeAlias = Callable[[trt.INetworkDefinition, Layer, Sequence[trt.ITensor], Weights], trt.ILayer]
"""A function that creates a layer from the network, the layer's row, its inputs, and a lookup of weights by role."""


def _enum_member(name: str) -> Encode:
    """Return a function that finds an enum's member by name. The enum is looked up on use: some versions lack it."""
    return lambda member: getattr(trt, name).__members__[member]


def _add_layer(method: str, inputs: int, **arguments: Encode) -> Make:
    """Return a function that creates a layer by a method whose arguments are the first inputs, then attributes."""

    def make(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
        values = (encode(row.attribute(name)) for name, encode in arguments.items())
        return getattr(net, f"add_{method}")(*tensors[:inputs], *values)

    return make


def _add_layer_with_list(method: str, **arguments: Encode) -> Make:
    """Return a function that creates a layer by a method whose arguments are a list of all inputs, then attributes."""
    return lambda net, row, given, weights: _add_layer(method, 1, **arguments)(net, row, [list(given)], weights)


def _convolution(method: str) -> Make:
    def make(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
        maps, size = row.attribute("num_output_maps"), row.attribute("kernel_size_nd")
        return getattr(net, f"add_{method}_nd")(tensors[0], maps, size, weights("kernel"), weights("bias"))

    return make


def _constant(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    return net.add_constant(row.attribute("shape"), weights("weights"))


def _scale(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    mode = trt.ScaleMode.__members__[row.attribute("mode")]
    roles = map(weights, ("shift", "scale", "power"))
    return net.add_scale_nd(tensors[0], mode, *roles, row.attribute("channel_axis"))


def _normalization(
    net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights
) -> trt.ILayer:
    method = "normalization_v2" if row.attribute("is_v2") else "normalization"
    return _add_layer(method, 3, axes=axes_to_bits)(net, row, tensors, weights)


def _matmul(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    first, second = (trt.MatrixOperation.__members__[row.attribute(name)] for name in ("op0", "op1"))
    return net.add_matrix_multiply(tensors[0], first, tensors[1], second)


def _slice(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    """Create a slice layer. Start, size and stride are zeros if the layer reads them from inputs."""
    plain = [row.attribute(name) for name in ("start", "shape", "stride")]
    count = next((len(value) for value in (*plain, row.attribute("axes")) if value is not None), len(tensors[0].shape))
    return net.add_slice(tensors[0], *((0,) * count if value is None else value for value in plain))


def _fill(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    operation, dtype = (_enum_member("FillOperation")(row.attribute("operation")), trt_dtype(row.attribute("to_type")))
    return net.add_fill(row.attribute("shape", (0,)), operation, dtype)


def _topk(net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    operation, axes = _enum_member("TopKOperation")(row.attribute("op")), axes_to_bits(row.attribute("axes"))
    return net.add_topk(tensors[0], operation, row.attribute("k", 1), axes, trt_dtype(row.attribute("indices_type")))


def _collective(net: trt.INetworkDefinition, row: Layer, inputs: Sequence[trt.ITensor], weights: Weights) -> trt.ILayer:
    """Create a collective layer; its metadata stores the operation and reduction, which the bindings do not return."""
    operation, reduction = row.attribute("operation"), row.attribute("reduction")
    kinds = trt.CollectiveOperation.__members__[operation], trt.ReduceOperation.__members__[reduction]
    layer = net.add_dist_collective(inputs[0], *kinds, -1, None)
    if layer is not None:
        layer.metadata = f"{operation} {reduction}"
    return layer


def _dynamic_quantize(
    net: trt.INetworkDefinition, row: Layer, tensors: Sequence[trt.ITensor], weights: Weights
) -> trt.ILayer:
    types = {"to_type": trt_dtype, "scale_type": trt_dtype}
    if row.attribute("block_shape"):
        return _add_layer("dynamic_quantize_v2", 1, block_shape=tuple, **types)(net, row, tensors, weights)
    return _add_layer("dynamic_quantize", 1, axis=int, block_size=int, **types)(net, row, tensors, weights)


LAYERS: Mapping[str, Make] = MappingProxyType(
    {
        "ACTIVATION": _add_layer("activation", 1, type=_enum_member("ActivationType")),
        "ASSERTION": _add_layer("assertion", 1, message=str),
        "CAST": _add_layer("cast", 1, to_type=trt_dtype),
        "CONCATENATION": _add_layer_with_list("concatenation"),
        "CONSTANT": _constant,
        "CONVOLUTION": _convolution("convolution"),
        "CUMULATIVE": _add_layer("cumulative", 2, op=_enum_member("CumulativeOperation"), exclusive=bool, reverse=bool),
        "DECONVOLUTION": _convolution("deconvolution"),
        "DEQUANTIZE": _add_layer("dequantize", 2, to_type=trt_dtype),
        "DIST_COLLECTIVE": _collective,
        "DYNAMIC_QUANTIZE": _dynamic_quantize,
        "EINSUM": _add_layer_with_list("einsum", equation=str),
        "ELEMENTWISE": _add_layer("elementwise", 2, op=_enum_member("ElementWiseOperation")),
        "FILL": _fill,
        "GATHER": _add_layer("gather_v2", 2, mode=_enum_member("GatherMode")),
        "GRID_SAMPLE": _add_layer("grid_sample", 2),
        "IDENTITY": _add_layer("identity", 1),
        "KV_CACHE_UPDATE": _add_layer("kv_cache_update", 3, cache_mode=_enum_member("KVCacheMode")),
        "LRN": _add_layer("lrn", 1, window_size=int, alpha=float, beta=float, k=float),
        "MATRIX_MULTIPLY": _matmul,
        "NMS": _add_layer("nms", 3, indices_type=trt_dtype),
        "NON_ZERO": _add_layer("non_zero", 1, indices_type=trt_dtype),
        "NORMALIZATION": _normalization,
        "ONE_HOT": _add_layer("one_hot", 3, axis=int),
        "PADDING": _add_layer("padding_nd", 1, pre_padding_nd=tuple, post_padding_nd=tuple),
        "PARAMETRIC_RELU": _add_layer("parametric_relu", 2),
        "POOLING": _add_layer("pooling_nd", 1, type=_enum_member("PoolingType"), window_size_nd=tuple),
        "QUANTIZE": _add_layer("quantize", 2, to_type=trt_dtype),
        "RAGGED_SOFTMAX": _add_layer("ragged_softmax", 2),
        "REDUCE": _add_layer("reduce", 1, op=_enum_member("ReduceOperation"), axes=axes_to_bits, keep_dims=bool),
        "RESIZE": _add_layer("resize", 1),
        "REVERSE_SEQUENCE": _add_layer("reverse_sequence", 2),
        "ROTARY_EMBEDDING": _add_layer("rotary_embedding", 3, interleaved=bool, rotary_embedding_dim=int),
        "SCALE": _scale,
        "SCATTER": _add_layer("scatter", 3, mode=_enum_member("ScatterMode")),
        "SELECT": _add_layer("select", 3),
        "SHAPE": _add_layer("shape", 1),
        "SHUFFLE": _add_layer("shuffle", 1),
        "SLICE": _slice,
        "SOFTMAX": _add_layer("softmax", 1),
        "SQUEEZE": _add_layer("squeeze", 2),
        "TOPK": _topk,
        "UNARY": _add_layer("unary", 1, op=_enum_member("UnaryOperation")),
        "UNSQUEEZE": _add_layer("unsqueeze", 2),
    }
)
# A loop or conditional is no layer: it creates its boundary layers itself.
BOUNDARIES: Mapping[str, Make] = MappingProxyType(
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
