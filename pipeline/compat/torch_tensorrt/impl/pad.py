"""Padding: two numbers a dim, the last dim first."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.compat.torch_tensorrt.blocks import block
from pipeline.compat.torch_tensorrt.calls import Argument, Call, Expression, call

aten = torch.ops.aten


def _padded(input: Argument, pad: Sequence[Argument], mode: str, value: float | None = None) -> Call:
    return call(aten.pad.default, input, list(pad), mode, value)


@block
def pad(input: Argument, pad: Sequence[Argument], mode: str = "constant", value: float | None = None) -> Expression:
    """aten.pad.default"""
    return _padded(input, pad, mode, value)


@block
def constant_padNd(input: Argument, pad: Sequence[Argument], value: float = 0) -> Expression:  # noqa: N802 - Torch-TensorRT's name
    """aten.pad.default with a number"""
    return _padded(input, pad, "constant", value)


@block
def reflection_padNd(input: Argument, padding: Sequence[Argument]) -> Expression:  # noqa: N802 - Torch-TensorRT's name
    """aten.pad.default, mirrored"""
    return _padded(input, padding, "reflect")


@block
def replication_padNd(input: Argument, padding: Sequence[Argument]) -> Expression:  # noqa: N802 - Torch-TensorRT's name
    """aten.pad.default with the elements at the border"""
    return _padded(input, padding, "replicate")


@block
def circular_padNd(input: Argument, padding: Sequence[Argument]) -> Expression:  # noqa: N802 - Torch-TensorRT's name
    """aten.pad.default with the other end"""
    return _padded(input, padding, "circular")
