"""Restore a model, and settings of the process, after the model is traced.

During a trace by torch.export, a model runs on fake tensors. If its modules store tensors for the next call (the grid
of a detector, a mask, an entry of a dict), these are fake, and later calls of the model would fail. If the model calls
``torch.cond``, ``flex_attention`` or similar operators, torch runs Dynamo, which changes process-wide settings.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from itertools import chain
from logging import Logger
from types import FunctionType, MethodType, ModuleType
from typing import Final, TypeAlias

import torch
from attrs import frozen
from torch import nn
from torch._dynamo.eval_frame import TorchPatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributions import Distribution
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument
from pipeline.export_fixes.interrupts import undoing
from pipeline.program import tensor_version

CONTAINERS: Final = (list, dict, set, OrderedDict)
PLAIN: Final = (bool, int, float, str, torch.dtype, torch.device)
MOST: Final = 1_000
"""The most elements of a container in which objects are looked for."""
OBJECTS: Final = 10_000
"""The most objects that are examined: a module may refer to a whole application (a trainer, a data set)."""
Cache: TypeAlias = type(lru_cache(len))  # type: ignore[valid-type]


def untouched(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Return a context that restores a model's modules: their attributes, the lists, dicts and sets among these, and
    the values of one-element buffers, which torch writes during a trace if other objects refer to them. Other
    objects in the modules are restored only if they contain fake tensors; then a ``functools.lru_cache`` is cleared."""
    spaces, beside = [Space.of(vars(module)) for module in model.modules()], [each for _, each in others(model)]
    objects = [Space.of(vars(each)) for each in beside]
    caches = [(cache, cache.cache_info().misses) for cache in _caches(chain(model.modules(), beside))]
    buffers = [(b, b.detach().clone(), tensor_version(b)) for b in model.buffers() if b.numel() == 1]

    def restore() -> None:
        for space in (*spaces, *(each for each in objects if each.has_fakes())):
            space.restore()
        for cache, misses in caches:
            if cache.cache_info().misses != misses:  # what it has made since may be fake, and cannot be looked at
                cache.cache_clear()
        for buffer, value, at in buffers:
            if tensor_version(buffer) != at:
                buffer.data.copy_(value)

    return undoing(restore)


def distribution_checks_restored() -> AbstractContextManager[None]:
    """Return a context that restores the default argument validation of ``torch.distributions``. Dynamo disables
    validation when it compiles its first function; afterwards it will do so again for the user's first function."""
    before = Distribution._validate_args

    def restore() -> None:
        if Distribution._validate_args != before:
            TorchPatcher.patch.cache_clear()
            Distribution.set_default_validate_args(before)

    return undoing(restore)


def others(model: torch.nn.Module) -> list[tuple[str, object]]:
    """Return the other objects that modules hold, at any depth, each with the attribute path to it."""
    found: dict[int, tuple[str, object]] = {}
    left = [(within(path, name), v) for path, module in model.named_modules() for name, v in vars(module).items()]
    while left and len(found) < OBJECTS:
        place, value = left.pop()
        if type(value) in (*CONTAINERS, tuple) and len(value) <= MOST:
            left.extend((place, each) for each in (value.values() if isinstance(value, dict) else value))
        elif id(value) not in found and _is_plain(value):
            found[id(value)] = place, value
            left.extend((within(place, name), each) for name, each in vars(value).items())
    return [*found.values()]


def within(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_plain(value: object) -> bool:
    """Return whether a value is an object with attributes whose class is not Python's, torch's or a module's. The
    value may be a proxy, whose attributes may be those of another object or raise errors."""
    kind = type(value)
    theirs = nn.Module, torch.Tensor, type, ModuleType, Logger, FunctionType, MethodType
    if issubclass(kind, theirs) or _is_torchs(kind):
        return False
    with suppress(Exception):
        return type(vars(value)) is dict
    return False


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("torch", "builtins", "functools")


def _caches(values: Iterable[object]) -> Iterator[Cache]:
    """Yield each ``functools.lru_cache`` of objects' methods, and of functions in the files of their classes."""
    kinds = {kind for each in {type(value) for value in values} for kind in each.__mro__ if not _is_torchs(kind)}
    files = {kind.__module__: vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules}
    spaces = (*map(vars, kinds), *files.values())
    yield from {id(x): x for space in spaces for x in [*space.values()] if isinstance(x, Cache)}.values()


def _has_fakes(value: object, deep: bool = True) -> bool:
    """Return whether a value, or an object within it, is or contains a fake tensor."""
    leaves = tree_leaves([*value] if isinstance(value, set) else value)
    if any(isinstance(leaf, FakeTensor | FunctionalTensor) for leaf in leaves):
        return True
    return deep and any(_has_fakes([*vars(leaf).values()], False) for leaf in leaves if _is_plain(leaf))


@frozen
class Space:
    """The attributes of an object, and a snapshot of their contents."""

    now: dict[str, Argument]
    before: dict[str, Argument]
    contents: Mapping[int, tuple[Argument, Argument]]

    @classmethod
    def of(cls, space: dict[str, Argument]) -> Space:
        held = (each for value in space.values() for each in _containers(value))
        return cls(space, dict(space), {id(each): (each, each.copy()) for each in held})

    def has_fakes(self) -> bool:
        """Return whether an attribute contains a fake tensor that it did not contain before."""
        new = (value for name, value in self.now.items() if self.before.get(name) is not value)
        return any(map(_has_fakes, (*new, *(container for container, _ in self.contents.values()))))

    def changed(self) -> Iterator[tuple[str, object]]:
        """Yield the attributes whose object, or an object within it, was replaced; equal numbers are no change."""
        for name in {**self.before, **self.now}:
            value, before = self.now.get(name), self.before.get(name)
            if not _equal(value, before) or any(self._is_filled(each) for each in _containers(value)):
                yield name, value

    def filled_in(self, name: str) -> Sequence[object] | None:
        """Return the new values in an empty attribute or in a dict that kept its entries; None if more changed."""
        value, before = self.now.get(name), self.before.get(name)
        if before is None:
            return [value]
        if value is not before or type(value) is not dict or any(map(self._is_filled, [*_containers(value)][1:])):
            return None
        _, old = self.contents[id(value)]
        return [v for k, v in value.items() if k not in old] if all(value.get(k) is v for k, v in old.items()) else None

    def _is_filled(self, container: Argument) -> bool:
        """Return whether a container has other contents than before."""
        _, before = self.contents.get(id(container), (None, container))
        return not _same(container, before)

    def restore(self) -> None:
        for name in self.now.keys() - self.before.keys():
            del self.now[name]
        self.now.update({name: value for name, value in self.before.items() if self.now.get(name) is not value})
        for container, before in self.contents.values():
            if not _same(container, before):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(before)


def _containers(value: Argument) -> Iterator[Argument]:
    """Yield a list, dict or set, and the containers in it."""
    left = [value]
    while left:
        each = left.pop()
        if type(each) in CONTAINERS:
            yield each
        if type(each) in (*CONTAINERS, tuple) and len(each) <= MOST:
            left.extend(each.values() if isinstance(each, dict) else each)


def _equal(one: Argument, other: Argument) -> bool:
    """Return whether two values are one object, or the same number, text or tuple of these."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, PLAIN) and one == other


def _same(some: Argument, others: Argument) -> bool:
    """Return whether two containers have the same objects by the same keys, in the same order except for sets."""
    if isinstance(some, set):
        return {*map(id, some)} == {*map(id, others)}
    one, other = (each.items() if isinstance(each, dict) else enumerate(each) for each in (some, others))
    return [(key, id(value)) for key, value in one] == [(key, id(value)) for key, value in other]
