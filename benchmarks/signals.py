"""How the architectures of the zoo that take several inputs are written down: each input's dims by name."""

from __future__ import annotations

import copy
import importlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
import transformers as hf
from attrs import frozen
from torch.export import Dim
from torch.utils._pytree import tree_leaves, tree_map

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

LATENTS = {"height": (2, 4, 8), "width": (3, 6, 10), "tokens": (4, 15, 24), "pictures": (2, 3, 5)}
"""The same of images and videos, in the units that each model takes: ``"2*height"`` is a dim of twice as many."""


def _parts(dim: str) -> tuple[int, str, int]:
    """The 4, frames and 1 of ``"4*frames + 1"``."""
    found = re.fullmatch(r"(?:(\d+)\*)?(\w+)(?: \+ (\d+))?", dim)
    assert found, dim
    return int(found[1] or 1), found[2], int(found[3] or 0)


def size(dim: str, end: int) -> int:
    """The least (0), the example's (1) or the largest size (2) of a dim."""
    times, name, more = _parts(dim)
    return times * {**RANGES, **LATENTS}[name][end] + more


def _made(dims: set[str]) -> dict[str, Any]:
    """torch.export's dims by these names."""
    ends = {name: {**RANGES, **LATENTS}[name] for _, name, _ in map(_parts, dims)}
    bases = {name: Dim(name, min=least, max=most) for name, (least, _, most) in ends.items()}

    def derived(times: int, name: str, more: int) -> Any:
        multiple = times * bases[name] if times > 1 else bases[name]
        return multiple + more if more else multiple

    return {dim: derived(*_parts(dim)) for dim in dims}


@frozen
class Given:
    """An input: its dims, names of ``RANGES`` and ``LATENTS`` or numbers, and its values: of a normal distribution,
    ones, zeros, in order, or ids below a number."""

    dims: tuple[str | int, ...]
    values: Literal["normal", "ones", "zeros", "order"] | int = "normal"

    def tensor(self) -> torch.Tensor:
        """The example."""
        shape = [size(d, 1) if isinstance(d, str) else d for d in self.dims]
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

    def module() -> torch.nn.Module:
        made: torch.nn.Module = getattr(hf, model)(configuration(config))
        return made

    return Architecture(name, task, *_over(module, inputs, wrap, constants), dtypes)


def diffusion(
    name: str,
    task: str,
    model: str,
    inputs: Mapping[str, Any],
    *,
    dtypes: tuple[str, ...] = ("float32",),
    wrap: Any = None,
    constants: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Architecture:
    """An architecture of diffusers with these fields of its configuration. Inputs may be dicts and tuples of others."""

    def module() -> torch.nn.Module:
        made: torch.nn.Module = getattr(importlib.import_module("diffusers"), model)(**copy.deepcopy(fields))
        return made

    made = _over(module, inputs, wrap, constants or {})
    return Architecture(name, task, *made, dtypes, library="diffusers")


def _over(
    module: Callable[[], torch.nn.Module], inputs: Mapping[str, Any], wrap: Any, constants: Mapping[str, Any]
) -> tuple[Callable[[], Made], tuple[dict[str, int], ...]]:
    """What makes an architecture, and its sizes."""
    used = {d for given in tree_leaves(dict(inputs)) for d in given.dims if isinstance(d, str)}

    def make() -> Made:
        model, dims = lively(module()), _made(used)
        kwargs = tree_map(lambda given: given.tensor(), dict(inputs))
        shapes = tree_map(lambda given: given.dynamic(dims), dict(inputs))
        shapes |= tree_map(lambda _: None, dict(constants))
        return wrap(model) if wrap else model, {**kwargs, **constants}, shapes

    names = {**dict.fromkeys(RANGES), **dict.fromkeys(sorted(used))}
    return make, tuple({name: size(name, end) for name in names} for end in (0, 2))
