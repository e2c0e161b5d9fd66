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
    """Return True, as the existence test for attributes that layers have in every version of TensorRT."""
    return True


@attrs.frozen
class Type:
    """The type of an attribute: a function that reads it, and one that sets it on an existing layer, or None."""

    read: Read
    write: Callable[[Any, str, Any], None] | None = None


@attrs.frozen
class Attribute:
    """An attribute of a kind of layer: its type, the index of the input that replaces it, and an existence test."""

    name: str
    type: Type
    unless: int | None = None
    exists: Callable[[Any, str], bool] = exists_always


def make_writer(encode: Callable[[Any], object]) -> Callable[[object, str, Any], None]:
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


def _set_member(layer: trt.ILayer, name: str, member: str) -> None:
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


def _read_number(layer: trt.ILayer, name: str) -> Value:
    """Read the alpha or beta of a fill layer: an int if the layer has integer parameters, else a float."""
    value = getattr(layer, name)
    return int(value) if layer.is_alpha_beta_int64() else float(value)


plain = Type(getattr, setattr)
dims = Type(read_dims, setattr)
enum = Type(lambda layer, name: enum_name(getattr(layer, name)), _set_member)
dtype = Type(lambda layer, name: dtype_name(getattr(layer, name)), make_writer(trt_dtype))
mask = Type(_read_axes, make_writer(axes_to_bits))
permutation = Type(_read_permutation, make_writer(lambda order: trt.Permutation(order)))
scales = Type(_read_scales, make_writer(list))
number = Type(_read_number, setattr)


def attention_type(type: Type) -> Type:
    """Return a type that reads an attribute from the attention to which a boundary layer belongs."""
    return Type(lambda layer, name: type.read(layer.attention, name))


def read_quantized_type(layer: trt.ILayer, name: str) -> Value:
    """Read an attention's quantized type; None if it has no scale, since TensorRT logs an error for an unset type."""
    attention = layer.attention
    return None if attention.normalization_quantize_scale is None else dtype_name(getattr(attention, name))


def read_collective(layer: trt.ILayer, name: str) -> Value:
    """Read the operation or reduction of a collective from the layer's metadata, where `converters.collectives` writes
    them: TensorRT's bindings do not return them."""
    operation, _, reduction = str(layer.metadata).partition(" ")
    if operation not in trt.CollectiveOperation.__members__:
        raise ValueError(
            f"cannot describe layer {layer.name!r} of kind DIST_COLLECTIVE: its metadata must be its operation and "
            "reduction, such as 'ALL_REDUCE SUM', since TensorRT does not return these attributes"
        )
    return operation if name == "operation" else reduction


def read_plugin(layer: trt.ILayer, name: str) -> Value:
    return str(getattr(layer.plugin, name))


def read_plugin_state(layer: trt.ILayer, name: str) -> Value:
    """Return a digest of the serialized state of a V2 plugin layer."""
    return digest(layer.plugin.serialize())


def read_id(layer: trt.ILayer, name: str) -> Value:
    return str(getattr(layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE), name))


def read_fields(layer: trt.ILayer, name: str) -> Value:
    """Return (name, type, digest of the data) for each serialized field of a V3 plugin layer."""
    runtime = layer.plugin.get_capability_interface(trt.PluginCapabilityType.RUNTIME)
    return tuple((str(f.name), enum_name(f.type), digest(f.data)) for f in runtime.get_fields_to_serialize())


def digest(data: Any) -> str:
    return hashlib.sha256(b"" if data is None else bytes(data)).hexdigest()


def rows(
    type: Type | Read, *names: str, unless: int | None = None, exists: Callable[[Any, str], bool] = exists_always
) -> tuple[Attribute, ...]:
    """Return attributes with these names and the same type or reader; ``exists=hasattr`` if some versions lack them."""
    return tuple(Attribute(n, type if isinstance(type, Type) else Type(type), unless, exists) for n in names)


def has_on_attention(layer: trt.ILayer, name: str) -> bool:
    return hasattr(layer.attention, name)


def has_no_causal_kind(layer: trt.ILayer, name: str) -> bool:
    """Return whether attentions have `causal` in this version; RTX 1.5 and 11.0 replaced it by `causal_kind`."""
    return not hasattr(layer.attention, "causal_kind")


_WINDOW = (*rows(dims, "stride_nd", "pre_padding", "post_padding"), *rows(enum, "padding_mode"))
_CONVOLUTION = (*rows(plain, "num_output_maps", "num_groups"), *rows(dims, "kernel_size_nd", "dilation_nd"), *_WINDOW)
_QUANTIZE = (*rows(plain, "axis"), *rows(dims, "block_shape"), *rows(dtype, "to_type"))

# Kinds that are not listed have no attributes. `loop`, `conditional` and `attention`, which say what a boundary layer
# bounds, are added by describe(). Precision settings are left out: strongly typed networks have none.
ATTRIBUTES: Mapping[str, tuple[Attribute, ...]] = MappingProxyType(
    {
        "ACTIVATION": (*rows(enum, "type"), *rows(plain, "alpha", "beta")),
        "ASSERTION": rows(plain, "message"),
        "ATTENTION_INPUT": (
            *rows(attention_type(enum), "norm_op"),
            *rows(attention_type(plain), "decomposable"),
            *rows(attention_type(plain), "causal", exists=has_no_causal_kind),
            *rows(attention_type(enum), "causal_kind", "query_form", "key_value_form", exists=has_on_attention),
            *rows(read_quantized_type, "normalization_quantize_to_type"),
        ),
        "CAST": rows(dtype, "to_type"),
        "CONCATENATION": rows(plain, "axis"),
        "CONSTANT": rows(dims, "shape"),
        "CONVOLUTION": _CONVOLUTION,
        "CUMULATIVE": (*rows(enum, "op"), *rows(plain, "exclusive", "reverse")),
        "DECONVOLUTION": _CONVOLUTION,
        "DEQUANTIZE": _QUANTIZE,
        "DIST_COLLECTIVE": (*rows(read_collective, "operation", "reduction"), *rows(plain, "num_ranks")),
        "DYNAMIC_QUANTIZE": (
            *rows(plain, "axis", "block_size"),
            *rows(dims, "block_shape"),
            *rows(dtype, "to_type", "scale_type"),
        ),
        "EINSUM": rows(plain, "equation"),
        "ELEMENTWISE": rows(enum, "op"),
        "FILL": (
            *rows(enum, "operation"),
            *rows(dtype, "to_type"),
            *rows(dims, "shape", unless=0),
            *rows(number, "alpha", unless=1),
            *rows(number, "beta", unless=2),
        ),
        "GATHER": (*rows(enum, "mode"), *rows(plain, "axis", "num_elementwise_dims")),
        "GRID_SAMPLE": (*rows(enum, "interpolation_mode", "sample_mode"), *rows(plain, "align_corners")),
        "ITERATOR": rows(plain, "axis", "reverse"),
        "KV_CACHE_UPDATE": (*rows(enum, "cache_mode"), *rows(enum, "update_form", exists=hasattr)),
        "LOOP_OUTPUT": (*rows(enum, "kind"), *rows(plain, "axis")),
        "LRN": rows(plain, "window_size", "alpha", "beta", "k"),
        "MATRIX_MULTIPLY": rows(enum, "op0", "op1"),
        "NMS": (*rows(enum, "bounding_box_format"), *rows(plain, "topk_box_limit"), *rows(dtype, "indices_type")),
        "NON_ZERO": rows(dtype, "indices_type"),
        "NORMALIZATION": (*rows(mask, "axes"), *rows(plain, "epsilon", "num_groups", "is_v2")),
        "ONE_HOT": rows(plain, "axis"),
        "PADDING": rows(dims, "pre_padding_nd", "post_padding_nd"),
        "PLUGIN_V2": (
            *rows(read_plugin, "plugin_type", "plugin_version", "plugin_namespace"),
            *rows(read_plugin_state, "serialized"),
        ),
        "PLUGIN_V3": (
            *rows(read_id, "plugin_name", "plugin_version", "plugin_namespace"),
            *rows(read_fields, "fields"),
        ),
        "POOLING": (
            *rows(enum, "type"),
            *rows(dims, "window_size_nd"),
            *_WINDOW,
            *rows(plain, "average_count_excludes_padding", "blend_factor"),
        ),
        "QUANTIZE": _QUANTIZE,
        "REDUCE": (*rows(enum, "op"), *rows(mask, "axes"), *rows(plain, "keep_dims")),
        "RESIZE": (
            *rows(enum, "resize_mode"),
            *rows(dims, "shape", unless=1),
            *rows(scales, "scales", unless=1),
            *rows(enum, "coordinate_transformation", "selector_for_single_pixel", "nearest_rounding"),
            *rows(plain, "cubic_coeff", "exclude_outside"),
        ),
        "REVERSE_SEQUENCE": rows(plain, "batch_axis", "sequence_axis"),
        "ROTARY_EMBEDDING": rows(plain, "interleaved", "rotary_embedding_dim"),
        "SCALE": (*rows(enum, "mode"), *rows(plain, "channel_axis")),
        "SCATTER": (*rows(enum, "mode"), *rows(plain, "axis")),
        "SHUFFLE": (
            *rows(permutation, "first_transpose"),
            *rows(dims, "reshape_dims", unless=1),
            *rows(permutation, "second_transpose"),
            *rows(plain, "zero_is_placeholder"),
        ),
        "SLICE": (
            *rows(enum, "mode"),
            *rows(dims, "start", unless=1),
            *rows(dims, "shape", unless=2),
            *rows(dims, "stride", unless=3),
            *rows(dims, "axes", unless=5),
        ),
        "SOFTMAX": rows(mask, "axes"),
        "TOPK": (*rows(enum, "op"), *rows(mask, "axes"), *rows(plain, "k", unless=1), *rows(dtype, "indices_type")),
        "TRIP_LIMIT": rows(enum, "kind"),
        "UNARY": rows(enum, "op"),
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
# Kinds whose settings the bindings do not let one read: equal rows would not mean equal layers.
UNREADABLE: Mapping[str, str] = MappingProxyType(
    {
        "MOE": "no tested version of TensorRT creates one, so reading its attributes is not implemented",
        "PLUGIN": "it is the layer of plugins older than V2, which TensorRT 10 and later do not create",
    }
)
