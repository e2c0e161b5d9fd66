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
``if`` the other branch; so do branches that leave a turn of a loop, where ``break`` sets a name that the next turns ask
for. Turns that data chooses are branches (`pipeline.frontend.branching.turns`). Elements are assigned to tensors alone
(``both.tensor(x)[0] = 1``). An ``if`` stays as it is where a branch does more: assigns attributes (but for
``self.calls += 1`` of a tensor), returns from a loop, raises.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Final

from pipeline.frontend.branching.names import liveness_of
from pipeline.frontend.branching.nodes import imports
from pipeline.frontend.branching.writing import Writer, reads

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
    writer = Writer(Path(code.co_filename).name, liveness_of(function))
    function.body = writer.body(function.body)
    function.decorator_list = []
    if not writer.count:
        return None
    start = 1 if ast.get_docstring(function, clean=False) is not None else 0
    function.body.insert(start, imports())
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
    """Whether a node's test, what its turns go over, or the number that it reads stands in a line."""
    if isinstance(node, ast.Call) and reads(node):
        return node.lineno <= line <= (node.end_lineno or line)
    if isinstance(node, ast.If | ast.IfExp):
        return node.test.lineno <= line <= (node.test.end_lineno or line)
    return isinstance(node, ast.For) and node.iter.lineno <= line <= (node.iter.end_lineno or line)


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
