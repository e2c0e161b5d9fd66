"""Operators of a library of one's own: one that runs in PyTorch, and one that has a converter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pipeline import ConversionContext, dynamo_tensorrt_converter
from pipeline.trt import trt


@torch.library.custom_op("tests_artifact::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """2 x, in PyTorch"""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tests_artifact::negated", mutates_args=())
def negated(x: torch.Tensor) -> torch.Tensor:
    """-x, in TensorRT"""
    return -x


@negated.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@dynamo_tensorrt_converter(torch.ops.tests_artifact.negated.default)
def convert_negated(
    ctx: ConversionContext, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> Any:
    """negated(Tensor x) -> Tensor"""
    return ctx.net.add_unary(args[0], trt.UnaryOperation.NEG).get_output(0)
