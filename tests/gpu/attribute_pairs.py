"""Pairs of layers that read the same inputs and differ in one attribute: TensorRT may take the two for one.

``BASES`` has small networks for each layer kind, and for each of its attributes other values. A pair is such a network
whose layers stand there twice, the second time with another value. ``NOT_PAIRED`` says why a kind or attribute has
none. ``twins`` makes a pair's network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import evolve, frozen

from pipeline.network.attributes import Value
from pipeline.network.description import Layer, Network, describe
from pipeline.network.replay import ReplayError, replay
from pipeline.runtime.reference import run
from pipeline.trt import CAPABILITIES, as_weights, trt
from tests.gpu.attribute_layers import (
    Make,
    activation,
    attention,
    blended_pooling,
    cast,
    clamped_slice,
    concatenation,
    convolution,
    cumulative,
    dense_deconvolution,
    einsum,
    elementwise,
    fill,
    gather,
    grid_sample,
    grouped_normalization,
    image,
    layer_of,
    looped,
    lrn,
    normalization,
    one_hot,
    padded_pooling,
    padding,
    plain_fill,
    product,
    reduce,
    resize,
    reversed_sequence,
    rotary,
    scale,
    scatter,
    shuffle,
    slices,
    topk,
    unary,
)
from tests.runtime.reference_networks import BUILDER, LOG, Net

Values = Mapping[str, Sequence[Value]]
OWNERS = ("loop", "conditional", "attention")


@frozen
class Base:
    """A kind's small network, what tells it from others of the kind, and the values its attributes may have instead."""

    kind: str
    label: str
    make: Make
    values: Values


@frozen
class Pair:
    """A base whose layers stand twice, the second time with ``attribute`` set to ``value``."""

    base: Base
    attribute: str
    value: Value

    @property
    def name(self) -> str:
        """A name that is the pair's alone."""
        return " ".join(filter(None, (self.base.kind, self.base.label, f"{self.attribute}={self.value}")))


def members(enum: str, *without: str) -> tuple[str, ...]:
    """The names of an enum of the bindings, but for some."""
    found = getattr(trt, enum, None)
    return tuple(name for name in found.__members__ if name not in without) if found is not None else ()


POSITIVE, SIGNED = image(4, 9).abs() + 0.2, image(4, 9)
UNARIES = members("UnaryOperation", "NOT")
DOMAINS = {"ACOSH": 1.5, "LOG": 0.5, "SQRT": 0.5, "RECIP": 0.5}
ARITHMETIC = ("SUM", "PROD", "MAX", "MIN", "SUB", "DIV", "POW", "FLOOR_DIV")
COMPARISON = ("EQUAL", "GREATER", "LESS")
LOGIC = ("AND", "OR", "XOR")
TYPES = ("FLOAT", "HALF", "BF16", "INT32", "INT64", "BOOL")
TYPE_NAMES = ("float32", "float16", "bfloat16", "int32", "int64", "bool")
CENTRED = torch.linspace(-0.9, 0.9, 36).reshape(4, 9)
PLACES = members("ResizeCoordinateTransformation", "ASYMMETRIC")
_WINDOW: Values = {
    "stride_nd": [(2, 1), (1, 2)],
    "pre_padding": [(1, 0), (0, 2)],
    "post_padding": [(1, 0), (0, 2)],
    "padding_mode": ["EXPLICIT_ROUND_UP", "SAME_UPPER", "SAME_LOWER"],
}
_POOLING: Values = {
    **_WINDOW,
    "window_size_nd": [(2, 3), (3, 4)],
    "pre_padding": [(0, 0), (1, 1)],
    "post_padding": [(0, 0), (1, 2)],
}
_CONVOLUTION: Values = {"dilation_nd": [(2, 1), (1, 2)], **_WINDOW}
_DECONVOLUTION: Values = {**_WINDOW, "padding_mode": ["SAME_UPPER", "SAME_LOWER"]}
"""Without dilation, which TensorRT-RTX does not have beside strides; rounding is a matter of what is taken in."""

CAUSAL: Values = (
    {"causal_kind": ["UPPER_LEFT", "LOWER_RIGHT"]} if CAPABILITIES.attention == "v2" else {"causal": [True]}
)

BASES: tuple[Base, ...] = (
    Base("ACTIVATION", "", activation("RELU", alpha=0.3, beta=0.8), {"type": members("ActivationType", "RELU")}),
    Base("ACTIVATION", "leaky", activation("LEAKY_RELU", alpha=0.1), {"alpha": [0.3]}),
    Base("ACTIVATION", "elu", activation("ELU", alpha=0.5), {"alpha": [1.5]}),
    *(
        Base("ACTIVATION", kind.lower(), activation(kind, alpha=0.3, beta=0.6), {"alpha": [0.1], "beta": [0.9]})
        for kind in ("SELU", "SOFTPLUS", "CLIP", "HARD_SIGMOID", "SCALED_TANH")
    ),
    Base("ACTIVATION", "threshold", activation("THRESHOLDED_RELU", alpha=0.3), {"alpha": [0.7]}),
    Base("CAST", "float", cast(SIGNED * 3, "HALF"), {"to_type": [t for t in TYPE_NAMES if t != "float16"]}),
    Base("CAST", "int", cast((SIGNED * 3e4).int(), "HALF"), {"to_type": [t for t in TYPE_NAMES if t != "float16"]}),
    Base("CONCATENATION", "", concatenation, {"axis": [1]}),
    Base("CONVOLUTION", "", convolution("convolution"), _CONVOLUTION),
    Base("CUMULATIVE", "", cumulative, {"exclusive": [True], "reverse": [True]}),
    Base("DECONVOLUTION", "", convolution("deconvolution"), _DECONVOLUTION),
    Base("DECONVOLUTION", "dense", dense_deconvolution, {"dilation_nd": [(2, 1), (1, 2)]}),
    Base("EINSUM", "", einsum, {"equation": ["bij,bkj->bik", "bij,bjk->bki", "bji,bjk->bik"]}),
    Base("ELEMENTWISE", "float", elementwise("SUM", POSITIVE, SIGNED), {"op": ARITHMETIC[1:]}),
    Base("ELEMENTWISE", "swapped", elementwise("SUB", POSITIVE, SIGNED), {"op": ("DIV", "POW", "FLOOR_DIV")}),
    Base("ELEMENTWISE", "compared", elementwise("EQUAL", SIGNED.round(), -SIGNED.round()), {"op": COMPARISON[1:]}),
    Base("ELEMENTWISE", "logic", elementwise("AND", SIGNED > 0, SIGNED.flip(1) > 0), {"op": LOGIC[1:]}),
    Base(
        "ELEMENTWISE",
        "int",
        elementwise("SUM", torch.arange(12).reshape(3, 4), torch.tensor([[3]])),
        {"op": ARITHMETIC[1:]},
    ),
    Base("FILL", "axes", fill, {"shape": [(4, 3)]}),
    Base("FILL", "", plain_fill, {"alpha": [1.5], "beta": [3.0], "shape": [(8,)]}),
    Base("GATHER", "", gather("DEFAULT", torch.tensor([[2, 0, 1, 3]] * 4)), {"axis": [1, 2]}),
    Base(
        "GATHER", "batches", gather("DEFAULT", torch.tensor([[2, 0, 1, 3]] * 4), axis=2), {"num_elementwise_dims": [1]}
    ),
    Base("GATHER", "elements", gather("ELEMENT", torch.tensor([[[2, 0, 1, 3]] * 4] * 4)), {"axis": [1, 2]}),
    Base("GATHER", "nd", gather("ND", torch.tensor([[[2, 0], [1, 3]]] * 4)), {"num_elementwise_dims": [1]}),
    Base("GATHER", "modes", gather("DEFAULT", torch.tensor([[[2, 0, 1, 3]] * 4] * 4)), {"mode": ["ELEMENT"]}),
    Base(
        "GRID_SAMPLE",
        "",
        grid_sample,
        {
            "interpolation_mode": ["NEAREST", "CUBIC"],
            "sample_mode": ["CLAMP", "REFLECT"],
            "align_corners": [True],
        },
    ),
    Base("ITERATOR", "", looped, {"axis": [1], "reverse": [True]}),
    Base("LOOP_OUTPUT", "", looped, {"kind": ["REVERSE"], "axis": [1]}),
    Base("LRN", "", lrn, {"window_size": [5], "alpha": [0.1], "beta": [0.5], "k": [2.0]}),
    Base("MATRIX_MULTIPLY", "", product, {"op0": ["TRANSPOSE"], "op1": ["TRANSPOSE"]}),
    Base("NORMALIZATION", "", normalization, {"axes": [(1, 2, 3), (2,), (3,)], "epsilon": [0.5]}),
    Base("NORMALIZATION", "groups", grouped_normalization, {"num_groups": [1, 4]}),
    Base("ONE_HOT", "", one_hot, {"axis": [0, 1]}),
    Base("PADDING", "", padding, {"pre_padding_nd": [(0, 1)], "post_padding_nd": [(1, 0)]}),
    Base("POOLING", "average", padded_pooling, {"average_count_excludes_padding": [False], "type": ["MAX"]}),
    Base("POOLING", "windows", padded_pooling, _POOLING),
    Base("POOLING", "blend", blended_pooling, {"blend_factor": [0.75], "type": ["MAX", "AVERAGE"]}),
    *(
        Base("REDUCE", op.lower(), reduce(op), {"axes": [(0,), (2,), (1, 2)], "keep_dims": [False]})
        for op in members("ReduceOperation", "NONE")
    ),
    Base("REDUCE", "", reduce("SUM"), {"op": members("ReduceOperation", "SUM", "NONE")}),
    Base(
        "RESIZE",
        "linear",
        resize("LINEAR", shape=(1, 2, 8, 7)),
        {"coordinate_transformation": PLACES, "resize_mode": ["NEAREST", "CUBIC"], "shape": [(1, 2, 7, 8)]},
    ),
    Base(
        "RESIZE",
        "nearest",
        resize("NEAREST", shape=(1, 2, 8, 7)),
        {"coordinate_transformation": PLACES, "nearest_rounding": members("ResizeRoundMode", "FLOOR")},
    ),
    Base(
        "RESIZE",
        "single",
        resize("NEAREST", shape=(1, 2, 1, 7), coordinate_transformation=trt.ResizeCoordinateTransformation.HALF_PIXEL),
        {"selector_for_single_pixel": ["UPPER"]},
    ),
    Base(
        "RESIZE",
        "cubic",
        resize("CUBIC", shape=(1, 2, 8, 7)),
        {"cubic_coeff": [-0.5], "exclude_outside": [True], "coordinate_transformation": PLACES},
    ),
    Base("RESIZE", "scales", resize("LINEAR", scales=(1, 1, 1.5, 2.25)), {"scales": [(1.0, 1.0, 2.25, 1.5)]}),
    Base("REVERSE_SEQUENCE", "", reversed_sequence, {"batch_axis": [2], "sequence_axis": [2]}),
    Base("ROTARY_EMBEDDING", "", rotary, {"interleaved": [True]}),
    Base("SCALE", "", scale, {"channel_axis": [2, 3]}),
    Base(
        "SCATTER",
        "elements",
        scatter("ELEMENT", (torch.arange(4)[:, None] + torch.arange(4)) % 4, image(4, 4) + 3),
        {"axis": [1]},
    ),
    Base(
        "SHUFFLE",
        "",
        shuffle,
        {"first_transpose": [(0, 2, 1), (2, 0, 1)], "reshape_dims": [(0, 2, 4)], "second_transpose": [(1, 0, 2), None]},
    ),
    Base(
        "SLICE",
        "",
        slices,
        {
            "start": [(0, 1), (1, 0)],
            "shape": [(2, 3), (3, 2)],
            "stride": [(1, 2), (2, 1)],
        },
    ),
    Base("SLICE", "over", clamped_slice, {"mode": ["WRAP", "FILL", "REFLECT"]}),
    Base("SOFTMAX", "", layer_of("softmax", (4, 4, 4), then={"axes": 0b010}), {"axes": [(0,), (2,)]}),
    Base("TOPK", "", topk, {"op": ["MIN"], "axes": [(0,)], "k": [1, 6]}),
    *(
        Base(
            "ATTENTION_INPUT",
            f"{dtype}".removeprefix("torch."),
            attention(dtype, False),
            {**CAUSAL, "norm_op": ["NONE"]},
        )
        for dtype in (torch.float16, torch.bfloat16)
    ),
    *(
        Base(
            "UNARY",
            operation.lower(),
            unary(operation, CENTRED + DOMAINS.get(operation, 0.0)),
            {"op": [o for o in UNARIES if o != operation]},
        )
        for operation in ("EXP", "SIN")
    ),
)


NOT_PAIRED: Mapping[str, str] = {
    "ASSERTION.message": "it is what is said, and changes no value",
    "ATTENTION_INPUT.decomposable": "it says how to build, and changes no value",
    "ATTENTION_INPUT.causal": "it is causal_kind since RTX 1.5",
    "ATTENTION_INPUT.causal_kind": "it was causal before RTX 1.5",
    "ATTENTION_INPUT.key_value_form": "one form alone is used",
    "ATTENTION_INPUT.query_form": "one form alone is used",
    "ATTENTION_INPUT.normalization_quantize_to_type": "it comes with a scale, an input of its own",
    "CONSTANT.shape": "the number of weights follows from it",
    "CONVOLUTION.kernel_size_nd": "the number of weights follows from it",
    "CONVOLUTION.num_groups": "the number of weights follows from it",
    "CONVOLUTION.num_output_maps": "the number of weights follows from it",
    "DECONVOLUTION.kernel_size_nd": "the number of weights follows from it",
    "DECONVOLUTION.num_groups": "the number of weights follows from it",
    "DECONVOLUTION.num_output_maps": "the number of weights follows from it",
    "CUMULATIVE.op": "TensorRT has one",
    "DEQUANTIZE": "TensorRT-RTX 1.4 does not support quantized networks",
    "DIST_COLLECTIVE": "it takes several GPUs (tests/gpu/test_sharded_gpu.py)",
    "DYNAMIC_QUANTIZE": "TensorRT-RTX 1.4 does not support quantized networks",
    "QUANTIZE": "TensorRT-RTX 1.4 does not support quantized networks",
    "FILL.operation": "the other one draws random numbers",
    "FILL.to_type": "the inputs' types follow from it",
    "KV_CACHE_UPDATE": "TensorRT has one mode and one form, and its output has the address of its input",
    "NMS": "TensorRT-RTX has no kernel for it",
    "NON_ZERO": "TensorRT-RTX has no kernel for it",
    "NORMALIZATION.is_v2": "it says how the layer was made",
    "PLUGIN_V2": "TensorRT-RTX has none",
    "PLUGIN_V3": "TensorRT-RTX has none",
    "ROTARY_EMBEDDING.rotary_embedding_dim": "the sizes of the angles follow from it",
    "SCALE.mode": "the number of weights follows from it",
    "SCATTER.mode": "the ranks of indices and updates follow from it",
    "SHUFFLE.zero_is_placeholder": "with a 0 that is a size the tensor is empty",
    "SLICE.axes": "the lengths of start, size and stride follow from it",
    "TOPK.indices_type": "the result's type follows from it, and no more",
    "TRIP_LIMIT.kind": "the input is a number for one, a condition for the other",
}
"""Kinds and attributes without a pair, each with its reason."""


def pairs() -> list[Pair]:
    """Every pair, in the order of the table."""
    return [Pair(base, name, value) for base in BASES for name, values in base.values.items() for value in values]


def twins(pair: Pair) -> tuple[Net, Network]:
    """The pair's network, and its description as TensorRT infers it.

    Raises:
        ReplayError: TensorRT refuses the second layer.
    """
    net = Net()
    layer = pair.base.make(net)
    single = net.output(*(layer.get_output(i) for i in range(getattr(layer, "num_outputs", 1)))).described()
    mark = LOG.position()
    definition = replay(_twice(single, pair), lambda name: as_weights(net.weights[name]), BUILDER, LOG)
    try:
        network = describe(definition, name="pair", weight_name=net.weight_name)
    except ValueError as error:
        raise ReplayError(str(LOG.errors_since(mark) or error)) from error
    net.net = definition
    return net, network


def _twice(single: Network, pair: Pair) -> Network:
    """The description with its layers, constants apart, a second time under other names."""
    own = [row for row in single.layers if row.kind != "CONSTANT"]
    renamed = {tensor.name: f"{tensor.name} again" for row in own for tensor in row.outputs}
    again = [_again(row, renamed, pair) for row in own]
    outputs = tuple(evolve(row, name=renamed[row.name]) for row in single.outputs)
    return evolve(single, layers=(*single.layers, *again), outputs=(*single.outputs, *outputs))


def _again(row: Layer, renamed: Mapping[str, str], pair: Pair) -> Layer:
    attributes = {name: value + 1 if name in OWNERS else value for name, value in row.attributes}
    if row.kind == pair.base.kind:
        attributes[pair.attribute] = pair.value
    return evolve(
        row,
        name=f"{row.name} again",
        inputs=tuple(renamed.get(name, name) if name is not None else None for name in row.inputs),
        outputs=tuple(evolve(tensor, name=renamed[tensor.name]) for tensor in row.outputs),
        attributes=tuple(attributes.items()),
    )


def expected(net: Net, network: Network) -> list[torch.Tensor]:
    """The outputs by the reference executor."""
    results = run(network, net.weights, net.inputs)
    return [results[row.name] for row in network.outputs]


def halves(results: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """What the first layer gives, and what the second does."""
    middle = len(results) // 2
    return results[:middle], results[middle:]


def error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest error relative to the largest value; infinite where dtypes, shapes or what is finite differ."""
    return max((_error(ours, theirs) for ours, theirs in zip(got, want, strict=True)), default=0.0)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return math.inf
    ours, theirs, finite = got.double(), want.double(), want.double().isfinite()
    if not torch.equal(ours.isfinite(), finite):
        return math.inf
    if not finite.any():
        return 0.0
    largest = max(float(theirs[finite].abs().max()), 1e-6)
    return float((ours[finite] - theirs[finite]).abs().max()) / largest
