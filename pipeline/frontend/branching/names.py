"""Which names a part of a function sets, and which are read after each of its branches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from attrs import define, field

Names: TypeAlias = frozenset[str]
NONE: Final[Names] = frozenset()
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
INNER: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
"""What has names of its own."""


def inside(parts: Iterable[ast.AST], *, loops: bool = True) -> Iterator[ast.AST]:
    """All parts of these, but for the inside of functions and classes in them, and of ``loops``."""
    waiting = [*parts]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, ast.For | ast.AsyncFor | ast.While) and not loops:
            waiting += part.orelse
        elif not isinstance(part, INNER):
            waiting += ast.iter_child_nodes(part)


def stored(parts: Iterable[ast.AST]) -> Names:
    """The names that statements may set."""
    nodes = list(inside(parts))
    own = {n for each in nodes if isinstance(each, ast.comprehension) for n in ast.walk(each.target)}
    return frozenset(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in own)


def read(*parts: ast.AST | None) -> Names:
    """The names that are read somewhere in these, also by functions in them."""
    nodes = [node for part in parts if part is not None for node in ast.walk(part)]
    loaded = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    added = {n.target.id for n in nodes if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    return frozenset(loaded | added)


def liveness_of(function: Function) -> Liveness:
    """For each statement of a function, the names that may be read after it before they are set. Where it is not known,
    they are."""
    kept = [node for node in ast.walk(function) if isinstance(node, INNER) and node is not function]
    liveness = Liveness(read(*kept))
    liveness.block(function.body, NONE)
    return liveness


@define
class Liveness:
    """Walks a function from its end to its beginning.

    Attributes:
        always: what functions in it may read at any time, and what ``except`` and ``finally`` around it do.
        after: the names read after each statement.
        heads: the names read after each turn of a loop.
        jumps: what is read after a ``break`` or a ``continue``.
    """

    always: Names
    after: dict[ast.stmt, Names] = field(factory=dict)
    heads: dict[ast.stmt, Names] = field(factory=dict)
    jumps: Names = NONE

    def block(self, statements: Sequence[ast.stmt], out: Names) -> Names:
        """The names read in statements or after them, before they are set; ``out`` are those read after them."""
        for statement in reversed(statements):
            self.after[statement] = self.after.get(statement, NONE) | out | self.always
            out = self._before(statement, out) | self.always
        return out

    def _before(self, s: ast.stmt, out: Names) -> Names:
        if isinstance(s, ast.If):
            return read(s.test) | self.block(s.body, out) | self.block(s.orelse, out)
        if isinstance(s, ast.For | ast.AsyncFor | ast.While):
            return self._loop(s, out)
        if isinstance(s, ast.With | ast.AsyncWith):
            return read(*s.items) | self.block(s.body, out)
        if isinstance(s, ast.Try) or type(s).__name__ in ("Match", "TryStar"):
            return self._any_way(s, out)
        if isinstance(s, ast.Return | ast.Raise):
            return read(s)
        if isinstance(s, ast.Break | ast.Continue):
            return self.jumps
        return (out - _set_for_sure(s)) | read(s)

    def _loop(self, loop: ast.For | ast.AsyncFor | ast.While, out: Names) -> Names:
        """What a turn reads is read after the turn before it."""
        outer, head = self.jumps, out | read(loop.test if isinstance(loop, ast.While) else loop.iter)
        below = head | self.block(loop.orelse, out)
        for _ in range(2):
            self.jumps = below
            turn = self.block(loop.body, below)
            below |= turn if isinstance(loop, ast.While) else turn - stored([loop.target])
        self.jumps = outer
        self.heads[loop] = self.heads.get(loop, NONE) | below | self.always
        return below

    def _any_way(self, statement: ast.stmt, out: Names) -> Names:
        """Statements that may be left anywhere: what is read in them may be read at any place in them."""
        outer, self.always = self.always, self.always | read(statement)
        for part in ast.walk(statement):
            for name in ("body", "orelse", "finalbody"):
                if isinstance(part, ast.Try | ast.excepthandler) or type(part).__name__ in ("match_case", "TryStar"):
                    self.block(getattr(part, name, ()), out)
        found, self.always = self.always | out, outer
        return found


def _set_for_sure(statement: ast.stmt) -> Names:
    """The names that a statement sets, in any case."""
    if isinstance(statement, ast.Assign):
        return stored(statement.targets)
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        return stored([statement.target])
    return NONE
