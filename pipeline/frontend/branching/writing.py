"""Write the statements of a function anew, with both branches where data may decide."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from attrs import define

from pipeline.aten.types import Argument
from pipeline.frontend.branching.names import Liveness, Names, inside, stored
from pipeline.frontend.branching.nodes import (
    IMPORTED,
    assigned,
    at,
    attribute,
    call,
    constant,
    deferred,
    method,
    unpacked,
)
from pipeline.frontend.branching.nodes import variables as local_names

_EFFECTS: Final = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Delete, ast.Try, ast.FunctionDef)
_ASYNC: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
_OTHERS: Final = (ast.ClassDef, ast.Yield, ast.YieldFrom, *_ASYNC)


@define(frozen=True)
class _Way:
    """How a branch leaves what it is in: the function, by ``return``, or the turn of a loop.

    Attributes:
        kinds: the statements.
        sets: the name that is set instead: to what is returned, or to whether the loop has ended.
        after: the names that are read after it.
    """

    kinds: tuple[type[ast.stmt], ...]
    sets: str
    after: Names

    def ends(self, statements: Sequence[ast.stmt]) -> bool:
        """Whether statements end with it."""
        return bool(statements) and isinstance(statements[-1], self.kinds)

    def is_in(self, *statements: ast.stmt) -> bool:
        """Whether it is in statements; a ``continue`` of a loop in them is that loop's."""
        return any(isinstance(node, self.kinds) for node in inside(statements, loops=ast.Return in self.kinds))

    def end(self, kind: type[ast.stmt] | None, value: ast.expr | None, line: int) -> list[ast.stmt]:
        """What stands in its place."""
        if ast.Return in self.kinds:
            return [at(assigned(self.sets, value or constant(None)), line)]
        return [at(assigned(self.sets, constant(True)), line)] if kind is ast.Break else []


READS: Final = {"int": "whole", "float": "real", "len": "length"}
"""Functions of Python's that read numbers, and ours in their place."""

RETURNED: Final = "_pipeline_returned"
_RETURN: Final = _Way((ast.Return,), RETURNED, frozenset({RETURNED}))
_BREAK: Final = _Way((ast.Break,), "", frozenset())


@define
class Writer:
    """Writes the statements of one function.

    Attributes:
        file: its file's name, for places.
        liveness: which names are read after each statement.
        count: how many choices were written.
    """

    file: str
    liveness: Liveness
    count: int = 0
    _names: int = 0

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function, whose last one may be a choice that returns."""
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If) and _RETURN.is_in(statement):
                made = self._leaving(statement, statements[i + 1 :], _RETURN)
                if made is not None:
                    ends = at(ast.Return(ast.Name(RETURNED, ast.Load())), statement.lineno)
                    return [*self._each(statements[:i]), *made, ends]
        return self._each(statements)

    def new(self, kind: str) -> str:
        """A name of no one else's."""
        self._names += 1
        return f"_pipeline_{kind}_{self._names}"

    def _each(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [made for statement in statements for made in self._written(statement)]

    def _written(self, s: ast.stmt) -> list[ast.stmt]:
        """A statement, with the choices in it."""
        if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return [s]
        if isinstance(s, ast.If) and not _RETURN.is_in(s) and _is_pure(s.body) and _is_pure(s.orelse):
            names = stored([*s.body, *s.orelse])
            return self._choice(s, s.test, (self._each(s.body), self._each(s.orelse)), names, self.liveness.after[s])
        if isinstance(s, ast.For | ast.While):
            return self._loop(s)
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Attribute) and _is_plain(s.target):
            return self._added(s, s.target)
        for target in getattr(s, "targets", [getattr(s, "target", None)]):
            if isinstance(target, ast.Subscript):
                target.value = call("tensor", target.value)
        for name, part in ast.iter_fields(s):
            if isinstance(part, ast.expr):
                setattr(s, name, _Expressions(self).visit(part))
            elif isinstance(part, list) and part and isinstance(part[0], ast.stmt):
                setattr(s, name, self._each(part))
        for handler in getattr(s, "handlers", ()):
            handler.body = self._each(handler.body)
        return [s]

    def _added(self, s: ast.AugAssign, target: ast.Attribute) -> list[ast.stmt]:
        """``self.calls += 1``, which writes to a tensor if there is one."""
        name, held = self.new("held"), ast.Attribute(target.value, target.attr, ast.Load())
        value = _Expressions(self).visit(s.value)
        add = ast.AugAssign(ast.Name(name, ast.Store()), s.op, value)
        made = [assigned(name, call("tensor", held)), add, ast.Assign([target], ast.Name(name, ast.Load()))]
        return [at(each, s.lineno) for each in made]

    def _loop(self, s: ast.For | ast.While) -> list[ast.stmt]:
        """A loop. Data may choose the turns of ``for``, and end it."""
        breaks, own = _BREAK.is_in(*s.body), _named(s)
        stopped = frozenset({self.new("stopped")} if breaks else ())
        kinds = (ast.Continue, ast.Break) if breaks else (ast.Continue,)
        way = _Way(kinds, "".join(stopped), self.liveness.heads[s] | stopped)
        names, leaves = stored([*own, *s.body]) | stopped, way.is_in(*s.body)
        is_pure = _is_pure(s.body, leaves=True) and not _RETURN.is_in(*s.body)
        is_pure = is_pure and not (breaks and (not own or s.orelse))
        written = self._tail(s.body, s.lineno, way) if leaves and is_pure else None
        body = self._each(s.body) if written is None else written
        is_whole = is_pure and not s.orelse and (written is not None or not leaves)
        if isinstance(s, ast.For) and own and is_whole and (breaks or not _is_counted(s)):
            body = self._turn(s, way, names, body)
        elif isinstance(s, ast.For) and not _is_counted(s):
            self.count += 1
            s.iter = call("all_of", s.iter, constant(self._place(s)), module="turns")
        expressions = _Expressions(self)
        if isinstance(s, ast.For):
            s.iter = expressions.visit(s.iter)
        else:
            s.test = expressions.visit(s.test)
        s.body, s.orelse = body or [ast.Pass()], self._each(s.orelse)
        return [*(at(assigned(name, constant(False)), s.lineno) for name in stopped), at(s, s.lineno)]

    def _turn(self, s: ast.For, way: _Way, names: Names, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The body of a loop whose turns data may choose. The loop goes over turns then."""
        turn, values = self.new("turn"), _listed(s.iter)
        given = [s.iter, constant(False)] if values is None else [values, constant(True)]
        first = at(ast.Assign([s.target], attribute(turn, "value")), s.lineno)
        stopped = ast.Name(way.sets, ast.Load()) if way.sets else constant(False)
        made = self._choice(s, method(turn, "unless", stopped), ([first, *body], []), names, way.after, kind="Once")
        place = constant(self._place(s))
        s.target, s.iter = ast.Name(turn, ast.Store()), call("turns", *given, place, module="turns")
        if way.sets:
            ended = call("has_ended", stopped, module="turns")
            made.append(at(ast.If(ended, [ast.Break()], []), s.lineno))
        return made

    def _leaving(self, s: ast.If, rest: Sequence[ast.stmt], way: _Way) -> list[ast.stmt] | None:
        """An ``if`` of which a branch leaves, with what follows it in the other."""
        yes, no = list(s.body), list(s.orelse)
        if not way.ends(yes) and not way.ends(no):
            return None
        parts = [part if way.ends(part) else [*part, *rest] for part in (yes, no)]
        if not all(_is_pure(part, leaves=way is not _RETURN) for part in parts):
            return None
        names = stored(parts[0] + parts[1]) | ({way.sets} & way.after)
        made = [self._tail(part, s.lineno, way) for part in parts]
        if made[0] is None or made[1] is None:
            return None
        return self._choice(s, s.test, (made[0], made[1]), names, way.after)

    def _tail(self, statements: Sequence[ast.stmt], line: int, way: _Way) -> list[ast.stmt] | None:
        """Statements that leave in the end, without that: ``return`` sets a name. None if they leave elsewhere too."""
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If) and way.is_in(statement):
                made = self._leaving(statement, statements[i + 1 :], way)
                return None if made is None else [*self._each(statements[:i]), *made]
            if isinstance(statement, way.kinds):
                value = getattr(statement, "value", None)
                value = None if value is None else _Expressions(self).visit(value)
                return [*self._each(statements[:i]), *way.end(type(statement), value, statement.lineno)]
            if way.is_in(statement):
                return None
        return [*self._each(statements), *way.end(None, None, line)]

    def _choice(
        self,
        s: ast.stmt,
        test: ast.expr,
        parts: tuple[Sequence[ast.stmt], Sequence[ast.stmt]],
        stored: Names,
        after: Names,
        kind: str = "Choice",
    ) -> list[ast.stmt]:
        """The branch that is taken, or both where the test is open."""
        self.count += 1
        choice, names = self.new("choice"), sorted(stored)
        kept = tuple(name for name in names if name in after)
        asked = _Expressions(self).visit(self.test(test)) if kind == "Choice" else test
        given, module = [asked, constant(self._place(s)), local_names()], "both" if kind == "Choice" else "turns"
        made = [assigned(choice, call(kind, *given, constant(tuple(names)), constant(kept), module=module))]
        is_open, before = attribute(choice, "is_open"), attribute(choice, "before")
        for way, part, merged in ((True, parts[0], before), (False, parts[1], method(choice, "merged"))):
            branch = ast.With([ast.withitem(method(choice, "branch", constant(way)))], list(part) or [ast.Pass()])
            ends = ast.Expr(method(choice, "ends", constant(way), local_names()))
            made.append(ast.If(method(choice, "runs", constant(way)), [branch, ends], []))
            if names:
                made.append(ast.If(is_open, [unpacked(names, merged)], []))
        return [at(each, s.lineno) for each in made]

    def test(self, test: ast.expr) -> ast.expr:
        """A test that may be a tensor."""
        return test if _needs_its_place(test) else _Tests().visit(test)

    def _place(self, s: ast.stmt) -> str:
        return f"{self.file}:{s.lineno}"


class _Expressions(ast.NodeTransformer):
    """Choices in expressions, and numbers of loops in texts."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Both values, and the choice, where the test is open."""
        if _needs_its_place(node):
            return node
        self.writer.count += 1
        place = f"{self.writer.file}:{node.lineno}"
        test, yes, no = (self.visit(part) for part in (self.writer.test(node.test), node.body, node.orelse))
        return ast.copy_location(call("either", test, deferred(yes), deferred(no), constant(place)), node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """``int(x)``, ``float(x)``, ``len(x)``"""
        self.generic_visit(node)
        if not reads(node):
            return node
        self.writer.count += 1
        return ast.copy_location(call(reads(node), *node.args), node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.FormattedValue:
        """``f"expert_{i}"``"""
        node.value = call("shown", self.visit(node.value), module="turns")
        return node

    def visit(self, node: Argument) -> Argument:
        """What has names of its own stays as it is."""
        own = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        return node if isinstance(node, own) else super().visit(node)


class _Tests(ast.NodeTransformer):
    """A test in operators that take tensors: ``not a``, ``a and b``, ``a.item()``, ``bool(a)``, ``a > n``."""

    def visit(self, node: Argument) -> Argument:
        """Only what a test is made of: not what its functions are called with."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.copy_location(call("negation", self.visit(node.operand)), node)
        if isinstance(node, ast.BoolOp):
            name = "both" if isinstance(node.op, ast.And) else "any_of"
            parts = [deferred(self.visit(part)) for part in node.values]
            return ast.copy_location(call(name, *parts), node)
        if isinstance(node, ast.Compare):
            sides = [self.visit(part) for part in (node.left, *node.comparators)]
            is_one = not isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn) and len(sides) == 2
            node.left, *node.comparators = [call("number", side) for side in sides] if is_one else sides
        if isinstance(node, ast.Call) and not node.keywords:
            if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
                return ast.copy_location(call("item", node.func.value), node)
            if isinstance(node.func, ast.Name) and node.func.id == "bool" and len(node.args) == 1:
                return ast.copy_location(call("truth", self.visit(node.args[0])), node)
            if reads(node) == "length":
                return ast.copy_location(call("length", *node.args), node)
            if reads(node):
                read = attribute(IMPORTED["both"], reads(node))
                return ast.copy_location(call("in_test", read, self.visit(node.args[0])), node)
        return node


def reads(node: ast.Call) -> str:
    """The function of ours for a call that may read a number of data, ``int(x)``; empty if it reads none."""
    if not isinstance(node.func, ast.Name) or len(node.args) != 1 or node.keywords:
        return ""
    return READS.get(node.func.id, "")


def _named(loop: ast.For | ast.While) -> list[ast.expr]:
    """The names that a turn is given, if they are names, and what a loop goes over may be data."""
    if isinstance(loop, ast.While) or any(isinstance(n, ast.Starred) for n in ast.walk(loop.target)):
        return []
    names = all(isinstance(n, ast.Name | ast.Tuple | ast.expr_context) for n in ast.walk(loop.target))
    return [loop.target] if names else []


def _is_counted(loop: ast.For | ast.While) -> bool:
    """Whether Python counts what a loop goes over."""
    source = loop.iter.func if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
    return isinstance(source, ast.Name) and source.id in ("range", "enumerate", "zip")


def _listed(values: ast.expr) -> ast.expr | None:
    """``x`` in ``x.tolist()``"""
    if not isinstance(values, ast.Call) or values.args or values.keywords or not isinstance(values.func, ast.Attribute):
        return None
    return values.func.value if values.func.attr == "tolist" else None


def _is_pure(statements: Sequence[ast.stmt], leaves: bool = False) -> bool:
    """Whether statements set names, and nothing else that can be seen in them; ``leaves``: they may leave a turn."""
    nodes = list(inside(statements))
    loops = [loop for loop in nodes if isinstance(loop, ast.For | ast.While)]
    jumps = [node for node in nodes if isinstance(node, ast.Break | ast.Continue) and not leaves]
    if any(isinstance(node, (*_EFFECTS, *_OTHERS)) for node in nodes):
        return False
    assigned = {id(target) for n in nodes for target in getattr(n, "targets", [getattr(n, "target", None)])}
    stores = [n for n in nodes if isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load)]
    added = {id(n.target) for n in nodes if isinstance(n, ast.AugAssign) and _is_plain(n.target)}
    if any(id(n) not in (added if isinstance(n, ast.Attribute) else assigned) for n in stores):
        return False
    own = {node for loop in loops for node in inside([*loop.body, *loop.orelse])}
    return own >= set(jumps) and not (statements and isinstance(statements[-1], ast.Raise))


def _is_plain(target: ast.expr) -> bool:
    """Whether a target is ``self.a.b``, whose parts can be read twice."""
    while isinstance(target, ast.Attribute):
        target = target.value
    return isinstance(target, ast.Name)


def _needs_its_place(part: ast.expr) -> bool:
    """Whether an expression cannot stand in a function of its own."""
    kinds = ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await
    nodes = list(ast.walk(part))
    return any(isinstance(n, kinds) or (isinstance(n, ast.Name) and n.id in ("super", "__class__")) for n in nodes)
