"""The kit refuses to test what it was not given: a test that tests nothing would pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.impl import elementwise
from pipeline.testing import TensorSpec, check, check_converter, check_model

aten = torch.ops.aten
SPEC = TensorSpec((2, 3))


@pipeline.dynamo_tensorrt_converter(aten.relu.default)
def relu(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """relu(Tensor self) -> Tensor"""
    return elementwise.binary(ctx, name, "MAX", args[0], 0.0)


EMPTY = pipeline.ConverterRegistry()
MISUSE: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "another operator": (
        lambda: check_converter(relu, aten.silu.default),
        LookupError,
        r"no converter to test: none is for aten\.silu\.default, only for aten\.relu\.default",
    ),
    "no converter": (
        lambda: check_converter(EMPTY),
        LookupError,
        "no converter to test: the registry is empty",
    ),
    "an operator for a call": (lambda: check(aten.relu.default), TypeError, "check takes a call, such as Call"),
    "a model for a factory": (lambda: check_model(nn.ReLU(), (SPEC,)), TypeError, "make is a ReLU: pass a function"),
    "a spec for a tuple": (lambda: check_model(nn.ReLU, SPEC), TypeError, "args is a TensorSpec: pass a tuple"),
    "another entry": (
        lambda: check_model(nn.ReLU, (SPEC,), entry="dim"),
        ValueError,
        "entry must be one of 'dims', 'inputs', 'exported', got 'dim'",
    ),
    "a name for a dtype": (lambda: TensorSpec((2,), "float16"), TypeError, "dtype must be a dtype, got 'flo"),
    "a size for a shape": (lambda: TensorSpec(2), TypeError, "shape must be a sequence of sizes"),
}


@pytest.mark.parametrize("call, kind, says", MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused(call: Callable[..., Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        call()
