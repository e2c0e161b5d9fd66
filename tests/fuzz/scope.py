"""The state of a program under construction. Each statement is executed, at several sizes, as it is added.

So no code here computes shapes of results: a statement that PyTorch refuses at any of the sizes is not added, and two
dims count as equal if they are equal at all sizes. Values are kept small, and it is noted which are *exact*: only those
are compared, made integers or sorted, so that a rounding error cannot grow into another result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from attrs import define, field
from torch import nn

from pipeline.aten.types import Argument, Leaf
from pipeline.testing.compare import LARGEST_PLAIN_INPUT

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
Dims = tuple[tuple[int, ...], ...]

MOST_ELEMENTS = 600
"""Of tensors; those of rank 3 and more may have 8 times as many."""
MOST_RANK = 5
LARGEST_INT = 9999


@define(eq=False)
class Value:
    """A tensor of the program. ``text`` is its name in statements.

    exact: it has no rounding error, unless it is overwritten. fixed: statements do not write to it. loose: its sizes
    depend on data. moving: it depends on inputs or on state, and is not the same at every call. spread: it
    is expanded.
    """

    text: str
    exact: bool = False
    fixed: bool = False
    loose: bool = False
    moving: bool = True
    spread: bool = False


@define(eq=False)
class Scope:
    """The statements so far, their values, and the tensors of these at each of the sizes (a *world*)."""

    choose: Choose
    worlds: list[dict[str, Leaf]]
    module: nn.Module = field(factory=nn.Module)
    modules: dict[str, str] = field(factory=dict)
    setup: list[str] = field(factory=list)
    body: list[str] = field(factory=list)
    values: list[Value] = field(factory=list)
    ints: list[str] = field(factory=list)
    inexact: set[int] = field(factory=set)
    written: dict[str, None] = field(factory=dict)
    names: dict[str, int] = field(factory=dict)
    read: set[str] = field(factory=set)
    kept: list[str] = field(factory=list)

    def maybe(self, one_in: int) -> bool:
        """True now and then. The simplest choice is False."""
        return bool(self.choose((False,) * (one_in - 1) + (True,)))

    def name(self, stem: str) -> str:
        """A name that is not used yet."""
        self.names[stem] = self.names.get(stem, -1) + 1
        return f"{stem}{self.names[stem]}"

    def at(self, world: int, text: str) -> Leaf:
        """The value of an expression in a world."""
        return eval(text, _globals(self.module), self.worlds[world])

    def all(self, text: str) -> list[Leaf]:
        """The value of an expression in each world."""
        return [self.at(i, text) for i in range(len(self.worlds))]

    def tensor(self, value: Value) -> torch.Tensor:
        """The tensor of a value in the first world."""
        return self.tensor_at(value.text)

    def tensor_at(self, text: str) -> torch.Tensor:
        """The tensor of an expression in the first world."""
        tensor: torch.Tensor = self.at(0, text)
        return tensor

    def dims(self, value: Value) -> Dims:
        """For each dim its sizes in the worlds."""
        return tuple(zip(*(t.shape for t in self.all(value.text)), strict=True))

    def static(self, value: Value, dim: int) -> int | None:
        """The size of a dim that is the same in all worlds."""
        sizes = self.dims(value)[dim]
        return sizes[0] if len(set(sizes)) == 1 else None

    def is_exact(self, value: Value) -> bool:
        """Whether a value has no rounding error now."""
        tensor = self.tensor(value)
        return not tensor.is_floating_point() or (value.exact and _place(tensor) not in self.inexact)

    def pick(self, accepts: Callable[[Value, torch.Tensor], bool], *, loose: bool = False) -> Value | None:
        """One of the accepted values, more often a new one or one that nothing reads; None if there is none."""
        found = [v for v in self.values if v.loose <= loose and accepts(v, self.tensor(v))]
        moving = [v for v in found if v.moving]
        unread = [v for v in moving if v.text not in self.read]
        return self.choose((*reversed(moving[-3:]), *unread[-6:], *moving, *found)) if found else None

    def add_setup(self, line: str) -> bool:
        """Add a line to ``__init__``, unless PyTorch refuses it."""
        try:
            exec(line, _globals(self.module))
        except _REFUSALS:
            return False
        self.module.eval()
        self.setup.append(line)
        return True

    def forget_module(self, name: str, lines: int) -> None:
        """Remove a module that nothing uses; ``lines``: of ``__init__``, before it was added."""
        del self.setup[lines:], self.modules[name]
        delattr(self.module, name.removeprefix("self."))

    def execute(self, line: str) -> bool:
        """Add a statement, unless PyTorch refuses it in some world or its result is unsuitable."""
        made: list[dict[str, Leaf]] = []
        try:
            for world in self.worlds:
                local = dict(world)
                with torch.no_grad():
                    exec(line, _globals(self.module), local)
                made.append(local)
        except _REFUSALS:
            return False
        new = made[0].keys() - self.worlds[0].keys()
        if not all(_are_sound([local[name] for local in made]) for name in new):
            return False
        self.worlds[:] = made
        self.body.append(line)
        self.read.update(re.findall(r"\b[av]\d+\b|\b[abcd]\b", line.partition(" = ")[2] or line))
        return True

    def assign(self, text: str, *, exact: bool = False, loose: bool = False) -> Value | None:
        """Assign an expression to a new value, made small if it is not; None if it is refused."""
        name = self.name("v")
        if not self.execute(f"{name} = {text}"):
            return None
        moving = any(v.moving and v.text in text for v in self.values)
        value = Value(name, exact, loose=loose, moving=moving, spread=".expand" in text)
        self.values.append(value)
        return self.bounded(value)

    def bounded(self, value: Value) -> Value:
        """The value, or, if it grew too large, a smaller one made from it."""
        tensors = self.all(value.text)
        if tensors[0].dtype == torch.bool or max(map(_largest, tensors)) <= _limit(tensors[0]):
            return value
        how = f"torch.tanh({value.text})" if tensors[0].is_floating_point() else f"{value.text} % 7"
        return self.assign(how, loose=value.loose) or value

    def write(self, target: Value, line: str, *, exact: bool) -> bool:
        """Add a statement that writes to a value, unless its aliases differ between worlds."""
        if not self.may_write(target) or not self.execute(line):
            return False
        if self.tensor(target).is_floating_point():
            if not exact:
                self.inexact.add(_place(self.tensor(target)))
            if max(map(_largest, self.all(target.text))) > LARGEST_PLAIN_INPUT:
                self.execute(f"{target.text}.clamp_(-4, 4)")
        elif max(map(_largest, self.all(target.text))) > LARGEST_INT:
            self.execute(f"{target.text}.remainder_(7)")
        self.written[target.text] = None
        return True

    def is_apart(self, given: Value, target: Value) -> bool:
        """Whether no element of a value lies in memory where another one of the target does.

        What an operator reads there while it writes the target is undefined in PyTorch.
        """
        pairs = zip(self.all(given.text), self.all(target.text), strict=True)
        return not any(_place(a) == _place(b) and _layout(a) != _layout(b) for a, b in pairs)

    def may_write(self, target: Value) -> bool:
        """Whether no fixed or expanded value shares memory with it, and its aliases are the same in every world.

        In PyTorch, writing to an expanded tensor is undefined; torch.export cannot remove such a write even if nothing
        overlaps.
        """
        seen = [frozenset(v.text for v in self.values if _shares(world, v, target, self)) for world in self.worlds]
        barred = {v.text for v in self.values if v.fixed or v.spread}
        return len(set(seen)) == 1 and not seen[0] & barred


def _globals(module: nn.Module) -> dict[str, Leaf]:
    return {"torch": torch, "nn": nn, "F": nn.functional, "cond": _cond, "self": module}


def _cond(
    condition: torch.Tensor, true: Callable[..., object], false: Callable[..., object], operands: Argument
) -> object:
    """``torch.cond``, without compiling anything."""
    return (true if condition else false)(*operands)


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _shares(world: Mapping[str, object], value: Value, target: Value, scope: Scope) -> bool:
    a, b = (eval(v.text, _globals(scope.module), dict(world)) for v in (value, target))
    return _place(a) == _place(b)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _are_sound(made: list[Leaf]) -> bool:
    """Whether a program should hold what an expression is in each world: of one type, rank and dtype."""
    kinds = {(v.dtype, v.dim()) if isinstance(v, torch.Tensor) else type(v) for v in made}
    return len(kinds) == 1 and all(map(_is_sound, made))


def _is_sound(made: object) -> bool:
    """Numbers, and tensors that are not large."""
    if not isinstance(made, torch.Tensor):
        return isinstance(made, int | float | bool | tuple | list)
    finite = not made.is_floating_point() or bool(made.isfinite().all())
    few = made.numel() <= MOST_ELEMENTS * (8 if made.dim() > 2 else 1)
    return finite and made.dim() <= MOST_RANK and few and made.dtype in _DTYPES


_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 0.0


def _limit(tensor: torch.Tensor) -> float:
    return LARGEST_PLAIN_INPUT if tensor.is_floating_point() else LARGEST_INT


def same(a: Dims, b: Dims) -> bool:
    """Whether shapes are the same at all sizes."""
    return a == b


def broadcasts(a: Dims, b: Dims) -> bool:
    """Whether shapes broadcast at all sizes, by dims that are the same or 1."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or set(x) == {1} or set(y) == {1} for x, y in pairs)


def elements(dims: Dims) -> tuple[int, ...]:
    """The number of elements at each of the sizes."""
    return tuple(map(math.prod, zip(*dims, strict=True)))
