"""Find operator calls whose dtypes eager refuses on every device, although torch's fake tensors accept them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import torch
from attrs import frozen
from torch.utils._pytree import tree_leaves

from pipeline.aten.arguments import argument

_RECURRENT = ("input", "hx", "params")

ALIKE: Final = MappingProxyType(
    {
        "linear": ("input", "weight", "bias"),
        "mm": ("self", "mat2"),
        "bmm": ("self", "mat2"),
        "mv": ("self", "vec"),
        "dot": ("self", "tensor"),
        "matmul": ("self", "other"),
        "addmm": ("mat1", "mat2", "self"),
        "baddbmm": ("batch1", "batch2", "self"),
        **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d"), ("input", "weight")),
        **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), ("input", "weight")),
        **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
        **dict.fromkeys(("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"), ("input", "grid")),
        **dict.fromkeys(("index_add", "index_copy", "index_reduce"), ("self", "source")),
        "index_put": ("self", "values"),
        **dict.fromkeys(("cdist", "_cdist_forward"), ("x1", "x2")),
        "_prelu_kernel": ("self", "weight"),
    }
)
"""By operator name, the arguments that must have one dtype, except convolutions' biases, for which devices differ."""

FLOATING, INTEGRAL, INDICES = "a floating dtype", "an integer dtype or bool", "int64 or int32"
NUMBERS, PIXELS, PLACES = "a dtype of numbers", "a floating dtype or uint8", "int64, int32, uint8 or bool"

_POOLS = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
_RESIZED = ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d", "nearest1d", "nearest2d", "nearest3d")

_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")

ONLY: Final = MappingProxyType(
    {
        **dict.fromkeys(("gelu", "silu", "mish", "elu", "softplus", "leaky_relu", "log_sigmoid"), (FLOATING, "self")),
        **dict.fromkeys(("hardswish", "hardsigmoid", "softmax", "_softmax", "log_softmax"), (FLOATING, "self")),
        **dict.fromkeys(("_log_softmax", "std", "var", "std_mean", "var_mean", *_POOLS), (FLOATING, "self")),
        **dict.fromkeys(_BITS, (INTEGRAL, "self", "other")),
        "bitwise_not": (INTEGRAL, "self"),
        **dict.fromkeys(("index_select", "index_add", "index_copy", "index_reduce"), (INDICES, "index")),
        **dict.fromkeys((f"upsample_{kind}" for kind in _RESIZED), (PIXELS, "self", "input")),
        "index_put": (PLACES, "indices"),
        "embedding": (INDICES, "indices"),
        "one_hot": ("int64", "self"),
        **dict.fromkeys(("relu", "argmax", "argmin"), (NUMBERS, "self")),
    }
)
"""By operator name, which dtypes (described in words) some arguments may have, and the names of these arguments."""

_TAKES: Final[Mapping[str, Callable[[torch.dtype], bool]]] = MappingProxyType(
    {
        FLOATING: lambda dtype: dtype.is_floating_point or dtype.is_complex,
        INTEGRAL: lambda dtype: not (dtype.is_floating_point or dtype.is_complex),
        INDICES: lambda dtype: dtype in (torch.int64, torch.int32),
        PLACES: lambda dtype: dtype in (torch.int64, torch.int32, torch.uint8, torch.bool),
        NUMBERS: lambda dtype: dtype != torch.bool,
        PIXELS: lambda dtype: dtype.is_floating_point or dtype == torch.uint8,
        "int64": lambda dtype: dtype == torch.int64,
    }
)


@frozen
class DtypeViolation:
    """An argument whose dtype the operator does not accept, with the expected dtype in words and the reason."""

    node: torch.fx.Node
    actual: torch.dtype
    expected: str
    reason: str


def find_dtype_violations(node: torch.fx.Node) -> Iterator[DtypeViolation]:
    """Yield the arguments whose dtype eager rejects: unsupported, or different from another argument's dtype."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return
    name = node.target._schema.name.removeprefix("aten::")
    rows = [row for each in ALIKE.get(name, ()) for row in _argument_tensors(node, each)]
    for one, value, dtype in rows:
        other = next((row for row in rows if row[2] != dtype), None)
        if other is not None:
            yield DtypeViolation(value, dtype, short_name(other[2]), f"takes {one} and {other[0]} of one dtype")
    words, *only = ONLY.get(name, ("",))
    for one, value, dtype in (row for name in only for row in _argument_tensors(node, name)):
        if not _TAKES[words](dtype) and argument(node, "dtype", None) is None:  # else the tensors are cast
            yield DtypeViolation(value, dtype, words, f"takes {one} of {words}")


def _argument_tensors(node: torch.fx.Node, name: str) -> list[tuple[str, torch.fx.Node, torch.dtype]]:
    """Return the tensors in one argument of a call, each as (argument name, node, dtype)."""
    values = [v for v in tree_leaves(argument(node, name, None)) if isinstance(v, torch.fx.Node)]
    fakes = [(v, v.meta.get("val")) for v in values]
    return [(name, v, fake.dtype) for v, fake in fakes if isinstance(fake, torch.Tensor)]


def short_name(dtype: object) -> str:
    """Return the name of a dtype without ``torch.``, such as ``float32``."""
    return str(dtype).removeprefix("torch.")
