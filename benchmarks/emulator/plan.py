"""Reads the program of a plan: its tensors, the calls of its kernels, and their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch
from attrs import frozen

DTYPES: Final = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
"""By TensorRT's names."""
BLOCK: Final = 128
"""Each constant begins at a multiple of so many bytes, from where the first one does."""

_FIELD = re.compile(r'(\w+) ?= ?(\{[^}]*\}|"[^"]*"|\S+)')
_QUOTED = re.compile(r'"([^"]*)"')
_KERNEL = re.compile(rb"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(")
_CONSTANTS, _END = b"\x8f\x8b\x8d\x8b", b"\x99\x8b\x8d\x8b"
"""Marks in a plan around the bytes of constants, which begin at a multiple of eight."""


class NotEmulated(Exception):  # noqa: N818 - says what a plan has, which is no error
    """A plan has something that has no source, or that is not known here; the message says what."""


@frozen
class Tensor:
    """A tensor of a program, or a part of another, its ``base``.

    region: the memory that it lies in; empty for inputs and outputs. offset: in it or in the base, in bytes; the number
        of a constant. payload: the bytes of a constant.
    """

    name: str
    base: str
    region: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    payload: int

    @property
    def is_constant(self) -> bool:
        """Whether the plan holds its bytes."""
        return "-consts" in self.region

    @property
    def extent(self) -> int:
        """The number of elements between its first and its last, with both."""
        return 1 + sum((n - 1) * by for n, by in zip(self.sizes, self.strides, strict=True)) if all(self.sizes) else 0


@frozen
class Call:
    """A call of a kernel."""

    kernel: str
    args: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    is_elementwise: bool


@frozen
class Plan:
    """What a plan runs. ``regions``: sizes of memory in bytes; ``constants``: their bytes."""

    tensors: Mapping[str, Tensor]
    regions: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...]
    sources: Mapping[str, str]
    constants: bytes

    @classmethod
    def of(cls, plan: bytes) -> Plan:
        """Read a serialized engine.

        Raises:
            NotEmulated: it has steps other than kernels with a source.
        """
        place = plan.find(b"main {\n")
        if place < 0:
            raise NotEmulated("a plan without a program in words")
        text = plan[plan.rfind(b"header {", 0, place) : plan.find(b"\0", place)].decode("latin1")
        head, _, body = text.partition("\nmain {\n")
        lines = [line.strip() for line in head.splitlines()]
        tensors = [_tensor(line) for line in lines if line.startswith(("tensor={", "sub_tensor={"))]
        regions = [_fields(line) for line in lines if line.startswith("region =")]
        start = plan.rfind(_CONSTANTS) + len(_CONSTANTS)
        return cls(
            tensors={tensor.name: tensor for tensor in tensors},
            regions={region["name"]: int(region["size"]) for region in regions},
            inputs=_named(lines, "inputs="),
            outputs=_named(lines, "outputs="),
            calls=tuple(_calls(body.partition("\n}\n")[0])),
            sources=_sources(plan),
            constants=plan[-(-start // 8) * 8 : plan.rfind(_END)],
        )

    def place(self, constant: Tensor) -> int:
        """Where a constant's bytes begin among all."""
        return _place(self.tensors.values(), constant.offset)


def _fields(line: str) -> dict[str, str]:
    inside = line[line.index("{") + 1 : line.rindex("}")]
    return {name: value.strip('"') for name, value in _FIELD.findall(inside)}


def _numbers(text: str) -> tuple[int, ...]:
    found = text.strip("{} ").split()
    if not all(re.fullmatch(r"-?\d+", each) for each in found):
        raise NotEmulated("sizes that vary")
    return tuple(map(int, found))


def _tensor(line: str) -> Tensor:
    fields = _fields(line)
    if fields["type"] not in DTYPES:
        raise NotEmulated(f"tensors of {fields['type']}")
    return Tensor(
        fields["name"],
        fields.get("base", ""),
        fields.get("region", ""),
        int(fields.get("const_offset", fields["offset"])),
        _numbers(fields["dims"]),
        _numbers(fields["strides"]),
        DTYPES[fields["type"]],
        int(fields.get("const_payload_size", 0)),
    )


def _named(lines: list[str], start: str) -> tuple[str, ...]:
    return tuple(_QUOTED.findall(next(line for line in lines if line.startswith(start))))


def _calls(body: str) -> Iterator[Call]:
    for line in map(str.strip, body.splitlines()):
        kind = line.partition("=")[0]
        if not line or line.startswith("label") or kind in ("signal", "wait"):
            continue
        fields = _fields(line)
        if kind != "function":
            raise NotEmulated("sizes that vary" if kind == "shape_call" else f"{kind} {fields.get('name', '')}")
        yield Call(
            fields["fqn"],
            tuple(_QUOTED.findall(fields["args"])),
            _numbers(fields["grid"]),
            _numbers(fields["block"]),
            fields["kernel_kind"] == "1",
        )


def _place(tensors: Iterable[Tensor], number: int) -> int:
    sizes = {tensor.offset: tensor.payload for tensor in tensors if tensor.is_constant}
    return sum(-(-size // BLOCK) * BLOCK for each, size in sizes.items() if each < number)


def _sources(plan: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for kernel in _KERNEL.finditer(plan):
        start, end = plan.rfind(b"\0", 0, kernel.start()) + 1, plan.find(b"\0", kernel.start())
        text = re.sub(rb"[^\t\n -~]", b"", plan[start:end])
        found.setdefault(kernel[1].decode(), text.decode())
    return found
