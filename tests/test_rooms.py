"""The rooms of the house, as tests: imports go down only, and nowhere in a circle, wherever in a file they stand."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pipeline.converters import converter_modules

PACKAGE = Path(__file__).parent.parent / "pipeline"

ROOMS = (
    ("pipeline", "__main__"),
    ("cli",),
    ("testing",),
    ("dynamo",),
    ("compat",),
    ("defaults", "api"),
    ("viewing",),
    ("artifact",),
    ("stages",),
    ("verification",),
    ("profiling",),
    ("compose",),
    ("improvements",),
    ("partitioning",),
    ("decomposition",),
    ("capture",),
    ("distributed",),
    ("export_fixes",),
    ("converters",),
    ("impl",),
    ("quirks",),
    ("build",),
    ("runtime",),
    ("compiled",),
    ("program",),
    ("network",),
    ("shapes",),
    ("recipes",),
    ("aten",),
    ("settings", "records", "settings_migration", "errors", "frozen", "inputs", "trt", "version"),
)
"""What may import what: each what is below it, and what stands beside it in one room."""

BY_NAME = {
    "pipeline": "its public names, when they are first asked for",
    "pipeline.cli.commands": "the command that is asked for",
    "pipeline.compiled": "the methods of Compiled, when they are first called",
    "pipeline.cli.sources": "the user's model",
    "pipeline.converters": "its families",
    "pipeline.improvements": "its passes",
    "pipeline.testing.strategies": "its families",
    "pipeline.trt": "TensorRT's bindings",
}
"""The modules that import others by a name made at run time, and which: no one else may, since no test would see it."""


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """The modules of ours that one imports, anywhere in it: in functions and under ``TYPE_CHECKING`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module in MODULES or node.level):
            assert not node.level, f"{module} imports relatively"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else str(node.module) for name in names)


def packages(module: str) -> list[str]:
    """The packages that a module lies in, innermost first, without the whole."""
    parts = module.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 1, -1)]


def needed(module: str, tree: ast.AST) -> set[str]:
    """What Python runs before a module: what it imports, and the ``__init__`` of each package that this lies in, but
    for those in which the module lies itself, which have begun before it."""
    found = set(imports(module, tree))
    around = {package for name in found for package in packages(name)}
    return (found | around) - {module, *packages(module)} | (found & {*packages(module)})


def place(module: str) -> int:
    """How far down the house a module stands."""
    name = module.split(".")[1] if "." in module else module
    return next(i for i, room in enumerate(ROOMS) if name in room)


def graph() -> dict[str, set[str]]:
    """What each module needs."""
    found = {module: needed(module, tree) for module, tree in MODULES.items()}
    found["pipeline.converters"] |= {family.__name__ for family in converter_modules()}
    for package in ("pipeline.testing.strategies", "pipeline.improvements"):
        found[package] |= {name for name in MODULES if name.startswith(f"{package}.")}
    return found


def test_few_files_stand_outside_rooms() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 15
    assert len(list(Path(__file__).parent.glob("*.py"))) <= 15


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module: str) -> None:
    rooms = {name: place(name) - place(module) for name in needed(module, MODULES[module])}
    own = module.split(".")[1:2]
    wrong = [name for name, down in rooms.items() if down < 0 or (down == 0 and place(module) < len(ROOMS) - 1)]
    assert not [name for name in wrong if name.split(".")[1:2] != own], "the order is ROOMS, in tests/test_rooms.py"


def test_compat_is_imported_by_nobody() -> None:
    """What other libraries need can be taken away: the command line asks an entry point."""
    found = {
        module: needed(module, tree) for module, tree in MODULES.items() if not module.startswith("pipeline.compat")
    }
    assert not {module for module, names in found.items() if any(name.startswith("pipeline.compat") for name in names)}


def test_no_imports_go_in_a_circle() -> None:
    """Then every module can be the first to be imported."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def imports_by_name(tree: ast.AST) -> bool:
    """Whether a module calls `importlib.import_module` or `__import__`, under any name."""
    loads = {"import_module", "__import__"}
    names = (getattr(node, "attr", getattr(node, "id", getattr(node, "name", ""))) for node in ast.walk(tree))
    return bool(loads & {name for name in names if isinstance(name, str)})


def test_modules_are_imported_by_name_in_few_places() -> None:
    assert {name for name, tree in MODULES.items() if imports_by_name(tree)} == BY_NAME.keys()
    for source in (
        "import importlib as i\ni.import_module('x')",
        "from importlib import import_module as f",
        "__import__",
    ):
        assert imports_by_name(ast.parse(source))


def test_imports_are_seen_wherever_they_stand() -> None:
    source = """
from pipeline import trt, default
if TYPE_CHECKING:
    from pipeline.compiled import Compiled
class A:
    def b(self):
        import pipeline.stages.build
"""
    assert {*imports("", ast.parse(source))} == {
        *("pipeline", "pipeline.trt", "pipeline.compiled", "pipeline.stages.build")
    }
    assert "pipeline.stages" in needed("pipeline.impl.base", ast.parse(source))
    assert "pipeline.stages" not in needed("pipeline.stages.convert", ast.parse(source))


def test_capture_asks_export_fixes_at_one_door() -> None:
    """What persuades torch.export can then be taken away (tests/capture/test_without_fixes.py)."""
    asked = {
        name
        for module, tree in MODULES.items()
        if module.startswith("pipeline.capture")
        for name in imports(module, tree)
    }
    assert {name for name in asked if name.startswith("pipeline.export_fixes")} == {"pipeline.export_fixes"}
