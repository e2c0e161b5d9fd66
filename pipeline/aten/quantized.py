"""Define quantization operators, to which the patterns of all exporters are rewritten between capture and conversion.

A *block* is the number of elements along each dim that share a scale (-1: the whole dim): ``(-1, -1)`` is per tensor,
``(1, -1)`` per row of a matrix, ``(128, 1)`` in blocks of 128 along its columns. A scale has the rank of its tensor and
one element per block, or is a single number. *Quantized values* are the result of rounding a tensor: int8 for ``int8``
and ``int4``, float8_e4m3fn for ``fp8``, indices into `E2M1` as int8 for ``fp4``; `pack` stores two 4-bit values in a
byte (uint8).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import torch
from attrs import frozen
from torch import Tensor

from pipeline.aten.types import Argument

Name: TypeAlias = Literal["int8", "int4", "fp8", "fp4"]


@frozen
class Type:
    """A quantized type: its name, the dtype that stores its values, number of bits, smallest and largest value."""

    name: Name
    codes: torch.dtype
    bits: int
    low: float
    high: float

    @property
    def is_integer(self) -> bool:
        """Return whether the type's quantized values are integers."""
        return self.name.startswith("int")


TYPES: Final = MappingProxyType(
    {
        "int8": Type("int8", torch.int8, 8, -128, 127),
        "int4": Type("int4", torch.int8, 4, -8, 7),
        "fp8": Type("fp8", torch.float8_e4m3fn, 8, -448, 448),
        "fp4": Type("fp4", torch.int8, 4, -6, 6),
    }
)
E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of FP4 values by index 0 to 7; an index of 8 to 15 means the negative value."""

operators: Final[Argument] = torch.ops.pipeline
"""The namespace ``pipeline``, which contains the operators; the functions below define their meaning and schemas."""


def expand_blocks(scale: Tensor, shape: Sequence[int], block: Sequence[int]) -> Tensor:
    """Repeat scales, one per block of the size ``block``, so that they broadcast to a tensor of the shape ``shape``."""
    if scale.numel() == 1:
        return scale.reshape(())
    for dim, (size, each) in enumerate(zip(shape, block, strict=True)):
        if scale.shape[dim] > 1 and each > 1:
            scale = scale.repeat_interleave(each, dim).narrow(dim, 0, size)
    return scale


def round_to_type(x: Tensor, type: str) -> Tensor:
    """Round a float32 tensor to the nearest values of a quantized type: ties to even, clamped to the type's range."""
    kind = TYPES[type]
    if type == "fp4":
        return nearest_fp4_indices(x)
    x = x.clamp(kind.low, kind.high)
    return (x.round() if kind.is_integer else x).to(kind.codes)


def nearest_fp4_indices(x: Tensor) -> Tensor:
    """Return the indices of the FP4 values nearest to ``x``; ties go to the even index, and bit 3 is the sign."""
    levels = torch.tensor(E2M1, dtype=torch.float32, device=x.device)
    middle = (levels[1:] + levels[:-1]) / 2
    size = x.abs().float()
    above = torch.bucketize(size, middle, right=True)  # a tie goes up
    tied = (size[..., None] == middle).any(-1)
    code = torch.where(tied & (above % 2 == 1), above - 1, above)
    return (code + 8 * x.signbit()).to(torch.int8)


def codes_to_float32(codes: Tensor, type: str) -> Tensor:
    """Convert quantized values to float32, without multiplying by a scale."""
    if type != "fp4":
        return codes.float()
    levels = torch.tensor([*E2M1, *(-level for level in E2M1)], dtype=torch.float32, device=codes.device)
    return levels[codes.long()]


def pack(input: Tensor, type: str) -> Tensor:
    """Pack pairs of 4-bit values along the last dim into bytes, low bits first; ValueError for int4 out of range."""
    if type == "int4" and bool(((input < -8) | (input > 7)).any()):
        raise ValueError("a quantized weight is outside int4's range [-8, 7]: compile again with the new weights")
    low, high = input[..., ::2].to(torch.uint8) & 15, input[..., 1::2].to(torch.uint8) & 15
    return low | (high << 4)


def unpack(input: Tensor, type: str) -> Tensor:
    """Unpack bytes to the 4-bit values that `pack` stored in them."""
    codes = torch.stack([input & 15, input >> 4], -1).flatten(-2).to(torch.int8)
    return codes if type == "fp4" else torch.where(codes > 7, codes - 16, codes)


def is_packed(codes: Tensor, type: str) -> bool:
    """Return whether a tensor of a quantized type stores two 4-bit values per byte."""
    return codes.dtype == torch.uint8 and TYPES[type].bits == 4


def quantize(input: Tensor, scale: Tensor, type: str, block: Sequence[int], reciprocal: bool = False) -> Tensor:
    """Quantize ``input / scale``; with ``reciprocal``, ``input * (1 / scale)``, which rounds differently. ``type``: a
    key of `TYPES`; ``block``: the number of elements along each dim that share a scale (-1: the whole dim)."""
    each = expand_blocks(scale, input.shape, block).float()
    each = torch.where(each == 0, 1.0, each)  # a scale of 0 (amax = 0): all values are 0
    return round_to_type(input.float() * (1 / each) if reciprocal else input.float() / each, type)


def dequantize(input: Tensor, scale: Tensor, type: str, block: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Dequantize: return the quantized values times their scales, in ``dtype``."""
    codes = unpack(input, type) if is_packed(input, type) else input
    return (codes_to_float32(codes, type) * expand_blocks(scale, codes.shape, block).float()).to(dtype)


def fake_quantize(input: Tensor, scale: Tensor, type: str, block: Sequence[int]) -> Tensor:
    """Quantize and dequantize a tensor, with the parameters of `quantize`; the result has the tensor's own dtype."""
    return dequantize(quantize(input, scale, type, block, True), scale, type, block, input.dtype)


def fake_quantize_blocks(input: Tensor, scale: Tensor | None, type: str, size: int) -> Tensor:
    """Quantize and dequantize a tensor, with a scale for each block along the last dim that is computed from its
    values: a power of two (MXFP8), or an FP8 value times ``scale`` (NVFP4)."""
    codes, scales = block_codes(input, scale, type, size)
    each = codes_to_float32(scales, "fp8") * (1.0 if scale is None else scale.float())
    made: Tensor = codes_to_float32(codes, type).unflatten(-1, (-1, size)) * each[..., None]
    return made.flatten(-2).to(input.dtype)


def block_codes(input: Tensor, scale: Tensor | None, type: str, size: int) -> tuple[Tensor, Tensor]:
    """Quantize blocks along the last dim; return the quantized values and the blocks' scales (see `block_scales`)."""
    blocks = input.float().unflatten(-1, (-1, size))
    scales = block_scales(blocks.abs().amax(-1), scale, type)
    each = (scales.float() * (1.0 if scale is None else scale.float()))[..., None]
    return round_to_type(torch.where(each == 0, 0.0, blocks / each), type).flatten(-2), scales


def block_scales(block_maxima: Tensor, scale: Tensor | None, type: str) -> Tensor:
    """Return the scale of each block from its largest magnitude. Without ``scale`` it is the smallest power of two
    (E8M0) that keeps the block in the type's range; else an E4M3 value, to be multiplied by ``scale``."""
    wanted = block_maxima / TYPES[type].high
    if scale is None:
        exponent = torch.where(wanted > 0, wanted.log2().ceil(), -127.0).clamp(-127, 127)
        return torch.exp2(exponent).to(torch.float8_e8m0fnu)
    most_scale = torch.where(scale == 0, 1.0, scale).float()
    return (wanted / most_scale).clamp(max=448.0).to(torch.float8_e4m3fn)


def centered(input: Tensor, zero_point: Tensor, type: str, block: Sequence[int]) -> Tensor:
    """Subtract zero points from quantized values (to int8; ValueError if out of range); parameters: see `quantize`."""
    result = input.to(torch.int32) - expand_blocks(zero_point.to(torch.int32), input.shape, block)
    kind = TYPES[type]
    if bool(((result < kind.low) | (result > kind.high)).any()):
        raise ValueError(f"a quantized weight minus its zero point overflows {type}: compile with the new weights")
    return result.to(torch.int8)


def _quantize_fake(input: Tensor, scale: Tensor, type: str, *_: Argument) -> Tensor:
    """Return an empty result of `quantize`: in the shape of ``input`` and the dtype that stores values of ``type``."""
    return torch.empty_like(input, dtype=TYPES[type].codes)


def _dequantize_fake(input: Tensor, scale: Tensor, type: str, block: Sequence[int], dtype: torch.dtype) -> Tensor:
    shape = list(input.shape)
    if is_packed(input, type):
        shape[-1] = 2 * shape[-1]
    return input.new_empty(shape, dtype=dtype)


def _pack_fake(input: Tensor, type: str) -> Tensor:
    """Return an empty result of `pack`: bytes, half as many along the last dim as there are 4-bit values."""
    return input.new_empty([*input.shape[:-1], input.shape[-1] // 2], dtype=torch.uint8)


def _block_codes_fake(input: Tensor, scale: Tensor | None, type: str, size: int) -> tuple[Tensor, Tensor]:
    """Return empty results of `block_codes`: quantized values, and a scale per ``size`` values along the last dim."""
    kind = torch.float8_e8m0fnu if scale is None else torch.float8_e4m3fn
    scales = input.new_empty([*input.shape[:-1], input.shape[-1] // size], dtype=kind)
    return torch.empty_like(input, dtype=TYPES[type].codes), scales


def _fake_like_input(input: Tensor, *_: Argument) -> Tensor:
    return torch.empty_like(input)


def _centered_fake(input: Tensor, *_: Argument) -> Tensor:
    """Return an empty result of `centered`: int8, in the shape of ``input``."""
    return torch.empty_like(input, dtype=torch.int8)


_library = torch.library.Library("pipeline", "FRAGMENT")
for _meaning, _fake, _schema in (
    (quantize, _quantize_fake, "(Tensor input, Tensor scale, str type, int[] block, bool reciprocal=False) -> Tensor"),
    (dequantize, _dequantize_fake, "(Tensor input, Tensor scale, str type, int[] block, ScalarType dtype) -> Tensor"),
    (fake_quantize, _fake_like_input, "(Tensor input, Tensor scale, str type, int[] block) -> Tensor"),
    (fake_quantize_blocks, _fake_like_input, "(Tensor input, Tensor? scale, str type, int size) -> Tensor"),
    (block_codes, _block_codes_fake, "(Tensor input, Tensor? scale, str type, int size) -> (Tensor, Tensor)"),
    (centered, _centered_fake, "(Tensor input, Tensor zero_point, str type, int[] block) -> Tensor"),
    (pack, _pack_fake, "(Tensor input, str type) -> Tensor"),
):
    _name = _meaning.__name__
    _library.define(f"{_name}{_schema}")
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _meaning, _device)
    torch.library.register_fake(f"pipeline::{_name}", _fake, lib=_library)
