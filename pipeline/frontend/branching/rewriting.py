"""Write a function anew, so that both branches of an ``if`` on data are traced.

Before::

    if x.sum() > 0:
        y = torch.relu(x)

After, where ``both`` is `pipeline.frontend.branching.both`::

    choice = both.Choice(x.sum() > 0, "model.py:7", locals(), ("y",), ("y",))
    if choice.runs(True):
        with choice.branch(True):
            y = torch.relu(x)
        choice.ends(True, locals())
    if choice.is_open:
        (y,) = choice.before
    if choice.runs(False):
        with choice.branch(False):
            pass
        choice.ends(False, locals())
    if choice.is_open:
        (y,) = choice.merged()

What Python decides, it decides as before. A branch that returns becomes one that sets a name, and what follows the
``if`` the other branch. Elements are assigned to tensors alone (``both.tensor(x)[0] = 1``). An ``if`` stays as it is
where a branch does more: assigns attributes (but for ``self.calls += 1`` of a tensor), leaves a loop, raises.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Final

from attrs import define

from pipeline.aten.types import Argument
from pipeline.frontend.branching.names import Names, inside, read_after, stored

BOTH: Final = "_pipeline_both"
RETURNED: Final = "_pipeline_returned"
MODULE: Final = "pipeline.frontend.branching"

_EFFECTS: Final = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Delete, ast.Try, ast.FunctionDef)
_ASYNC: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
_OTHERS: Final = (ast.ClassDef, ast.Yield, ast.YieldFrom, *_ASYNC)
_READS_NAMES: Final = frozenset(("locals", "vars", "eval", "exec", "dir"))


def rewritten(code: CodeType, line: int) -> CodeType | None:
    """The code of a function that traces both branches where data decides; None where its source is not at hand, or
    no ``if`` of this line can be written so."""
    tree = _tree(code)
    functions = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    function = next((node for node in functions if _is_of(node, code)), None)
    if function is None or not any(_asks(node, line) for node in ast.walk(function)):
        return None
    if _READS_NAMES & set(code.co_names) or any(map(_is_strange, ast.walk(function))):
        return None
    writer = _Writer(Path(code.co_filename).name, read_after(function))
    function.body = writer.body(function.body)
    function.decorator_list = []
    if not writer.count:
        return None
    start = 1 if ast.get_docstring(function, clean=False) is not None else 0
    function.body.insert(start, ast.ImportFrom(MODULE, [ast.alias("both", BOTH)], 0))
    return _compiled(function, code)


def _tree(code: CodeType) -> ast.Module | None:
    """The source of a function, with the lines that it has in its file."""
    try:
        lines, first = inspect.getsourcelines(code)
        is_indented = lines[0][:1].isspace()
        tree = ast.parse("".join(["if True:\n"] * is_indented + lines))
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return ast.increment_lineno(tree, first - 1 - is_indented)


def _is_of(node: ast.FunctionDef, code: CodeType) -> bool:
    lines = node.lineno, *(each.lineno for each in node.decorator_list)
    return node.name == code.co_name and code.co_firstlineno in lines


def _asks(node: ast.AST, line: int) -> bool:
    """Whether a node's test stands in a line."""
    return isinstance(node, ast.If | ast.IfExp) and node.test.lineno <= line <= (node.test.end_lineno or line)


def _is_strange(node: ast.AST) -> bool:
    """Whether a function sets names that are not its own, or asks if two values are one: data's choice is a third."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return True
    if not isinstance(node, ast.Compare) or not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return False
    return not any(isinstance(part, ast.Constant) for part in (node.left, *node.comparators))


def _compiled(function: ast.FunctionDef, code: CodeType) -> CodeType | None:
    """The function's code, with the same names from outside. It has no source of its own, and no class around it: names
    that a class makes private are left out."""
    if any(isinstance(n, ast.Name | ast.Attribute) and _is_private(n) for n in ast.walk(function)):
        return None
    names = [ast.arg(name) for name in code.co_freevars]
    given = ast.arguments(posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[])
    outer = ast.FunctionDef("outer", given, [function, ast.Return(ast.Name(function.name, ast.Load()))], [])
    outer.type_params = []  # type: ignore[attr-defined]
    tree = ast.fix_missing_locations(ast.Module([outer], []))
    module = compile(tree, code.co_filename, "exec", dont_inherit=True, flags=code.co_flags & _FUTURE)
    made = next((each for each in _codes(module) if each.co_name == code.co_name), None)
    if made is None or made.co_freevars != code.co_freevars:
        return None
    return made.replace(co_firstlineno=code.co_firstlineno, co_qualname=code.co_qualname)


_FUTURE: Final = 0x1000000
"""``from __future__ import annotations``."""


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _is_private(node: ast.Name | ast.Attribute) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr
    return name.startswith("__") and not name.endswith("__")


@define
class _Writer:
    """Writes the statements of one function.

    Attributes:
        file: its file's name, for places.
        after: the names read after each statement.
        count: how many choices were written.
    """

    file: str
    after: dict[ast.stmt, Names]
    count: int = 0
    _names: int = 0

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function, whose last one may be a choice that returns."""
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If) and _returns([statement]):
                made = self._returning(statement, statements[i + 1 :])
                if made is not None:
                    ends = _at(ast.Return(ast.Name(RETURNED, ast.Load())), statement.lineno)
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
        if isinstance(s, ast.If) and not _returns([s]) and _is_pure(s.body) and _is_pure(s.orelse):
            names = sorted(stored([*s.body, *s.orelse]))
            kept = [name for name in names if name in self.after[s]]
            return self._choice(s, self._each(s.body), self._each(s.orelse), names, kept)
        if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Attribute) and _is_plain(s.target):
            return self._added(s, s.target)
        for target in getattr(s, "targets", [getattr(s, "target", None)]):
            if isinstance(target, ast.Subscript):
                target.value = _call("tensor", target.value)
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
        made = [_set(name, _call("tensor", held)), add, ast.Assign([target], ast.Name(name, ast.Load()))]
        return [_at(each, s.lineno) for each in made]

    def _returning(self, s: ast.If, rest: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        """An ``if`` of which a branch returns, with what follows it in the other."""
        yes, no = list(s.body), list(s.orelse)
        if not _ends(yes) and not _ends(no):
            return None
        parts = [part if _ends(part) else [*part, *rest] for part in (yes, no)]
        if not all(map(_is_pure, parts)):
            return None
        names = sorted(stored(parts[0] + parts[1]))
        made = [self._tail(part, s.lineno) for part in parts]
        if made[0] is None or made[1] is None:
            return None
        return self._choice(s, made[0], made[1], [*names, RETURNED], [RETURNED])

    def _tail(self, statements: Sequence[ast.stmt], line: int) -> list[ast.stmt] | None:
        """Statements that return in the end, and now set a name; None if they return elsewhere as well."""
        for i, statement in enumerate(statements):
            if isinstance(statement, ast.If) and _returns([statement]):
                made = self._returning(statement, statements[i + 1 :])
                return None if made is None else [*self._each(statements[:i]), *made]
            if isinstance(statement, ast.Return):
                value = ast.Constant(None) if statement.value is None else _Expressions(self).visit(statement.value)
                return [*self._each(statements[:i]), _at(_set(RETURNED, value), statement.lineno)]
            if _returns([statement]):
                return None
        return [*self._each(statements), _at(_set(RETURNED, ast.Constant(None)), line)]

    def _choice(
        self,
        s: ast.If,
        yes: Sequence[ast.stmt],
        no: Sequence[ast.stmt],
        names: Sequence[str],
        kept: Sequence[str],
    ) -> list[ast.stmt]:
        """The branch that is taken, or both where the test is open."""
        self.count += 1
        choice, place = self.new("choice"), f"{self.file}:{s.lineno}"
        given = [_Expressions(self).visit(self.test(s.test)), _constant(place), _locals()]
        made = [_set(choice, _call("Choice", *given, _constant(tuple(names)), _constant(tuple(kept))))]
        is_open = ast.Attribute(ast.Name(choice, ast.Load()), "is_open", ast.Load())
        before = ast.Attribute(ast.Name(choice, ast.Load()), "before", ast.Load())
        for way, part, after in ((True, yes, before), (False, no, _method(choice, "merged"))):
            branch = ast.With([ast.withitem(_method(choice, "branch", _constant(way)))], list(part) or [ast.Pass()])
            ends = ast.Expr(_method(choice, "ends", _constant(way), _locals()))
            made.append(ast.If(_method(choice, "runs", _constant(way)), [branch, ends], []))
            if names:
                made.append(ast.If(is_open, [_unpacked(names, after)], []))
        return [_at(each, s.lineno) for each in made]

    def test(self, test: ast.expr) -> ast.expr:
        """A test that may be a tensor."""
        return test if _needs_its_place(test) else _Tests().visit(test)


class _Expressions(ast.NodeTransformer):
    """Choices in expressions."""

    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """Both values, and the choice, where the test is open."""
        if _needs_its_place(node):
            return node
        self.writer.count += 1
        place = f"{self.writer.file}:{node.lineno}"
        test, yes, no = (self.visit(part) for part in (self.writer.test(node.test), node.body, node.orelse))
        return ast.copy_location(_call("either", test, _lambda(yes), _lambda(no), _constant(place)), node)

    def visit(self, node: Argument) -> Argument:
        """What has names of its own stays as it is."""
        own = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        return node if isinstance(node, own) else super().visit(node)


class _Tests(ast.NodeTransformer):
    """A test in operators that take tensors: ``not a``, ``a and b``, ``a.item()``, ``bool(a)``."""

    def visit(self, node: Argument) -> Argument:
        """Only what a test is made of: not what its functions are called with."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.copy_location(_call("negation", self.visit(node.operand)), node)
        if isinstance(node, ast.BoolOp):
            name = "both" if isinstance(node.op, ast.And) else "any_of"
            parts = [_lambda(self.visit(part)) for part in node.values]
            return ast.copy_location(_call(name, *parts), node)
        if isinstance(node, ast.Compare):
            node.left = self.visit(node.left)
            node.comparators = [self.visit(part) for part in node.comparators]
        if isinstance(node, ast.Call) and not node.keywords:
            if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
                return ast.copy_location(_call("item", node.func.value), node)
            if isinstance(node.func, ast.Name) and node.func.id == "bool" and len(node.args) == 1:
                return ast.copy_location(_call("truth", self.visit(node.args[0])), node)
        return node


def _returns(statements: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Return) for node in inside(statements))


def _ends(statements: Sequence[ast.stmt]) -> bool:
    return bool(statements) and isinstance(statements[-1], ast.Return)


def _is_pure(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements set names, and nothing else that can be seen in them."""
    nodes = list(inside(statements))
    loops = [loop for loop in nodes if isinstance(loop, ast.For | ast.While)]
    jumps = [node for node in nodes if isinstance(node, ast.Break | ast.Continue)]
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


def _at(node: ast.stmt, line: int) -> ast.stmt:
    """Give what was made here the line of what it was made from."""
    for each in ast.walk(node):
        if isinstance(each, ast.stmt | ast.expr) and not hasattr(each, "lineno"):
            each.lineno = each.end_lineno = line
            each.col_offset = each.end_col_offset = 0
    return node


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _unpacked(names: Sequence[str], value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())], value)


def _call(name: str, *args: ast.expr) -> ast.expr:
    return _method(BOTH, name, *args)


def _method(owner: str, name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name(owner, ast.Load()), name, ast.Load()), [*args], [])


def _constant(value: object) -> ast.expr:
    return ast.Constant(value)  # type: ignore[arg-type]


def _locals() -> ast.expr:
    return ast.Call(ast.Name("locals", ast.Load()), [], [])


def _lambda(value: ast.expr) -> ast.expr:
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(none, value)
