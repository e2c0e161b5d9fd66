"""Restore a model, and process-wide settings, after the model was traced.

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
from pipeline.export_fixes.interrupts import undo_at_exit
from pipeline.program import tensor_version

CONTAINERS: Final = (list, dict, set, OrderedDict)
PLAIN: Final = (bool, int, float, str, torch.dtype, torch.device)
MAX_ELEMENTS: Final = 1_000
"""The maximum length of a container whose elements are examined."""
MAX_OBJECTS: Final = 10_000
"""The maximum number of objects examined: a module may refer to a whole application (a trainer, a data set)."""
Cache: TypeAlias = type(lru_cache(len))  # type: ignore[valid-type]


def restore_model(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Return a context that restores a model's modules at its end: their attributes, the lists, dicts and sets in
    these, and one-element buffers (torch writes to them in a trace if other objects refer to them). Other objects in
    modules are restored if they contain new fake tensors. Each ``functools.lru_cache`` of these objects' code that got
    new entries is cleared, since the entries may be fake."""
    spaces = [Snapshot.of(vars(module)) for module in model.modules()]
    beside = [each for _, each in held_objects(model)]
    objects = [Snapshot.of(vars(each)) for each in beside]
    code = class_and_file_contents(chain(model.modules(), beside))
    caches = [(cache, cache.cache_info().misses) for cache in {id(x): x for x in code if isinstance(x, Cache)}.values()]
    buffers = [(b, b.detach().clone(), tensor_version(b)) for b in model.buffers() if b.numel() == 1]

    def restore() -> None:
        for space in (*spaces, *(each for each in objects if each.has_new_fakes())):
            space.restore()
        for cache, misses in caches:
            if cache.cache_info().misses != misses:  # what it has made since may be fake, and cannot be looked at
                cache.cache_clear()
        for buffer, value, at in buffers:
            if tensor_version(buffer) != at:
                buffer.data.copy_(value)

    return undo_at_exit(restore)


def restore_distribution_checks() -> AbstractContextManager[None]:
    """Return a context that restores the default argument validation of ``torch.distributions`` at its end. Dynamo
    disables validation when it compiles its first function. After the restore, Dynamo disables it again when it
    compiles the next function, such as the first one of the user."""
    before = Distribution._validate_args

    def restore() -> None:
        if Distribution._validate_args != before:
            TorchPatcher.patch.cache_clear()
            Distribution.set_default_validate_args(before)

    return undo_at_exit(restore)


def held_objects(model: torch.nn.Module) -> list[tuple[str, object]]:
    """Return the objects other than modules and tensors that modules hold, at any depth, with attribute paths."""
    found: dict[int, tuple[str, object]] = {}
    left = [(join_path(path, name), v) for path, module in model.named_modules() for name, v in vars(module).items()]
    while left and len(found) < MAX_OBJECTS:
        place, value = left.pop()
        if type(value) in (*CONTAINERS, tuple) and len(value) <= MAX_ELEMENTS:
            left.extend((place, each) for each in (value.values() if isinstance(value, dict) else value))
        elif id(value) not in found and _is_plain_object(value):
            found[id(value)] = place, value
            left.extend((join_path(place, name), each) for name, each in vars(value).items())
    return [*found.values()]


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_plain_object(value: object) -> bool:
    """Return whether a value has a ``__dict__``, and a class that is neither of Python or torch nor derived from
    `nn.Module` or the like. Attributes of the value may raise errors, or be those of another object (a proxy)."""
    kind = type(value)
    theirs = nn.Module, torch.Tensor, type, ModuleType, Logger, FunctionType, MethodType
    if issubclass(kind, theirs) or _is_library_class(kind):
        return False
    with suppress(Exception):
        return type(vars(value)) is dict
    return False


def _is_library_class(kind: type) -> bool:
    """Return whether a class is defined in torch, builtins or functools."""
    return kind.__module__.partition(".")[0] in ("torch", "builtins", "functools")


def class_and_file_contents(values: Iterable[object], *, torch_too: bool = False) -> Iterator[object]:
    """Yield what the classes of these objects, and the files that define these classes, contain. ``torch_too``: also
    those of classes of torch, builtins and functools."""
    every = dict.fromkeys(kind for each in dict.fromkeys(map(type, values)) for kind in each.__mro__)
    kinds = [kind for kind in every if torch_too or not _is_library_class(kind)]
    files = {kind.__module__: vars(sys.modules[kind.__module__]) for kind in kinds if kind.__module__ in sys.modules}
    yield from (each for space in (*map(vars, kinds), *files.values()) for each in [*space.values()])


def _contains_fakes(value: object, deep: bool = True) -> bool:
    """Return whether a value is or contains a fake tensor; ``deep``: also search the attributes of plain objects."""
    leaves = tree_leaves([*value] if isinstance(value, set) else value)
    if any(isinstance(leaf, FakeTensor | FunctionalTensor) for leaf in leaves):
        return True
    return deep and any(_contains_fakes([*vars(leaf).values()], False) for leaf in leaves if _is_plain_object(leaf))


@frozen
class Snapshot:
    """The attributes of an object when the snapshot was taken, and copies of the lists, dicts and sets in them."""

    current: dict[str, Argument]
    before: dict[str, Argument]
    contents: Mapping[int, tuple[Argument, Argument]]

    @classmethod
    def of(cls, attributes: dict[str, Argument]) -> Snapshot:
        held = (each for value in attributes.values() for each in _containers_in(value))
        return cls(attributes, dict(attributes), {id(each): (each, each.copy()) for each in held})

    def has_new_fakes(self) -> bool:
        """Return whether an attribute contains a fake tensor that it did not contain before."""
        new = (value for name, value in self.current.items() if self.before.get(name) is not value)
        return any(map(_contains_fakes, (*new, *(container for container, _ in self.contents.values()))))

    def changed_items(self) -> Iterator[tuple[str, object]]:
        """Yield (name, new value) of each attribute that has another value now, or that contains (at any depth) a list,
        dict or set with other items than in the snapshot."""
        for name in {**self.before, **self.current}:
            value, before = self.current.get(name), self.before.get(name)
            if not _is_unchanged(value, before) or any(self._is_changed(each) for each in _containers_in(value)):
                yield name, value

    def added_values(self, name: str) -> Sequence[object] | None:
        """Return the values added to an attribute that was None (its value) or a dict (its new entries); else None."""
        value, before = self.current.get(name), self.before.get(name)
        if before is None:
            return [value]
        if value is not before or type(value) is not dict or any(map(self._is_changed, [*_containers_in(value)][1:])):
            return None
        _, old = self.contents[id(value)]
        return [v for k, v in value.items() if k not in old] if all(value.get(k) is v for k, v in old.items()) else None

    def _is_changed(self, container: Argument) -> bool:
        """Return whether a container's contents changed since the snapshot."""
        _, before = self.contents.get(id(container), (None, container))
        return not _has_same_items(container, before)

    def restore(self) -> None:
        for name in self.current.keys() - self.before.keys():
            del self.current[name]
        self.current.update({name: value for name, value in self.before.items() if self.current.get(name) is not value})
        for container, before in self.contents.values():
            if not _has_same_items(container, before):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(before)


def _containers_in(value: Argument) -> Iterator[Argument]:
    """Yield a value if it is a list, dict or set, and the lists, dicts and sets in it."""
    left = [value]
    while left:
        each = left.pop()
        if type(each) in CONTAINERS:
            yield each
        if type(each) in (*CONTAINERS, tuple) and len(each) <= MAX_ELEMENTS:
            left.extend(each.values() if isinstance(each, dict) else each)


def _is_unchanged(first: Argument, second: Argument) -> bool:
    """Return whether two values are one object, equal numbers or strings, or tuples of such values."""
    if first is second or type(first) is not type(second):
        return first is second
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_is_unchanged, first, second))
    return isinstance(first, PLAIN) and first == second


def _has_same_items(first: Argument, second: Argument) -> bool:
    """Return whether two containers have identical objects at the same keys, in the same order (except for sets)."""
    if isinstance(first, set):
        return {*map(id, first)} == {*map(id, second)}
    one, other = (each.items() if isinstance(each, dict) else enumerate(each) for each in (first, second))
    return [(key, id(value)) for key, value in one] == [(key, id(value)) for key, value in other]
