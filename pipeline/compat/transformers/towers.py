"""The tower of a model that sees or hears: a program for what is seen in its example, and the module for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_flatten, tree_map_only

from pipeline.aten.types import Argument
from pipeline.compat.transformers.caches import Pretrained
from pipeline.inputs import Constant
from pipeline.runtime.module import CompiledModule

Called: TypeAlias = tuple[torch.nn.Module, tuple[Argument, ...], dict[str, Argument]]
"""A module, and what it was called with."""


@frozen
class TowerCall:
    """What a model calls its tower with, for an example: its path, and tensors and other values."""

    path: str
    args: tuple[Argument, ...] = field(repr=False)
    kwargs: Mapping[str, Argument] = field(repr=False)

    @property
    def inputs(self) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """Those of its program: whole numbers, such as grids, are constants."""
        found: tuple[tuple[Argument, ...], dict[str, Argument]]
        found = tree_map_only(torch.Tensor, _as_input, (self.args, dict(self.kwargs)))
        return found

    def is_like(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> bool:
        """Whether the program is for such a call."""
        (own, spec), (others, other) = tree_flatten((self.args, dict(self.kwargs))), tree_flatten((args, dict(kwargs)))
        return spec == other and all(map(_alike, own, others))


def _as_input(x: torch.Tensor) -> torch.Tensor | Constant:
    return x if x.is_floating_point() else Constant(x)


def _alike(own: Argument, other: Argument) -> bool:
    if not isinstance(own, torch.Tensor):
        return bool(type(own) is type(other) and own == other)
    if not isinstance(other, torch.Tensor) or (own.shape, own.dtype) != (other.shape, other.dtype):
        return False
    return own.is_floating_point() or torch.equal(own, other.to(own.device))


def beside(model: Pretrained) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of a model that are neither its language model nor its head, and in no other of them; by path."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    path = next(name for name, each in model.named_modules() if each is decoder)
    parts = path.split(".")
    for i, on_the_way in enumerate(parts):
        within = ".".join(parts[:i])
        for name, child in model.get_submodule(within).named_children():
            if name != on_the_way and child is not head:
                yield f"{within}.{name}".lstrip("."), child


@contextmanager
def noting(*modules: torch.nn.Module) -> Iterator[list[Called]]:
    """While entered, what modules are called with is noted, if floats are among it."""
    found: list[Called] = []

    def note(module: torch.nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        leaves = tree_flatten((args, kwargs))[0]
        if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in leaves):
            found.append((module, args, kwargs))

    handles = [each.register_forward_pre_hook(note, with_kwargs=True) for each in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def tower_of(model: Pretrained, called: Sequence[Called]) -> TowerCall | None:
    """The first call of the largest module that was called; None if none was."""
    module, args, kwargs = max(called, key=lambda each: _size(each[0]), default=(None, (), {}))
    path = next((path for path, each in model.named_modules() if each is module), None)
    return None if path is None else TowerCall(path, args, kwargs)


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class Tower(torch.nn.Module):
    """A tower whose program runs the calls that it is for."""

    def __init__(self, real: torch.nn.Module, runner: CompiledModule, call: TowerCall) -> None:
        super().__init__()
        self.real = real
        self.__dict__.update(runner=runner, call=call)

    def __getattr__(self, name: str) -> Argument:
        if name == "real":
            return super().__getattr__(name)
        return getattr(super().__getattr__("real"), name)

    def forward(self, *args: Argument, **kwargs: Argument) -> Argument:
        """As the module's."""
        run = self.__dict__["runner"] if self.__dict__["call"].is_like(args, kwargs) else self.real
        return run(*args, **kwargs)


def put(shell: Pretrained, call: TowerCall, runner: CompiledModule) -> None:
    """Let a model's shell run its tower's program."""
    within, _, name = call.path.rpartition(".")
    parent = shell.get_submodule(within)
    parent._modules[name] = Tower(parent._modules[name], runner, call)
