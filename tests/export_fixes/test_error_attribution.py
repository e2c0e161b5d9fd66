"""Inputs of a dtype or on a device that eager refuses are named: when a model is captured, and at a call."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pipeline

X = torch.ones(2, 4)
IMAGE = torch.ones(1, 3, 8, 8)


class Calls(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, y: Any = None) -> Any:
        """What the function gives."""
        return self.function(x) if y is None else self.function(x, y)


class Deep(nn.Module):
    """A cast of its own, views, and a layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(8, 4), nn.Linear(4, 4)

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """{ids: [N], scale: [N, 4]} -> [N, 4]"""
        return self.embed(given["ids"]) + self.layer(given["scale"].clamp(0).view(-1, 4).flip(0))


def deep(ids: torch.dtype, scale: torch.dtype) -> tuple[Any, ...]:
    """Its inputs, in these dtypes."""
    return ({"ids": torch.zeros(2, dtype=ids), "scale": X.to(scale)},)


def torch_takes_floats_for_positions() -> bool:
    """As fake tensors do before 2.13: the program's own check then names its input, and all dtypes that are due."""
    try:
        functional.embedding(X.to("meta"), X.to("meta"))
    except RuntimeError:
        return False
    return True


IDS, POSITIONS = ("given_ids", "int64 or int32") if torch_takes_floats_for_positions() else ("given['ids']", "int64")

WRONG: dict[str, tuple[nn.Module, tuple[Any, ...], str, str, str]] = {
    "whole numbers into a layer": (nn.Linear(4, 4), (X.long(),), "input", "int64", "float32"),
    "halves into a layer": (nn.Linear(4, 4), (X.half(),), "input", "float16", "float32"),
    "doubles into a layer": (nn.Linear(4, 4), (X.double(),), "input", "float64", "float32"),
    "floats into a layer of halves": (nn.Linear(4, 4).half(), (X,), "input", "float32", "float16"),
    "an Input": (nn.Linear(4, 4), (pipeline.Input((2, 4), dtype=torch.float16),), "input", "float16", "float32"),
    "halves into a convolution": (nn.Conv2d(3, 3, 3), (IMAGE.half(),), "input", "float16", "float32"),
    "whole numbers into a convolution": (nn.Conv2d(3, 3, 3), (IMAGE.long(),), "input", "int64", "float32"),
    "halves into a transposed one": (nn.ConvTranspose2d(3, 3, 3), (IMAGE.half(),), "input", "float16", "float32"),
    "halves into an LSTM": (nn.LSTM(4, 4), (X.half(),), "input", "float16", "float32"),
    "floats for positions": (nn.Embedding(8, 4), (X,), "input", "float32", POSITIONS),
    "two dtypes in a product": (Calls(lambda x, y: x @ y.T), (X, X.half()), "y", "float16", "float32"),
    "two dtypes in attention": (
        Calls(lambda x, y: functional.scaled_dot_product_attention(x, x, y)),
        (X[None], X[None].half()),
        "y",
        "float16",
        "float32",
    ),
    "floats as an index": (Calls(lambda x, y: x.index_select(0, y)), (X, X[0]), "y", "float32", "int64 or int32"),
    "numbers as a condition": (Calls(lambda x, y: torch.where(y, x, 0)), (X, X.long()), "y", "int64", "bool"),
    "whole numbers into softmax": (nn.Softmax(-1), (X.long(),), "input", "int64", "a floating dtype"),
    "floats as bits": (Calls(lambda x: x & x), (X,), "x", "float32", "an integer dtype or bool"),
    "behind views": (Deep(), deep(torch.int64, torch.float16), "given_scale", "float16", "float32"),
    "in a dict": (Deep(), deep(torch.float32, torch.float32), IDS, "float32", POSITIONS),
}


@pytest.mark.parametrize("model, args, name, found, due", WRONG.values(), ids=WRONG)
def test_an_input_that_eager_refuses_is_named(model: nn.Module, args: Any, name: str, found: str, due: str) -> None:
    with pytest.raises(pipeline.DtypeError) as caught:
        pipeline.capture(model.eval(), args)
    error = caught.value
    assert (error.input, error.found, error.due) == (name, found, due)
    assert str(error).startswith(f"input {name} is {found}, expected {due}: ")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


TAKEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "halves into a norm": (nn.LayerNorm(4), (X.half(),)),
    "softmax that says its dtype": (lambda x: x.softmax(-1, dtype=torch.float32), (X.long(),)),
    "promotion": (torch.add, (X.half(), X)),
    "whole numbers into what gives floats": (torch.sigmoid, (X.long(),)),
    "a sum of bools": (torch.sum, (X.bool(),)),
    "halves, cast by the model": (lambda x: functional.linear(x.float(), X), (X.half(),)),
}


@pytest.mark.parametrize("function, args", TAKEN.values(), ids=TAKEN)
def test_what_eager_takes_is_taken(function: Callable[..., Any], args: Any) -> None:
    model = Calls(function).eval()
    torch.testing.assert_close(pipeline.default()(model, args).module(executor="reference")(*args), model(*args))


def test_autocast_takes_what_it_casts() -> None:
    model = nn.Linear(4, 4).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert pipeline.capture(model, (X.half(),)).inputs[0].dtype == torch.float16
    with pytest.raises(pipeline.DtypeError), torch.autocast("cpu", torch.bfloat16):
        pipeline.capture(model, (X.long(),))


def test_an_export_is_checked_as_well() -> None:
    exported = torch.export.export(nn.Linear(4, 4).eval(), (X.long(),))
    with pytest.raises(pipeline.DtypeError, match=r"input input is int64, expected float32: aten\.linear"):
        pipeline.capture(exported)


def test_what_the_model_itself_mixes_is_no_fault_of_an_input() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half()).eval()
    with pytest.raises(pipeline.CaptureError, match=r"takes \w+ and \w+ of one dtype: found float.., expected float"):
        pipeline.capture(model, (X,))


def test_a_call_is_told_likewise() -> None:
    compiled = pipeline.default()(nn.Linear(4, 4).eval(), (X,))
    for wrong in (X.half(), X.long(), X.double()):
        with pytest.raises(pipeline.DtypeError, match=r"^input input is \w+, expected float32: as in the compiled"):
            compiled(wrong)
    with pytest.raises(TypeError, match=r"hint: cast it: \.to\(torch\.float32\)"):
        compiled(X.bool())


def test_an_input_on_another_device_is_told() -> None:
    told = r"^tensors are on different devices: input input is on meta, the model is on cpu: .*devices"
    with pytest.raises(pipeline.CaptureError, match=told) as caught:
        pipeline.capture(nn.Linear(4, 4).eval(), (X.to("meta"),))
    assert "Input(…, device=…)" in caught.value.hint


class Several(nn.Module):
    """Takes any number of inputs."""

    def forward(self, x: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        """[2, 4], … -> [2, 4]"""
        return x + others[-1]


UNSUPPORTED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "an array": ((X.numpy(), X), {}, r"input x is an ndarray, which torch.export does not take"),
    "a device": ((X, X, torch.device("cpu")), {}, r"input others\[1\] is a device, which"),
    "a set by name": ((X, X), {"by": {"a": {1}}}, r"input by\['a'\] is a set, which"),
}


@pytest.mark.parametrize("args, kwargs, says", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_is_no_input_is_named(args: Any, kwargs: Any, says: str) -> None:
    with pytest.raises(pipeline.CaptureError, match=says):
        pipeline.capture(Several(), args, kwargs)


@dataclass
class Pair:
    """What torch does not know."""

    a: torch.Tensor


class Returns(nn.Module):
    """Returns a dataclass."""

    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x * 2)


def test_a_dataclass_has_to_be_known() -> None:
    with pytest.raises(pipeline.CaptureError, match=r"input x is a Pair, (.|\n)*hint: .*register_dataclass\(Pair\)"):
        pipeline.capture(Several(), (Pair(X), X))
    with pytest.raises(pipeline.CaptureError, match=r"Returns returns a Pair, (.|\n)*register_dataclass\(Pair\)"):
        pipeline.capture(Returns(), (X,))


def test_a_module_is_no_input() -> None:
    with pytest.raises(TypeError, match="a ReLU is among the inputs: make the module an attribute"):
        pipeline.capture(Several(), (X, [nn.ReLU()]))


class ClampedInHalves(nn.Module):
    """A layer that asks its data whether to clamp, and how often, in float16 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``x`` [N, 4] of any dtype, ``mask`` of ints."""
        x = self.linear(x) * mask
        while x.dtype == torch.float16 and torch.isinf(x).any():
            x = x.clamp(-1000, 1000)
        return x


class Halves(nn.Module):
    """Halves its weights in its first call, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.is_done = nn.Parameter(torch.ones(4)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        if not self.is_done:
            with torch.no_grad():
                self.weight.div_(2)
            self.is_done = True
        return x * self.weight


def test_a_model_that_writes_to_its_weights() -> None:
    model = Halves().eval()
    with pytest.raises(pipeline.CaptureError, match=r"writes to its parameter weight .*\n.*call the model once before"):
        pipeline.capture(model, (torch.ones(2, 4),))
    model(torch.ones(2, 4))
    pipeline.capture(model, (torch.ones(2, 4),))


def test_what_depends_on_data_is_no_matter_of_dtypes() -> None:
    args = torch.ones(2, 4, dtype=torch.float16), torch.ones(2, 4, dtype=torch.int64)
    line = r"branches on a tensor's value, .*: test_error_attribution\.py:\d+, while x\.dtype == torch\.float16 and"
    with pytest.raises(pipeline.CaptureError, match=line) as caught:
        pipeline.capture(ClampedInHalves().half().eval(), args)
    assert ", expected " not in str(caught.value)
    assert "TORCH_LOGS" not in str(caught.value)


def test_a_number_that_data_has_is_no_key() -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        lengths = (x > 0).sum(-1).tolist()
        return x * len(set(lengths))

    says = (
        r"Calls uses a tensor's value in a set or as a dict key, .*: test_error_attribution\.py:\d+, .*set\(lengths\)"
    )
    with pytest.raises(pipeline.CaptureError, match=rf"{says}(.|\n)*hint: .*pipeline\.Constant\(value\)"):
        pipeline.capture(Calls(counts), (torch.ones(2, 3),))
