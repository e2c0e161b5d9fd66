"""The rules of the house, as tests: short files, one importer of TensorRT, docstrings, no prints."""

import ast
import functools
import importlib
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline

ROOT = Path(__file__).parent.parent
LONGEST = 400
MEDIAN = 130
LONGEST_FUNCTION = 50
SHARED = 8
BINDINGS = {"tensorrt", "tensorrt_rtx"}


def files(*folders: str) -> list[Path]:
    """The Python files under these folders of the repository, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(tree: ast.Module) -> Iterator[str]:
    """The top-level packages that a module imports, wherever in it, and by literal name through importlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (str(a.value).split(".")[0] for a in node.args if isinstance(a, ast.Constant))


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


PACKAGE = files("pipeline")
ALL = files("pipeline", "tests", "benchmarks", "examples")


MOST_ANY = 1055
"""Half of the 2,110 times that the package said Any when the rooms were made."""


def test_any_is_said_only_where_there_is_nothing_better() -> None:
    count = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in PACKAGE)
    assert count <= MOST_ANY, "name the type (pipeline/aten/types.py), or object where a value is only handed on"


def test_there_is_something_to_check() -> None:
    assert len(PACKAGE) > 10
    assert set(PACKAGE) < set(ALL)


def test_no_file_is_longer_than_400_lines() -> None:
    assert not [name(path) for path in ALL if len(path.read_text().splitlines()) > LONGEST]


def test_half_of_the_files_have_at_most_130_lines() -> None:
    assert statistics.median(len(path.read_text().splitlines()) for path in PACKAGE) <= MEDIAN


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The functions of a module, methods and inner ones too, with their lengths in lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_function_is_longer_than_50_lines() -> None:
    found = [(name(path), *each) for path in PACKAGE for each in functions(parse(path))]
    assert not [each for each in found if each[-1] > LONGEST_FUNCTION]


def said(source: str) -> list[tuple[int, str]]:
    """The lines that say something, with their numbers: not blank, no comment, no import, more than punctuation."""
    imports = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = ((number, line.strip()) for number, line in enumerate(source.splitlines(), 1))
    return [(n, line) for n, line in lines if n not in imports and re.search(r"\w", line) and not line.startswith("#")]


def shared(sources: dict[str, str], count: int = SHARED) -> list[str]:
    """Pairs of places that share so many lines, to the letter."""
    found: dict[tuple[str, ...], tuple[str, int]] = {}
    pairs = []
    for where, source in sources.items():
        lines = said(source)
        for start in range(len(lines) - count + 1):
            run = tuple(line for _, line in lines[start : start + count])
            first = found.setdefault(run, (where, lines[start][0]))
            if first != (where, lines[start][0]):
                pairs.append(f"{first[0]}:{first[1]} ~ {where}:{lines[start][0]}")
    return pairs


def test_no_two_places_share_8_lines() -> None:
    assert not shared({name(path): path.read_text() for path in PACKAGE}), "let one piece of code serve both"


def test_every_module_says_what_it_is() -> None:
    assert not [name(path) for path in ALL if not ast.get_docstring(parse(path))]


def test_gpu_tests_lie_in_one_folder() -> None:
    """``make gpu-test`` collects that one alone: every process reads all that it collects from."""
    mark = re.compile(r"^(?:@|pytestmark = )pytest\.mark\.(?:gpu|alone)\b", re.MULTILINE)
    marked = [path for path in files("tests") if mark.search(path.read_text())]
    texts = {ROOT / "tests" / "benchmarks" / "test_gpu_tests.py"}  # its own tests, as text
    assert {path.parent for path in marked if path not in texts} == {ROOT / "tests" / "gpu"}


def test_tensorrt_is_imported_in_one_place() -> None:
    found = [name(path) for path in ALL if BINDINGS & set(imported(parse(path)))]
    assert found == ["pipeline/trt.py"], "use: from pipeline.trt import trt"


def test_nothing_prints_but_the_command_line() -> None:
    calls = [(name(path), node) for path in PACKAGE for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    prints = [f"{path}:{node.lineno}" for path, node in calls if _called(node) == "print"]
    told = ("pipeline/cli/commands.py", "pipeline/cli/compiling.py")
    assert all(each.startswith(told) for each in prints), "tell observers or the log"


@pytest.mark.parametrize("public", sorted(pipeline.__all__))
def test_public_names_exist_and_are_documented(public: str) -> None:
    value = getattr(pipeline, public)
    assert (getattr(value, "__doc__", "") or "").strip()


def test_public_names_are_listed_once() -> None:
    assert len(pipeline.__all__) == len(set(pipeline.__all__))


def test_errors_are_public_under_the_name_they_print() -> None:
    errors = importlib.import_module("pipeline.errors")
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.PipelineError):
            assert getattr(pipeline, kind.__name__) is kind


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MAP = ARCHITECTURE.partition("## Where things are")[2]
PASSES = (ROOT / "docs" / "internals" / "improvements.md").read_text(encoding="utf-8")


def test_every_file_is_on_the_map_and_every_entry_is_a_file() -> None:
    package = ROOT / "pipeline"
    entries = re.findall(r"`([\w./*]+(?:\.py|/))`", MAP.partition("\n\nTests")[0])
    parts = [*package.glob("*.py"), *(path.parent for path in package.glob("*/__init__.py"))]
    missing = [path.name for path in parts if not {path.name, f"{path.name}/"} & set(entries)]
    assert not missing, "docs/architecture.md says where each file is, under 'Where things are'"
    assert not [entry for entry in entries if entry != "pipeline/" and not list(package.rglob(entry.rstrip("/")))]


def test_every_pass_is_described() -> None:
    """What it finds and what it leaves: by a row of the page, or in its docstring as code (``-(-x)``, ``x``)."""
    passes = {each.name: each.apply.__doc__ or "" for each in importlib.import_module("pipeline.improvements").PASSES}
    assert all(passes.values())
    table = PASSES.partition("| pass | before | after |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| *\S.*\| *\S.*\|$", table, re.M)
    assert rows and set(rows) <= set(passes)
    assert not [name for name, said in passes.items() if name not in rows and len(re.findall("``.+?``", said)) < 2]


def test_the_checks_find_what_they_look_for() -> None:
    inner = "class C:\n    def f(self):\n        def g():\n            pass\n"
    assert list(functions(ast.parse(inner))) == [("f", 3), ("g", 2)]
    eight = "".join(f"x{i} = {i}\n" for i in range(8))
    assert shared({"a": eight, "b": "import os\n\n# here\n" + eight}) == ["a:1 ~ b:4"]
    assert shared({"a": eight + "y = 1\n" + eight}) == ["a:1 ~ a:10"]
    assert not shared({"a": eight, "b": eight.replace("x4", "x5")})
    source = "import tensorrt_rtx.x\nfrom tensorrt import y\nimportlib.import_module('tensorrt')\nself.print('x')"
    assert list(imported(ast.parse(source))) == ["tensorrt_rtx", "tensorrt", "tensorrt"]
