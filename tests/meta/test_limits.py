"""Limits of the package: lines by capability, walks, untyped places, private names of torch, imports of a module."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.meta.walks import Package, Walk

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "pipeline").rglob("*.py"))

CAPABILITIES: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "ONNX": (470, ("artifact/epcontext.py", "export_fixes/onnx_file.py")),
    "reference executor": (1_590, ("runtime/reference/",)),
    "TorchScript": (
        1_450,
        (
            "export_fixes/torchscript/",
            "compat/torchscript/",
        ),
    ),
    "decisions and branches": (
        420,
        (
            "export_fixes/example_guards.py",
            "export_fixes/branches.py",
        ),
    ),
    "sharded models": (
        1_110,
        (
            "distributed/",
            "converters/collectives.py",
            "runtime/ranks.py",
            "runtime/collective_calls.py",
            "runtime/rank_watchdog.py",
            "records/sharding.py",
            "aten/collectives.py",
        ),
    ),
    "exports by transformers": (90, ("compat/transformers/exporters.py",)),
    "language models of transformers": (3_380, ("compat/transformers/",)),
    "names of Torch-TensorRT": (
        1_950,
        (
            "compat/torch_tensorrt/",
            "compat/__init__.py",
        ),
    ),
    "capture": (2_250, ("capture/",)),
    "what persuades torch.export": (5_550, ("export_fixes/",)),
    "kernel faults": (1_520, ("quirks/",)),
    "converters": (4_920, ("converters/",)),
    "building blocks": (4_800, ("impl/",)),
    "improvement passes": (3_520, ("improvements/",)),
    "decomposition": (3_250, ("decomposition/",)),
    "partitioning": (1_050, ("partitioning/",)),
    "networks": (1_640, ("network/",)),
    "engine builds": (910, ("build/",)),
    "runtime": (5_470, ("runtime/",)),
    "files and the engine cache": (4_910, ("artifact/",)),
    "verification": (2_570, ("verification/",)),
    "profiles": (1_020, ("profiling/",)),
    "reports": (910, ("viewing/",)),
    "command line": (1_670, ("cli/",)),
    "tests of converters": (4_220, ("testing/",)),
    "facts of operators": (2_000, ("aten/",)),
    "sizes": (1_200, ("shapes/",)),
    "stages": (
        3_700,
        (
            "stages/",
            "compose/",
        ),
    ),
    "records, settings, errors": (3_830, ("",)),
}
"""Of each capability the most lines, and its files: a file counts for the first that names it or a folder around it."""

PRIVATE: Final = 100
"""The most private names of torch: each may change in any release."""
IMPORTS: Final = 12
"""From so many modules of other rooms most modules import at most."""
KNOW_MORE: Final = 22
"""The modules that import from more."""


def capability(path: Path) -> str:
    """The first capability whose files include this one."""
    name = str(path.relative_to(ROOT / "pipeline"))
    for title, (_, places) in CAPABILITIES.items():
        if any(name == place or (place[-1:] in ("/", "") and name.startswith(place)) for place in places):
            return title
    raise AssertionError(f"pipeline/{name} belongs to no capability of {__file__}")


def lines() -> Counter[str]:
    """The lines of each capability."""
    found: Counter[str] = Counter()
    for path in PACKAGE:
        found[capability(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_no_capability_costs_more_lines_than_it_may() -> None:
    found = lines()
    beyond = {name: (found[name], most) for name, (most, _) in CAPABILITIES.items() if found[name] > most}
    assert not beyond, "delete what is needless, or say in the commit why the capability is worth more"


def test_no_limit_is_far_from_its_lines() -> None:
    """A limit that is not used up is lowered."""
    found = lines()
    assert not {name: (found[name], most) for name, (most, _) in CAPABILITIES.items() if most > 1.05 * found[name] + 50}


def is_private(parts: list[str]) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names of torch that a module uses, up to the first name after what is private."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [[*str(node.module).split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names if alias.name.split(".")[0] == "torch"]
        elif isinstance(node, ast.Attribute):
            names = [attribute_of_torch(node)]
        else:
            continue
        for parts in names:
            if is_private(parts):
                first = next(i for i, part in enumerate(parts) if part.startswith("_"))
                yield ".".join(parts[: first + 2])


def attribute_of_torch(node: ast.Attribute) -> list[str]:
    """``torch._C._acc`` in parts; nothing for other objects, and for operators, whose names are theirs."""
    parts, value = [node.attr], node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    is_torch = isinstance(value, ast.Name) and value.id == "torch" and parts[-1] != "ops"
    return ["torch", *reversed(parts)] if is_torch else []


def test_few_private_names_of_torch_are_used() -> None:
    users = defaultdict(set)
    for path in PACKAGE:
        for name in private_names(ast.parse(path.read_text(encoding="utf-8"))):
            users[name].add(path.name)
    assert len(users) <= PRIVATE, sorted((name, *files) for name, files in users.items() if len(files) == 1)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from torch._ops import OpOverload", ["torch._ops.OpOverload"]),
        ("import torch\ntorch._C._acc()", ["torch._C", "torch._C._acc"]),
        ("torch.ops.aten._softmax.default", []),
        ("from torch import nn\nself._x", []),
    ],
)
def test_private_names_are_found(source: str, names: list[str]) -> None:
    assert sorted(set(private_names(ast.parse(source)))) == names


def imports(tree: ast.AST, own: str) -> set[str]:
    """The modules of other rooms that a module imports from."""
    names = (node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
    return {name for name in names if name.startswith("pipeline.") and name.split(".")[1] != own}


def test_few_modules_know_many_others() -> None:
    found = {}
    for path in PACKAGE:
        name = path.relative_to(ROOT / "pipeline")
        found[str(name)] = len(imports(ast.parse(path.read_text(encoding="utf-8")), name.parts[0]))
    beyond = {name: count for name, count in found.items() if count > IMPORTS}
    assert len(beyond) <= KNOW_MORE, beyond


UNTYPED: Final = 2_820
"""The most places that say Any, or a name that stands for it."""


def names_of_any(tree: ast.AST, module: str) -> set[str]:
    """The names that a module defines as others for Any."""
    rows = (node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Name))
    return {
        f"{module}.{node.target.id}" for node in rows if isinstance(node.target, ast.Name) and node.value.id == "Any"
    }


def test_few_places_are_untyped() -> None:
    trees = {".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text()) for path in PACKAGE}
    known = {"typing.Any"}.union(*(names_of_any(tree, module) for module, tree in trees.items()))
    assert "pipeline.aten.types.Argument" in known
    found: Counter[str] = Counter()
    for module, tree in trees.items():
        imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        here = {each.name for node in imported for each in node.names if f"{node.module}.{each.name}" in known}
        here |= {name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == module}
        found.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in here)
    assert found.total() <= UNTYPED, found


WALKS: Final = {
    "pipeline.capture.capture:capture:model": 72,
    "pipeline.stages.convert:convert:partitioned": 32,
    "pipeline.runtime.module:ProgramModule.forward:args": 12,
    "pipeline.artifact.refit:refit_module_weights:new_weights": 7,
}
"""For each walk (module, function and parameter), the most stops; ``python -m tests.meta.walks WALK`` prints them."""


@pytest.fixture(scope="module")
def package() -> Package:
    return Package(ROOT, "pipeline")


@pytest.mark.parametrize("walk", WALKS)
def test_a_reader_visits_few_modules(walk: str, package: Package) -> None:
    stops = Walk(package, *walk.split(":")).stops
    assert len(stops) <= WALKS[walk], "let the functions that the walk comes back to follow each other in one module"
