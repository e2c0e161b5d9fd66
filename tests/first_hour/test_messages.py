"""The mistakes of the first hour, each with the message that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch
from torch import nn

import pipeline

X = torch.ones(4, 8)
NET = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval().requires_grad_(False)

ARGUMENTS: Final[Mapping[str, tuple[Callable[[], Any], str]]] = {
    "default called with the model": (
        lambda: pipeline.default(NET, args=(X,)),  # type: ignore[arg-type]
        "takes settings, not the model, a Sequential: write pipeline.compile(model, args=(x,))",
    ),
    "default called with inputs": (lambda: pipeline.default(args=(X,)), "pipeline.compile(model, args=(x,)"),
    "a misspelt argument": (lambda: pipeline.compile(NET, arg=(X,)), "has no 'arg'; did you mean 'args'?"),
    "a misspelt precision": (lambda: pipeline.compile(NET, (X,), precison="fp16"), "did you mean 'precision'?"),
    "a misspelt setting": (lambda: pipeline.compile(NET, (X,), min_block=1), "did you mean 'min_block_size'?"),
    "a misspelt executor": (lambda: pipeline.default(build_executer=None), "did you mean 'build_executor'?"),
    "another precision": (
        lambda: pipeline.compile(NET, (X,), precision="int8"),
        "precision is 'float16', 'bfloat16' or 'float32' (fp16, bf16, fp32), not 'int8'",
    ),
    "a tensor as an Input": (lambda: pipeline.Input(X), "pipeline.Input.from_tensor(x) describes one"),  # type: ignore[arg-type]
    "a shape in place of a tensor": (lambda: pipeline.compile(NET, ((4, 8),)), "pipeline.Input(shape=(4, 8))"),
}


@pytest.mark.parametrize(("call", "said"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError, pipeline.PipelineError)) as caught:
        call()
    assert said in str(caught.value)


def test_short_names_of_dtypes() -> None:
    assert pipeline.Input.parse("2x4:fp16") == pipeline.Input((2, 4), dtype=torch.float16)
