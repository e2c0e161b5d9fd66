"""Packed sequences in TorchScript, as `export_fixes.packed_sequence` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.export_fixes import packed_sequence
from pipeline.export_fixes.torchscript.registry import Call, Evaluator
from pipeline.export_fixes.torchscript.types import Value

aten = torch.ops.aten


def _pad(call: Call, data: Value, sizes: Value, batch_first: bool, padding: float, length: Value) -> Value:
    found = packed_sequence.of_sizes(sizes)
    if found is None:
        return aten._pad_packed_sequence.default(data, sizes, batch_first, padding, length)
    return packed_sequence.pad(data, found, batch_first, padding, length)


def _select(call: Call, x: Value, dim: int, index: int) -> Value:
    found = packed_sequence.of_sizes(x) if index == 0 else None
    return aten.select.int(x, dim, index) if found is None else packed_sequence.first(found)


def _size(call: Call, x: Value, dim: int) -> Value:
    found = packed_sequence.of_sizes(x) if x.dim() == 1 else None
    return x.shape[dim] if found is None else packed_sequence.longest(found)


def _layer(target: Value) -> Evaluator:
    run = packed_sequence.layer(target)

    def evaluate(call: Call, *given: Value) -> Value:
        found = run(*given)
        return target(*given) if found is None else found

    return evaluate


PACKED: Final[Mapping[str, Evaluator]] = {
    "aten::_pack_padded_sequence": lambda call, *given: packed_sequence.pack(*given),
    "aten::_pad_packed_sequence": _pad,
    "aten::select.int": _select,
    "aten::size.int": _size,
    **{f"aten::{target._schema.name.removeprefix('aten::')}.data": _layer(target) for target in LAYERS},
}
