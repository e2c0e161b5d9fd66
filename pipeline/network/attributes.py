"""Define the attributes and weights of every kind of TensorRT layer, and functions to read and write each attribute."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

from pipeline.trt import dtype_name, enum_name, trt, trt_dtype

Value: TypeAlias = bool | int | float | str | tuple["Value", ...] | None
Read: TypeAlias = Callable[[Any, str], Value]


def exists_always(layer: object, name: str) -> bool:
    """Return True: the existence test of an `Attribute` that layers have in every version of TensorRT."""
    return True


@attrs.frozen
class Type:
    """How to read an attribute of a layer, and how to set it on an existing layer (None: it cannot be set)."""

    read: Read
    write: Callable[[Any, str, Any], None] | None = None


@attrs.frozen
class Attribute:
    """A layer's attribute. ``unless``: the index of the input that replaces it; ``exists``: whether a layer has it."""

    name: str
    type: Type
    unless: int | None = None
    exists: Callable[[Any, str], bool] = exists_always


def attribute_writer(encode: Callable[[Any], object]) -> Callable[[object, str, Any], None]:
    """Return a function that sets an attribute of a layer to ``encode(value)``."""
    return lambda layer, name, value: setattr(layer, name, encode(value))


def axes_to_bits(axes: Sequence[int]) -> int:
    """Convert axes to TensorRT's bit mask, in which bit ``i`` stands for axis ``i``."""
    return sum(1 << axis for axis in axes)


def read_dims(holder: object, name: str) -> tuple[int, ...] | None:
    """Read dims as a tuple; None if unset (their length is -1 on 1.4, and None or an error in later versions)."""
    try:
        value = getattr(holder, name)
        return None if value is None else tuple(value)
    except (ValueError, RuntimeError):
        return None


def _set_enum_member(layer: trt.ILayer, name: str, member: str) -> None:
    setattr(layer, name, type(getattr(layer, name)).__members__[member])


def _read_axes(layer: trt.ILayer, name: str) -> Value:
    mask = int(getattr(layer, name))
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


def _read_permutation(layer: trt.ILayer, name: str) -> Value:
    """Read a permutation, which TensorRT stores as eight entries for any rank; None for the identity (default)."""
    order = tuple(getattr(layer, name))
    return None if order == tuple(range(len(order))) else order


def _read_scales(layer: trt.ILayer, name: str) -> Value:
    """Read the scales of a resize; None if it has an output shape, since TensorRT warns when unset scales are read."""
    return tuple(map(float, getattr(layer, name))) if read_dims(layer, "shape") is None else None


def _read_alpha_or_beta(layer: trt.ILayer, name: str) -> Value:
    """Read the alpha or beta of a fill layer: an int if the layer has integer parameters, else a float."""
    value = getattr(layer, name)
    return int(value) if layer.is_alpha_beta_int64() else float(value)


plain = Type(getattr, setattr)
dims = Type(read_dims, setattr)
enum = Type(lambda layer, name: enum_name(getattr(layer, name)), _set_enum_member)
dtype = Type(lambda layer, name: dtype_name(getattr(layer, name)), attribute_writer(trt_dtype))
mask = Type(_read_axes, attribute_writer(axes_to_bits))
permutation = Type(_read_permutation, attribute_writer(lambda order: trt.Permutation(order)))
scales = Type(_read_scales, attribute_writer(list))
number = Type(_read_alpha_or_beta, setattr)


def read_from_attention(type: Type) -> Type:
    """Return ``type`` for attributes of ``layer.attention``, for the input and output layers of an attention."""
    return Type(lambda layer, name: type.read(layer.attention, name))


def read_quantized_type(layer: trt.ILayer, name: str) -> Value:
    """Read an attention's quantized type; None if it has no scale, since TensorRT logs an error for an unset type."""
    attention = layer.attention
    return None if attention.normalization_quantize_scale is None else dtype_name(getattr(attention, name))


def read_collective(layer: trt.ILayer, name: str) -> Value:
    """Read the attribute "operation" or "reduction" of a collective layer. TensorRT's bindings return neither, so
    `converters.collectives` writes both to the layer's metadata, which this reads."""
    operation, _, reduction = str(layer.metadata).partition(" ")
    if operation not in trt.CollectiveOperation.__members__:
        raise ValueError(
            f"cannot describe layer {layer.name!r} of kind DIST_COLLECTIVE: its metadata must be its operation and "
            "reduction, such as 'ALL_REDUCE SUM', since TensorRT does not return these attributes"
        )
    return operation if name == "operation" else reduction


def read_v3_plugin_id(layer: trt.ILayer, name: str) -> Value:
    """Read the name, version or namespace of a V3 plugin from its layer, as text."""
    return str(getattr(layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE), name))


def read_v3_plugin_fields(layer: trt.ILayer, name: str) -> Value:
    """Return (name, type, digest of the data) for each serialized field of a V3 plugin layer."""
    runtime = layer.plugin.get_capability_interface(trt.PluginCapabilityType.RUNTIME)
    return tuple((str(f.name), enum_name(f.type), sha256_of(f.data)) for f in runtime.get_fields_to_serialize())


def sha256_of(data: Any) -> str:
    return hashlib.sha256(b"" if data is None else bytes(data)).hexdigest()


def typed(
    type: Type | Read, *names: str, unless: int | None = None, exists: Callable[[Any, str], bool] = exists_always
) -> tuple[Attribute, ...]:
    """Return an `Attribute` per name. ``unless``: index of a replacing input; ``exists``: whether a layer has it."""
    return tuple(Attribute(n, type if isinstance(type, Type) else Type(type), unless, exists) for n in names)


def attention_has(layer: trt.ILayer, name: str) -> bool:
    """Return whether the attention of an attention input or output layer has an attribute in this TensorRT version."""
    return hasattr(layer.attention, name)


def has_no_causal_kind(layer: trt.ILayer, name: str) -> bool:
    """Return whether attentions have `causal`, which RTX 1.5 and TensorRT 11.0 replace by `causal_kind`."""
    return not hasattr(layer.attention, "causal_kind")


_WINDOW = (*typed(dims, "stride_nd", "pre_padding", "post_padding"), *typed(enum, "padding_mode"))
_CONVOLUTION = (*typed(plain, "num_output_maps", "num_groups"), *typed(dims, "kernel_size_nd", "dilation_nd"), *_WINDOW)
_QUANTIZE = (*typed(plain, "axis"), *typed(dims, "block_shape"), *typed(dtype, "to_type"))

# Kinds that are not listed have no attributes. `loop`, `conditional` and `attention`, which say what a boundary layer
# bounds, are added by describe(). Precision settings are left out: strongly typed networks have none.
ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = MappingProxyType(
    {
        "ACTIVATION": (*typed(enum, "type"), *typed(plain, "alpha", "beta")),
        "ASSERTION": typed(plain, "message"),
        "ATTENTION_INPUT": (
            *typed(read_from_attention(enum), "norm_op"),
            *typed(read_from_attention(plain), "decomposable"),
            *typed(read_from_attention(plain), "causal", exists=has_no_causal_kind),
            *typed(read_from_attention(enum), "causal_kind", "query_form", "key_value_form", exists=attention_has),
            *typed(read_quantized_type, "normalization_quantize_to_type"),
        ),
        "CAST": typed(dtype, "to_type"),
        "CONCATENATION": typed(plain, "axis"),
        "CONSTANT": typed(dims, "shape"),
        "CONVOLUTION": _CONVOLUTION,
        "CUMULATIVE": (*typed(enum, "op"), *typed(plain, "exclusive", "reverse")),
        "DECONVOLUTION": _CONVOLUTION,
        "DEQUANTIZE": _QUANTIZE,
        "DIST_COLLECTIVE": (*typed(read_collective, "operation", "reduction"), *typed(plain, "num_ranks")),
        "DYNAMIC_QUANTIZE": (
            *typed(plain, "axis", "block_size"),
            *typed(dims, "block_shape"),
            *typed(dtype, "to_type", "scale_type"),
        ),
        "EINSUM": typed(plain, "equation"),
        "ELEMENTWISE": typed(enum, "op"),
        "FILL": (
            *typed(enum, "operation"),
            *typed(dtype, "to_type"),
            *typed(dims, "shape", unless=0),
            *typed(number, "alpha", unless=1),
            *typed(number, "beta", unless=2),
        ),
        "GATHER": (*typed(enum, "mode"), *typed(plain, "axis", "num_elementwise_dims")),
        "GRID_SAMPLE": (*typed(enum, "interpolation_mode", "sample_mode"), *typed(plain, "align_corners")),
        "ITERATOR": typed(plain, "axis", "reverse"),
        "KV_CACHE_UPDATE": (*typed(enum, "cache_mode"), *typed(enum, "update_form", exists=hasattr)),
        "LOOP_OUTPUT": (*typed(enum, "kind"), *typed(plain, "axis")),
        "LRN": typed(plain, "window_size", "alpha", "beta", "k"),
        "MATRIX_MULTIPLY": typed(enum, "op0", "op1"),
        "NMS": (*typed(enum, "bounding_box_format"), *typed(plain, "topk_box_limit"), *typed(dtype, "indices_type")),
        "NON_ZERO": typed(dtype, "indices_type"),
        "NORMALIZATION": (*typed(mask, "axes"), *typed(plain, "epsilon", "num_groups", "is_v2")),
        "ONE_HOT": typed(plain, "axis"),
        "PADDING": typed(dims, "pre_padding_nd", "post_padding_nd"),
        "PLUGIN_V2": (
            *typed(
                lambda layer, name: str(getattr(layer.plugin, name)),
                *("plugin_type", "plugin_version", "plugin_namespace"),
            ),
            *typed(lambda layer, name: sha256_of(layer.plugin.serialize()), "serialized"),
        ),
        "PLUGIN_V3": (
            *typed(read_v3_plugin_id, "plugin_name", "plugin_version", "plugin_namespace"),
            *typed(read_v3_plugin_fields, "fields"),
        ),
        "POOLING": (
            *typed(enum, "type"),
            *typed(dims, "window_size_nd"),
            *_WINDOW,
            *typed(plain, "average_count_excludes_padding", "blend_factor"),
        ),
        "QUANTIZE": _QUANTIZE,
        "REDUCE": (*typed(enum, "op"), *typed(mask, "axes"), *typed(plain, "keep_dims")),
        "RESIZE": (
            *typed(enum, "resize_mode"),
            *typed(dims, "shape", unless=1),
            *typed(scales, "scales", unless=1),
            *typed(enum, "coordinate_transformation", "selector_for_single_pixel", "nearest_rounding"),
            *typed(plain, "cubic_coeff", "exclude_outside"),
        ),
        "REVERSE_SEQUENCE": typed(plain, "batch_axis", "sequence_axis"),
        "ROTARY_EMBEDDING": typed(plain, "interleaved", "rotary_embedding_dim"),
        "SCALE": (*typed(enum, "mode"), *typed(plain, "channel_axis")),
        "SCATTER": (*typed(enum, "mode"), *typed(plain, "axis")),
        "SHUFFLE": (
            *typed(permutation, "first_transpose"),
            *typed(dims, "reshape_dims", unless=1),
            *typed(permutation, "second_transpose"),
            *typed(plain, "zero_is_placeholder"),
        ),
        "SLICE": (
            *typed(enum, "mode"),
            *typed(dims, "start", unless=1),
            *typed(dims, "shape", unless=2),
            *typed(dims, "stride", unless=3),
            *typed(dims, "axes", unless=5),
        ),
        "SOFTMAX": typed(mask, "axes"),
        "TOPK": (*typed(enum, "op"), *typed(mask, "axes"), *typed(plain, "k", unless=1), *typed(dtype, "indices_type")),
        "TRIP_LIMIT": typed(enum, "kind"),
        "UNARY": typed(enum, "op"),
    }
)
WEIGHTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CONSTANT": ("weights",),
        "CONVOLUTION": ("kernel", "bias"),
        "DECONVOLUTION": ("kernel", "bias"),
        "SCALE": ("shift", "scale", "power"),
    }
)
# Kinds whose settings the bindings do not let one read: equal typed would not mean equal layers.
UNREADABLE: Mapping[str, str] = MappingProxyType(
    {
        "MOE": "no tested version of TensorRT creates one, so reading its attributes is not implemented",
        "PLUGIN": "it is the layer of plugins older than V2, which TensorRT 10 and later do not create",
    }
)
