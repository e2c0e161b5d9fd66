"""``python -m benchmarks.passages --seed N``: draw sixty passages of the project for a reader who has not seen it.

The reader says of each whether a fluent engineer understands it at first reading (docs/internals/testing.md). A passage
is shown as people meet it: a docstring below its signature, a signature without a docstring with its module and class,
a message whole, with what its variables were assigned, a paragraph below its page's title and heading.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
EACH: Final = 10
"""Passages of each kind."""

MESSAGES: Final = re.compile(r"(Error|Warning|Rejection|warn|refuse)$")
"""The name of what is called with a message."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield each module of the package, with its path."""
    for path in sorted((ROOT / "pipeline").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def definitions(tree: ast.Module) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Yield classes, functions and methods with their qualified names, without functions inside of functions."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, Function))


def signature(name: str, node: Function | ast.ClassDef) -> str:
    """Return the line that defines a function or class, with its qualified name."""
    if isinstance(node, ast.ClassDef):
        return f"class {name}({', '.join(map(ast.unparse, node.bases))})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"def {name}({ast.unparse(node.args)}){returns}"


def module_lines() -> Iterator[str]:
    """Yield the first line of each module's docstring."""
    for path, tree in modules():
        yield f"{path}: {(ast.get_docstring(tree) or '').partition(chr(10))[0]}"


def docstrings() -> Iterator[str]:
    """Yield each docstring of a class, function or method, below its signature."""
    for path, tree in modules():
        for name, node in definitions(tree):
            if text := ast.get_docstring(node):
                yield f"{path}: {signature(name, node)}\n{text}"


def signatures() -> Iterator[str]:
    """Yield the signature of each function and method that has no docstring, but for special methods."""
    for path, tree in modules():
        for name, node in definitions(tree):
            if isinstance(node, Function) and not node.name.startswith("__") and not ast.get_docstring(node):
                yield f"{path}: {signature(name, node)}"


def messages() -> Iterator[str]:
    """Yield each call with a message, and the assignments of this function to the names that it uses."""
    for path, tree in modules():
        constants = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func)
                if MESSAGES.search(name) and any(
                    isinstance(node, ast.JoinedStr) or _is_text(node) for node in ast.walk(call)
                ):
                    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
                    before = [*constants, *(node for node in ast.walk(function) if isinstance(node, ast.Assign))]
                    shown = [ast.unparse(node) for node in before if _assigned(node) in used]
                    yield "\n".join([f"{path}, in {function.name}:", *shown, ast.unparse(call)])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _assigned(node: ast.AST) -> str:
    """Return the name that an assignment of text binds; empty for any other node."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    value = getattr(node, "value", None)
    is_text = value is not None and any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in ast.walk(value))
    return target.id if isinstance(target, ast.Name) and is_text else ""


def paragraphs() -> Iterator[str]:
    """Yield each paragraph of the pages that are written by hand, below its page's title and its heading."""
    for page in [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/internals").glob("*.md")),
    ]:
        title = heading = ""
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for block in re.split(r"\n\s*\n|\n(?=- )", text):
            if block.startswith("#"):
                title, heading = (title or block.splitlines()[0]), block.splitlines()[0]
            elif len(block.split()) > 8 and not block.lstrip().startswith(("|", "<", "!")):
                yield f"{page.relative_to(ROOT)}, {title.lstrip('# ')} / {heading.lstrip('# ')}:\n{block.strip()}"


def entries() -> Iterator[str]:
    """Yield each entry of the CHANGELOG."""
    yield from (
        line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("- ")
    )


KINDS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "first lines of modules": module_lines,
    "docstrings": docstrings,
    "signatures": signatures,
    "messages": messages,
    "paragraphs of docs": paragraphs,
    "entries of the CHANGELOG": entries,
}


def drawn(seed: int, each: int = EACH) -> Iterator[str]:
    """Yield passages of all kinds, numbered."""
    generator, number = random.Random(seed), 0
    for kind, passages in KINDS.items():
        yield f"## {kind}"
        for passage in generator.sample(list(passages()), each):
            number += 1
            yield f"{number}. {passage}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--each", type=int, default=EACH, help="passages of each kind (default: %(default)s)")
    options = parser.parse_args()
    print("\n\n".join(drawn(options.seed, options.each)))
