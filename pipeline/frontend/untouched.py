"""Leave a model, and what a process has set, as they were before the model was traced.

While torch.export traces, a model runs on fake tensors. What its modules keep for the next call (the grid of a
detector, a mask, an entry of a dict) stays fake, and the model fails when it is called afterwards. Where it calls
``torch.cond``, ``flex_attention`` or their like, torch compiles by Dynamo, which changes settings of the process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
from attrs import frozen
from torch._dynamo.eval_frame import TorchPatcher
from torch.distributions import Distribution
from torch.utils.hooks import RemovableHandle

from pipeline.aten.types import Argument
from pipeline.program import version

CONTAINERS: Final = (list, dict, set, OrderedDict)

_hooks: ContextVar[Sequence[RemovableHandle]] = ContextVar("hooks on buffers", default=())


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """A context after which a model's modules hold what they held before, in attributes, and in lists, dicts and sets
    that are attributes; and in buffers of one element, to which torch really writes where it meets them outside of
    modules. What other objects hold is theirs."""
    spaces = [_Space.of(vars(module)) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone(), version(buffer)) for buffer in model.buffers() if buffer.numel() == 1]
    try:
        yield
    finally:
        for space in spaces:
            space.restore()
        for buffer, value, at in buffers:
            if version(buffer) != at:
                buffer.data.copy_(value)


@contextmanager
def checks_left() -> Iterator[None]:
    """A context after which distributions check their arguments as they did before, by default. The first function that
    Dynamo compiles turns these checks off; the next one outside does so again, as it would have without ours."""
    before = Distribution._validate_args
    try:
        yield
    finally:
        if Distribution._validate_args != before:
            Distribution.set_default_validate_args(before)
            TorchPatcher.patch.cache_clear()


def hooked(own: Callable[..., RemovableHandle]) -> Callable[..., RemovableHandle]:
    """Wrap torch's `register_buffer_assignment_hook` to know its hooks, which are for all modules of the process."""

    def register(*args: Argument) -> RemovableHandle:
        hook = own(*args)
        _hooks.set((*_hooks.get(), hook))
        return hook

    return register


@contextmanager
def hooks_removed() -> Iterator[None]:
    """A context after which no hook is left that torch set on buffers: a failed export leaves its own, and the model
    then fails where it sets a buffer."""
    token = _hooks.set(())
    try:
        yield
    finally:
        for hook in _hooks.get():
            hook.remove()
        _hooks.reset(token)


@frozen
class _Space:
    """The attributes of an object, and what was in them."""

    now: dict[str, Argument]
    before: dict[str, Argument]
    contents: Sequence[tuple[Argument, Argument]]

    @classmethod
    def of(cls, space: dict[str, Argument]) -> _Space:
        """What is there at the moment."""
        return cls(space, dict(space), [(v, v.copy()) for v in space.values() if type(v) in CONTAINERS])

    def restore(self) -> None:
        """Put back what was there."""
        for name in self.now.keys() - self.before.keys():
            del self.now[name]
        self.now.update({name: value for name, value in self.before.items() if self.now.get(name) is not value})
        for container, before in self.contents:
            if not _same(_rows(container), _rows(before)):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(before)


def _rows(container: Argument) -> Iterable[tuple[object, object]]:
    """What is in a container, by key or place; of a set, in no order."""
    if isinstance(container, dict):
        return container.items()
    return enumerate(sorted(container, key=id) if isinstance(container, set) else container)


def _same(some: Iterable[tuple[object, object]], others: Iterable[tuple[object, object]]) -> bool:
    """Whether names and values are the same objects, in the same order."""
    one, other = ([(name, id(value)) for name, value in rows] for rows in (some, others))
    return one == other
