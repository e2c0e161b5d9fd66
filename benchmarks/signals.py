"""How the architectures of the zoo that take several inputs are written down: each input's dims by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import transformers as hf
from attrs import frozen
from torch.export import Dim

from benchmarks.architectures import Architecture, Made, lively
from benchmarks.images import configuration

RANGES = {
    "batch": (1, 2, 4),
    "samples": (400, 640, 1200),
    "long_samples": (1200, 1600, 2400),
    "frames": (16, 40, 64),
    "sequence": (2, 12, 32),
    "target": (2, 6, 12),
}
"""The least, the example's and the largest size of dims that vary, by name."""


@frozen
class Given:
    """An input: its dims, names of ``RANGES`` or numbers, and its values: of a normal distribution, ones, zeros, in
    order, or ids below a number."""

    dims: tuple[str | int, ...]
    values: Literal["normal", "ones", "zeros", "order"] | int = "normal"

    def tensor(self) -> torch.Tensor:
        """The example."""
        shape = [RANGES[d][1] if isinstance(d, str) else d for d in self.dims]
        if isinstance(self.values, int):
            return torch.randint(3, self.values, shape)
        if self.values == "order":
            return torch.arange(math.prod(shape)).reshape(shape) % shape[-1]
        if self.values == "normal":
            return torch.randn(shape)
        return torch.full(shape, int(self.values == "ones"))

    def dynamic(self, made: Mapping[str, Any]) -> dict[int, Any]:
        """torch.export's dims."""
        return {i: made[d] for i, d in enumerate(self.dims) if isinstance(d, str)}


def floats(*dims: str | int) -> Given:
    """Numbers of a normal distribution."""
    return Given(dims)


def ids(below: int, *dims: str | int) -> Given:
    """Token ids, from 3."""
    return Given(dims, below)


def ones(*dims: str | int) -> Given:
    """A mask that hides nothing."""
    return Given(dims, "ones")


class WithImageTokens(torch.nn.Module):
    """A model whose text begins with the places of image features."""

    def __init__(self, model: torch.nn.Module, token: int, count: int) -> None:
        super().__init__()
        self.model, self.token, self.count = model, token, count

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> Any:
        """[N, S] and [N, 3, H, W] -> logits [N, count + S, V]"""
        places = input_ids.new_full((input_ids.shape[0], self.count), self.token)
        return self.model(input_ids=torch.cat([places, input_ids], 1), pixel_values=pixel_values).logits


def with_image_tokens(count: int) -> Any:
    """What puts the places of ``count`` image features before the text."""
    return lambda model: WithImageTokens(model.eval(), 98, count)


def architecture(
    name: str,
    task: str,
    model: str,
    config: tuple[str, Mapping[str, Any]],
    inputs: Mapping[str, Given],
    *,
    dtypes: tuple[str, ...] = ("float32",),
    wrap: Any = None,
    **constants: Any,
) -> Architecture:
    """An architecture of transformers over these inputs; ``constants`` are arguments beside them, ``wrap`` is given the
    model and makes the module that is compiled."""

    def make() -> Made:
        module = lively(getattr(hf, model)(configuration(config)))
        used = sorted({d for given in inputs.values() for d in given.dims if isinstance(d, str)})
        dims = {d: Dim(d, min=RANGES[d][0], max=RANGES[d][2]) for d in used}
        kwargs = {key: given.tensor() for key, given in inputs.items()}
        shapes = {key: given.dynamic(dims) for key, given in inputs.items()}
        return wrap(module) if wrap else module, {**kwargs, **constants}, {**shapes, **dict.fromkeys(constants)}

    ends = ({name: ends[i] for name, ends in RANGES.items()} for i in (0, 2))
    return Architecture(name, task, make, tuple(ends), dtypes)
