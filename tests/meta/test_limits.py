"""Limits of the package: lines by capability, private names of torch, and modules that import many others."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "pipeline").rglob("*.py"))

CAPABILITIES: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "ONNX": (480, ("artifact/epcontext.py", "export_fixes/onnx_file.py")),
    "reference executor": (1_590, ("runtime/reference/",)),
    "TorchScript": (
        1_510,
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
        1_120,
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
    "language models of transformers": (3_450, ("compat/transformers/",)),
    "names of Torch-TensorRT": (
        1_960,
        (
            "compat/torch_tensorrt/",
            "compat/__init__.py",
        ),
    ),
    "capture": (2_200, ("capture/",)),
    "what persuades torch.export": (5_580, ("export_fixes/",)),
    "kernel faults": (1_510, ("quirks/",)),
    "converters": (5_080, ("converters/",)),
    "building blocks": (5_030, ("impl/",)),
    "improvement passes": (3_590, ("improvements/",)),
    "decomposition": (3_300, ("decomposition/",)),
    "partitioning": (1_080, ("partitioning/",)),
    "networks": (1_670, ("network/",)),
    "engine builds": (950, ("build/",)),
    "runtime": (5_460, ("runtime/",)),
    "files and the engine cache": (4_900, ("artifact/",)),
    "verification": (2_670, ("verification/",)),
    "profiles": (1_060, ("profiling/",)),
    "reports": (1_000, ("viewing/",)),
    "command line": (1_730, ("cli/",)),
    "tests of converters": (4_540, ("testing/",)),
    "facts of operators": (2_000, ("aten/",)),
    "sizes": (1_220, ("shapes/",)),
    "stages": (
        3_770,
        (
            "stages/",
            "compose/",
        ),
    ),
    "records, settings, errors": (3_820, ("",)),
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
