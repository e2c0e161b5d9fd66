"""Save tensors in the safetensors format, and memory-map such files."""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import torch
from attrs import define, field, frozen

from pipeline.artifact.json_data import JsonData
from pipeline.aten.dtypes import short_name
from pipeline.aten.tensor_type import raw_bytes
from pipeline.errors import ArtifactError, error_text

PAGE = 4096
DTYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    **{getattr(torch, f"uint{bits}"): f"U{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"int{bits}"): f"I{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(torch, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)},
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}
"""safetensors' name for each dtype; tensors of any other dtype are saved as bytes."""


@frozen
class SavedTensor:
    """A reference to a tensor in a file: the key of its bytes, its dtype and its shape."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@define(eq=False)
class TensorsToSave:
    """Collects the tensors to save. Each tensor is saved once; all its uses have the same key."""

    by_key: dict[str, torch.Tensor] = field(factory=dict)
    _keys: dict[int, SavedTensor] = field(factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> SavedTensor:
        """Collect a tensor, and return the reference to save in its place; ``name``: its key, unless already added."""
        if id(tensor) not in self._keys:
            if tensor.layout != torch.strided or tensor.is_quantized:
                kind = str(tensor.layout) if tensor.layout != torch.strided else "quantized"
                raise ArtifactError(f"the tensor {name} is {kind}, and only dense tensors can be saved")
            self.by_key[name] = tensor
            self._keys[id(tensor)] = SavedTensor(name, tensor.dtype, tuple(tensor.shape))
        return self._keys[id(tensor)]


def safetensors_parts_and_size(tensors: Mapping[str, torch.Tensor]) -> tuple[Iterator[memoryview | bytes], int]:
    """Return the parts of a safetensors file, without copies where possible, and its size. The tensor data starts at a
    page boundary, with the widest dtypes first, so that every tensor is aligned without gaps."""
    ordered = sorted(tensors.items(), key=lambda row: (-row[1].dtype.itemsize, row[0]))
    rows, at = {}, 0
    for key, tensor in ordered:
        known = DTYPES.get(tensor.dtype)
        shape = list(tensor.shape) if known else [tensor.nbytes]
        rows[key] = {"dtype": known or "U8", "shape": shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE)
    header = struct.pack("<Q", len(text)) + text
    contents = (memoryview(raw_bytes(tensor.cpu()).numpy()) for _, tensor in ordered)  # type: ignore[arg-type]
    return chain((header,), contents), len(header) + at


def read_tensor_file(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file, such as PEFT's ``adapter_model.safetensors``, or this file in a folder that PEFT saved.
    Raise an `ArtifactError` for another format."""
    path = path / "adapter_model.safetensors" if path.is_dir() else path
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    with path.open("rb") as file:
        try:
            source = MappedTensors(file, 0, path.stat().st_size)
            rows = {name: row for name, row in source.rows.items() if name != "__metadata__"}
            return {n: source(SavedTensor(n, dtypes[row["dtype"]], tuple(row["shape"]))) for n, row in rows.items()}
        except (ArtifactError, KeyError, TypeError) as error:
            why = f"{path} is not a safetensors file: {error_text(error)}"
            raise ArtifactError(why, "if it is a file of torch.save, pass the result of torch.load(path)") from error


class MappedTensors:
    """The tensors of a memory-mapped file, or, without a file (``size`` 0), meta tensors. The tensors are views of a
    private mapping, so writes to them do not reach the file."""

    def __init__(self, file: BinaryIO | None = None, offset: int = 0, size: int = 0) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self.memory: mmap.mmap | None = None
        self.rows: dict[str, JsonData] = {}
        if file is not None and size:
            down = offset % mmap.ALLOCATIONGRANULARITY
            self.memory = mmap.mmap(file.fileno(), size + down, access=mmap.ACCESS_COPY, offset=offset - down)
            self.rows, start = _read_header_and_data_start(memoryview(self.memory)[down:])
            self.start = start + down

    def __call__(self, saved: SavedTensor) -> torch.Tensor:
        """Return a tensor, the same object for the same key; raise an `ArtifactError` if the file lacks the tensor."""
        if saved.key not in self.found:
            self.found[saved.key] = self._read_tensor(saved)
        found = self.found[saved.key]
        if found.dtype != saved.dtype or tuple(found.shape) != saved.shape:
            raise ArtifactError(f"the file declares two different dtypes or shapes for tensor {saved.key}")
        return found

    def _read_tensor(self, saved: SavedTensor) -> torch.Tensor:
        if min((0, *saved.shape)) < 0 or saved.nbytes >= 1 << 62:
            raise ArtifactError(f"the file declares impossible sizes for tensor {saved.key}: {list(saved.shape)}")
        if self.memory is None:
            return torch.empty(saved.shape, dtype=saved.dtype, device="meta")
        row = self.rows.get(saved.key)
        offsets = row.get("data_offsets") if isinstance(row, dict) else None
        if not isinstance(offsets, list) or len(offsets) != 2 or any(type(v) is not int or v < 0 for v in offsets):
            raise ArtifactError(f"the file declares tensor {saved.key}, but does not contain it")
        low, high = offsets
        if high - low != saved.nbytes or self.start + high > len(self.memory):
            kind = f"{short_name(saved.dtype)}{list(saved.shape)}"
            raise ArtifactError(f"the file does not contain the {saved.nbytes} bytes of tensor {saved.key}, {kind}")
        if not saved.nbytes:
            return torch.empty(saved.shape, dtype=saved.dtype)
        count, at = math.prod(saved.shape), self.start + low
        return torch.frombuffer(self.memory, dtype=saved.dtype, count=count, offset=at).reshape(saved.shape)


def _read_header_and_data_start(data: memoryview) -> tuple[dict[str, JsonData], int]:
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else len(data)
    if length > len(data) - 8:
        raise ArtifactError("the header of the safetensors data is longer than the data")
    try:
        rows = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, dict):
        raise ArtifactError("the safetensors data has no valid header")
    return rows, 8 + length
