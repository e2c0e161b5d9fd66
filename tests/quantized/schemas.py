"""The operators that quantized models are exported with, by their schemas: the library's own where it is installed.

Where it is not, an operator has a schema and the shape and dtype of its result, which is all that a capture needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch

Tensor = torch.Tensor
LIBRARIES: Final = (
    "modelopt.torch.quantization",
    "torchao.quantization",
    "torchao.quantization.pt2e",
    "torch.ao.quantization.fx._decomposed",
)
"""What defines them."""

BLOCKS: Final = "int num_bits, int exponent_bits, int scale_num_bits, int scale_exponent_bits"
STEP: Final = "int quant_min, int quant_max, ScalarType dtype"
OUT: Final = ", *, ScalarType? out_dtype=None"
LIMITS: Final = "Scalar? quant_min=None, Scalar? quant_max=None"


def _same(input: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(input)


def _codes(input: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(input, dtype=rest[-1])


def _numbers(input: Tensor, *_: Any, out_dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(input, dtype=out_dtype or torch.float32)


def _affine(input: Tensor, block_size: Sequence[int], *rest: Any) -> Tensor:
    assert all(size % block == 0 for size, block in zip(input.shape, block_size, strict=True))
    return torch.empty_like(input, dtype=torch.float32 if input.dtype == torch.int8 else rest[2])


SCHEMAS: Final = {
    "tensorrt::quantize_op": (
        "(Tensor input, Tensor amax, int num_bits, int exponent_bits, bool unsigned, bool narrow_range) -> Tensor",
        _same,
    ),
    "tensorrt::dynamic_block_quantize_op": (f"(Tensor input, int block_size, Tensor amax, {BLOCKS}) -> Tensor", _same),
    "quantized_decomposed::quantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {STEP}) -> Tensor",
        _codes,
    ),
    "quantized_decomposed::dequantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {STEP}{OUT}) -> Tensor",
        _numbers,
    ),
    "quantized_decomposed::quantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {STEP}) -> Tensor",
        _codes,
    ),
    "quantized_decomposed::dequantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor? zero_points, int axis, {STEP}{OUT}) -> Tensor",
        _numbers,
    ),
    "torchao::quantize_affine": (
        "(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, "
        f"{LIMITS}) -> Tensor",
        _affine,
    ),
    "torchao::dequantize_affine": (
        "(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, "
        f"{LIMITS}, ScalarType output_dtype=6) -> Tensor",
        _affine,
    ),
}
"""By name, the rest of the schema, and the result's shape and dtype."""


def define_missing() -> tuple[str, ...]:
    """Define the operators that no installed library defines; their names."""
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)
    return tuple(name for name in SCHEMAS if not is_defined(name) and _define(name))


def is_defined(name: str) -> bool:
    """Whether PyTorch has an operator of this name."""
    namespace, _, operator = name.partition("::")
    return hasattr(getattr(torch.ops, namespace), operator)


def _define(name: str) -> bool:
    schema, fake = SCHEMAS[name]
    torch.library.define(name, schema)
    torch.library.register_fake(name, fake)
    return True
