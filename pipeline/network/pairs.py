"""Find in an engine's plan which quantized weights and Q/DQ pairs TensorRT fused into low-precision matmuls.

A plan of TensorRT-RTX contains its program as text: for each kernel, the layers that it computes and the tensors that
it reads, with their types. The format is undocumented, so for a plan without such text the result is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

from attrs import frozen

from pipeline.network.description import Layer, Network
from pipeline.network.kernels import Kernel, all_steps
from pipeline.trt import CAPABILITIES

LOW: Final = ("int8", "int4", "fp8_e4m3", "fp4_e2m1")
"""The names of low-bit quantized types in TensorRT's plans."""

UNREAD: Final = {
    **dict.fromkeys(
        [("float8_e4m3fn", dtype) for dtype in ("float32", "float16", "bfloat16")],
        "; TensorRT-RTX has products that read FP8 beside floats from 1.7 on",
    ),
    ("int4", "float32"): "; the kernel of TensorRT-RTX 1.6 for INT4 beside float32 does not run on every GPU",
}
"""Why some TensorRT cannot fuse a dequantized weight with a matmul, by the weight's quantized and dequantized dtype."""
PASSING: Final = ("UNSQUEEZE", "SQUEEZE", "SHUFFLE", "CAST", "IDENTITY")

_TENSOR = re.compile(rb"tensor=\{(?P<text>[^\n]*?)name=\"(?P<name>[^\"]*)\"[^\n]*?type=(?P<type>\w+)")
KernelsWithCodes: TypeAlias = Sequence[tuple[Kernel, tuple[str, ...]]]
"""The kernels of a plan, each with the low-bit dtypes of the tensors that it reads."""


@frozen
class Pair:
    """A quantized weight or a quantize/dequantize pair of an activation, and whether an engine's matmuls read it.

    Attributes:
        engine: the engine's name.
        layer: the layer that dequantizes.
        type: the quantized dtype, by torch's name.
        of: ``"weight"`` or ``"activation"``.
        fused: whether a matmul's kernel reads the quantized values; None if the plan does not show it.
        why: the evidence in the plan.
    """

    engine: str
    layer: str
    type: str
    of: Literal["weight", "activation"]
    fused: bool | None
    why: str

    def __str__(self) -> str:
        said = {True: "fused", False: "not fused", None: "unknown"}[self.fused]
        return f"{self.layer}: {self.type} {self.of}: {said}: {self.why}"


def find_quantized_pairs(network: Network, plan: Any, built_network: Network | None = None) -> tuple[Pair, ...]:
    """Return a `Pair` for each weight or activation that a network dequantizes, with evidence from the engine's plan.
    ``built_network``: the network of equal structure for which the plan was built, if it was not ``network``."""
    built_network = built_network or network
    rows = list(_dequantizing_layers(built_network))
    if not rows:
        return ()
    kernels = _read_kernels(plan)
    names = dict(zip((x.name for x in built_network.layers), (x.name for x in network.layers), strict=True))
    pairs = []
    for layer, of, type in rows:
        fused, why = None, "the plan contains no program as text"
        if kernels is not None:
            fused, why = _is_fused_and_why(built_network, layer, of, kernels)
        if fused is False and of == "weight" and not CAPABILITIES.codes_beside_floats:
            why += UNREAD.get((type, layer.outputs[0].dtype), "")
        pairs.append(Pair(network.name, names[layer.name], type, of, fused, why))
    return tuple(pairs)


def _dequantizing_layers(network: Network) -> Iterator[tuple[Layer, Literal["weight", "activation"], str]]:
    """Yield (layer, role, quantized type) for the layers that dequantize weights or activations, not scales."""
    makers = {tensor.name: layer for layer in network.layers for tensor in layer.outputs}
    dequantizes = [layer for layer in network.layers if layer.kind == "DEQUANTIZE"]
    scales = {layer.inputs[1] for layer in dequantizes}
    for layer in dequantizes:
        maker = makers[str(layer.inputs[0])]
        if layer.outputs[0].name not in scales:
            codes = next(t.dtype for t in maker.outputs if t.name == layer.inputs[0])
            yield layer, "weight" if maker.kind == "CONSTANT" else "activation", codes


def _is_fused_and_why(network: Network, layer: Layer, role: str, kernels: KernelsWithCodes) -> tuple[bool, str]:
    """Return whether a matmul's kernel dequantizes ``layer``'s input, and the evidence. ``role``: `Pair.of`."""
    readers = _layers_reading(network, layer.outputs[0].name)
    names = {reader.name for reader in readers}
    products = [(kernel, codes) for kernel, codes in kernels if codes and kernel.role != "other"]
    for kernel, codes in products:  # a plan merges equal pairs under the names of one: only their readers differ
        if len(codes) > 1 and not {layer.name, *names}.isdisjoint(kernel.layers):
            return True, f"{kernel.name} multiplies {' by '.join(codes[:2])}"
        if layer.name in kernel.layers and role == "weight":
            return True, f"{kernel.name} reads {codes[0]}, and dequantizes it inside"
    reader_kinds = ", ".join(sorted({reader.kind for reader in readers})) or "nothing"
    others = (kernel for kernel, codes in kernels if codes and kernel.role == "other" and layer.name in kernel.layers)
    if (separate := next(others, None)) is not None:
        return False, f"{separate.name}, a kernel of its own, dequantizes it before {reader_kinds} reads it"
    if role == "weight":
        return False, f"TensorRT dequantized the weight during the build: {reader_kinds} reads floats"
    return False, f"the values are rounded, but {reader_kinds} reads floats"


def _layers_reading(network: Network, tensor_name: str) -> list[Layer]:
    """Return the layers that read a tensor, directly or through layers that do not change its values."""
    same, readers = {tensor_name}, list[Layer]()
    for layer in network.layers:
        if same.isdisjoint(layer.inputs):
            continue
        is_maximum_of_itself = layer.kind == "ELEMENTWISE" and len({*layer.inputs}) == 1
        if layer.kind in PASSING or is_maximum_of_itself:
            same.add(layer.outputs[0].name)
        else:
            readers.append(layer)
    return readers


def _read_kernels(plan: Any) -> KernelsWithCodes | None:
    """Return the kernels that a plan lists as text, each with the low-bit dtypes of the tensors that it reads; None if
    the plan has no such list."""
    try:
        steps = all_steps(plan)
    except ValueError:
        return None
    types = {m["name"].decode(): m["type"].decode() for m in _TENSOR.finditer(plan)}
    return [(step, tuple(types[name] for name in step.reads if types.get(name) in LOW)) for step in steps]
