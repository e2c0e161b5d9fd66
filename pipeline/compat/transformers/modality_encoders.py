"""Find the image and audio encoders of multimodal models, and record how the models call them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeAlias

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_flatten

from pipeline.aten.types import Argument, Spec
from pipeline.compat.transformers.caches import Pretrained

SMALL: Final = 8
"""A module with less than 1/SMALL of the largest encoder's parameters counts as a projection, not as an encoder."""

CallArgs: TypeAlias = tuple[tuple[Argument, ...], dict[str, Argument]]
"""The ``args`` and ``kwargs`` of a call."""
RecordedCall: TypeAlias = tuple[torch.nn.Module, tuple[Argument, ...], dict[str, Argument]]
"""A recorded call: the called module, and the ``args`` and ``kwargs`` of the call."""


@frozen
class EncoderCall:
    """A recorded call of an image or audio encoder: the encoder's path in the model, and the arguments."""

    path: str
    args: tuple[Argument, ...] = field(repr=False)
    kwargs: Mapping[str, Argument] = field(repr=False)

    @property
    def flat(self) -> tuple[list[Argument], Spec]:
        """Return the arguments as a flat list, and their pytree structure."""
        leaves, spec = tree_flatten((self.args, dict(self.kwargs)))
        return leaves, spec

    def is_equal_but_for_floats(self, other: EncoderCall) -> bool:
        """Return whether another call differs only in the values and sizes of floating-point tensors."""
        (own, nested), (leaves, spec) = self.flat, other.flat
        return (self.path, nested) == (other.path, spec) and all(map(_are_equal_but_for_floats, own, leaves))

    def __str__(self) -> str:
        return ", ".join(_describe_tensor(each) for each in self.flat[0] if isinstance(each, torch.Tensor))


def _describe_tensor(tensor: torch.Tensor) -> str:
    """Return a short description of a tensor: its values if it has up to 12 integers, else its dtype and shape."""
    few = not tensor.is_floating_point() and tensor.numel() <= 12
    return str(tensor.tolist()) if few else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _are_equal_but_for_floats(one: Argument, other: Argument) -> bool:
    """Return whether two arguments are equal or are float tensors that one program with dynamic shapes can accept."""
    if not isinstance(one, torch.Tensor):
        return bool(type(one) is type(other) and one == other)
    if not isinstance(other, torch.Tensor) or (one.dim(), one.dtype) != (other.dim(), other.dtype):
        return False
    return one.is_floating_point() or (one.shape == other.shape and torch.equal(one, other.to(one.device)))


def non_language_modules(model: Pretrained) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a multimodal model's outermost modules, by path, except the language model, its encoder and its head."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    encoder = model.get_encoder() if model.config.is_encoder_decoder else None
    path = next(name for name, each in model.named_modules() if each is decoder)
    parts = path.split(".")
    for i, on_the_way in enumerate(parts):
        within = ".".join(parts[:i])
        for name, child in model.get_submodule(within).named_children():
            if name != on_the_way and child is not head and child is not encoder:
                yield f"{within}.{name}".lstrip("."), child


@contextmanager
def record_calls(*modules: torch.nn.Module) -> Iterator[list[RecordedCall]]:
    """Yield a list to which these modules' calls are added, if an argument is or contains a floating-point tensor."""
    calls: list[RecordedCall] = []

    def record_call(module: torch.nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        leaves = tree_flatten((args, kwargs))[0]
        if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in leaves):
            calls.append((module, args, kwargs))

    with ExitStack() as stack:
        for each in modules:
            stack.enter_context(each.register_forward_pre_hook(record_call, with_kwargs=True))
        yield calls


def select_calls(model: Pretrained, recorded: Sequence[RecordedCall]) -> tuple[EncoderCall, ...]:
    """Select from recorded calls those of the image and audio encoders: the modules with the most parameters."""
    sizes = {id(each): sum(parameter.numel() for parameter in each.parameters()) for each, _, _ in recorded}
    paths = {id(each): path for path, each in reversed([*model.named_modules()])}
    large = {each for each, size in sizes.items() if SMALL * size >= max(sizes.values())}
    return tuple(EncoderCall(paths[id(each)], args, kwargs) for each, args, kwargs in recorded if id(each) in large)
