"""Follows a parameter through the package: which modules a reader visits to see what becomes of it.

A walk begins at a parameter of a function. In the order of the text it enters each function of the package that gets
the parameter, or a value that was computed from it, as an argument; there it goes on with the parameters that hold it.
Calls of methods are followed where ``self`` is the object; functions in variables are not followed. A stop is a module
that the walk enters from another one; each function is read once. A private class that gets the value is read whole.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parents[2]

Function: TypeAlias = ast.FunctionDef
Place: TypeAlias = tuple[str, str]
"""A module, and the name of a function in it: ``name`` or ``Class.name``."""


class Package:
    """The functions of a package, and what each module imports of them."""

    def __init__(self, root: Path, name: str) -> None:
        self.functions: dict[Place, Function] = {}
        self.imported: dict[Place, Place] = {}
        for path in sorted((root / name).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.add(module, ast.parse(path.read_text(encoding="utf-8")))

    def add(self, module: str, tree: ast.Module) -> None:
        """Adds a module's functions, methods and imports."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    self.imported[module, each.asname or each.name] = (node.module, each.name)
        for owner in tree.body:
            if isinstance(owner, ast.FunctionDef):
                self.functions[module, owner.name] = owner
            elif isinstance(owner, ast.ClassDef):
                for node in owner.body:
                    if isinstance(node, ast.FunctionDef):
                        self.functions[module, f"{owner.name}.{node.name}"] = node

    def find(self, place: Place) -> Place | None:
        """Where a name of a module is defined as a function (a class: its ``__init__``), through imports."""
        while place in self.imported:
            place = self.imported[place]
        made = (place[0], f"{place[1]}.__init__")
        return next((found for found in (place, made) if found in self.functions), None)

    def called(self, function: ast.expr, module: str, owner: str) -> Place | None:
        """The function that a call in a module, in the class ``owner``, calls."""
        if isinstance(function, ast.Name):
            return self.find((module, function.id))
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
            return self.find((module, f"{owner}.{function.attr}"))
        return None


def _holds(node: ast.AST | None, names: set[str]) -> bool:
    """Whether an expression is one of these names, an attribute of it, or what a call that gets it returns."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute | ast.Starred | ast.Subscript):
        return _holds(node.value, names)
    if isinstance(node, ast.Call):
        given = (*node.args, *(each.value for each in node.keywords))
        return _holds(node.func, names) or any(_holds(each, names) for each in given)
    if isinstance(node, ast.Tuple | ast.List):
        return any(_holds(each, names) for each in node.elts)
    return False


def _in_text_order(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes in a function; what a call or an assignment contains comes before it."""
    for child in ast.iter_child_nodes(node):
        yield from _in_text_order(child)
    yield node


class Walk:
    """The modules that a walk visits: ``stops``."""

    def __init__(self, package: Package, module: str, function: str, parameter: str) -> None:
        self.package, self.stops = package, [module]
        self.read: set[tuple[Place, str]] = set()
        self.enter((module, function), {parameter})

    def enter(self, place: Place, names: set[str]) -> None:
        """Reads a function in which these parameters hold the value."""
        new = {name for name in names if (place, name) not in self.read}
        if not new:
            return
        self.read |= {(place, name) for name in new}
        module, name = place
        if self.stops[-1] != module:
            self.stops.append(module)
        for node in _in_text_order(self.package.functions[place]):
            if isinstance(node, ast.Call):
                self.follow(node, module, name.rpartition(".")[0], new)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.comprehension | ast.withitem):
                new |= self.assigned(node, new)

    def assigned(self, node: ast.AST, names: set[str]) -> set[str]:
        """The names that a statement makes of the value."""
        source = next(filter(None, (getattr(node, each, None) for each in ("value", "iter", "context_expr"))), None)
        targets = getattr(node, "targets", None) or [
            getattr(node, "target", None) or getattr(node, "optional_vars", None)
        ]
        if source is None or not _holds(source, names):
            return set()
        found = (each for target in filter(None, targets) for each in ast.walk(target))
        return {each.id for each in found if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}

    def follow(self, call: ast.Call, module: str, owner: str, names: set[str]) -> None:
        """Enters the function that a call passes the value to."""
        place = self.package.called(call.func, module, owner)
        if place is None:
            return
        spec, kind = self.package.functions[place].args, place[1].removesuffix(".__init__")
        parameters = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        if "." in place[1]:
            parameters = parameters[1:]
        given = [name for name, value in zip(parameters, call.args, strict=False) if _holds(value, names)]
        given += [each.arg for each in call.keywords if each.arg and _holds(each.value, names)]
        if given:
            self.enter(place, set(given))
        if given and place[1] != kind and kind.startswith("_"):
            for method in [each for each in self.package.functions if each[1].startswith(f"{kind}.")]:
                if method[0] == place[0]:
                    self.enter(method, {"self"})


def main() -> None:
    """Prints the stops of a walk: ``python -m tests.meta.walks pipeline.capture.capture:capture:model``."""
    walk = Walk(Package(ROOT, "pipeline"), *sys.argv[1].split(":"))
    sys.stdout.write("\n".join([*walk.stops, f"{len(walk.stops)} stops", ""]))


if __name__ == "__main__":
    main()
