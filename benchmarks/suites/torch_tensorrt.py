"""Torch-TensorRT's converter tests: the files of ``tests/py/dynamo/conversion`` and what else uses their harness, in
the folder that ``--source`` names.

A test gives its harness a module and inputs, or inputs whose sizes vary. This driver takes the harness's place, and
judges the module. The tests need ``parameterized``, and no Torch-TensorRT: what they import of it is a stand-in.
"""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from attrs import frozen

import pipeline
from benchmarks.suites.judge import COMPILE, Case, Row, judged, said

PEER, TESTS = "torch_tensorrt", "peer_conversion_tests"


class Input:
    """Torch-TensorRT's input: a shape, or a range of shapes."""

    def __init__(self, *shape: Any, **fields: Any) -> None:
        self.shape: Any = shape[0] if shape else fields.get("shape")
        self.dtype = fields.get("dtype") or torch.float32
        ranges = fields.get("shape_ranges") or [tuple(fields.get(f"{name}_shape") for name in ("min", "opt", "max"))]
        self.least, self.best, self.most = tuple[Any, Any, Any](ranges[0])
        self.torch_tensor = fields.get("torch_tensor")

    @property
    def ours(self) -> pipeline.Input:
        """Return our input of the same sizes."""
        if self.most is None:
            return pipeline.Input(tuple(self.shape), dtype=self.dtype)
        least, best, most = (tuple(shape) for shape in (self.least, self.best, self.most))
        return pipeline.Input(dtype=self.dtype, min_shape=least, opt_shape=best, max_shape=most)

    def example(self) -> torch.Tensor:
        """Return a tensor of the largest sizes."""
        shape = self.shape if self.most is None else self.most
        values = torch.rand(tuple(shape))
        return values > 0.5 if self.dtype == torch.bool else values.to(self.dtype)


class RefusedError(Exception):
    """Torch-TensorRT's error for an operator that it does not convert."""


UNDEFINED = {"test_embedding_bag_with_ITensor_offsets_1": "torch wants the last offset to be the number of indices"}
"""Tests whose results torch leaves open."""
SEVERITY = ("no case", "right", "refused", "wrong")
KNOWN = {"Input": Input, "UnsupportedOperatorException": RefusedError, "ATOL": 1e-3, "RTOL": 1e-3}


class _StandIn(ModuleType):
    """A module of Torch-TensorRT, which has every name: those that are known, and others by a function."""

    known: Mapping[str, Any]
    other: Callable[[str], Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("skip"):  # on some GPUs
            return lambda test, *_: test
        return self.known[name] if name in self.known else type(self).other(name)


class _StandIns(MetaPathFinder, Loader):
    """An importer of all modules of Torch-TensorRT."""

    def __init__(self, kind: type[_StandIn]) -> None:
        self.kind = kind

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module by its name."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == PEER else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in."""
        return self.kind(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


@frozen
class WithSizes:
    """A compiler of judged modules whose inputs have these sizes."""

    inputs: Sequence[Input]

    def __call__(self, model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[pipeline.Compiled]]:
        """Return what to call, and the compiled programs in it."""
        compiled: pipeline.Compiled = COMPILE(pipeline.capture(model, tuple(each.ours for each in self.inputs)))
        return compiled.module("reference"), [compiled]


class Harness(unittest.TestCase):
    """The harness of the tests: it judges each module that a test gives it."""

    judged: list[Row]

    def setUp(self) -> None:
        torch.manual_seed(3)
        self.judged = []

    def run_test(self, mod: torch.nn.Module, inputs: Sequence[torch.Tensor], *_: Any, **__: Any) -> None:
        """Judge a module with these inputs."""
        self.judged.append(judged(mod.eval(), list(inputs)))

    run_test_compare_tensor_attributes_only = run_test

    def run_test_with_dynamic_shape(
        self, mod: torch.nn.Module, input_specs: Sequence[Input], *_: Any, use_example_tensors: bool = True, **__: Any
    ) -> None:
        """Judge a module, compiled for sizes that vary, with the largest."""
        given = [s.example() if use_example_tensors or s.torch_tensor is None else s.torch_tensor for s in input_specs]
        self.judged.append(judged(mod.eval(), given, WithSizes(input_specs)))

    def run_test_with_error(self, *_: Any, **__: Any) -> None:
        """Judge nothing: the error is Torch-TensorRT's."""


def stand_ins(known: Mapping[str, Any], other: Callable[[str], Any]) -> type[_StandIn]:
    """Import stand-ins in the place of Torch-TensorRT's modules from now on, with these names and others."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PEER]:
        del sys.modules[name]
    kind = type("StandIn", (_StandIn,), {"known": known, "other": staticmethod(other)})
    sys.meta_path.insert(0, _StandIns(kind))
    return kind


def on_cpu(text: str) -> str:
    """Return the text of a test with its tensors on the CPU."""
    return text.replace('"cuda"', '"cpu"').replace('"cuda:0"', '"cpu"').replace(".cuda()", ".cpu()")


def cases(source: Path) -> Iterator[Case]:
    """Yield a case for each test in the files of a folder."""
    kind = stand_ins(KNOWN, lambda name: MagicMock(name=name))
    package, harness = ModuleType(TESTS), kind(f"{TESTS}.harness")
    package.__path__ = [str(source)]
    vars(harness).update(DispatchTestCase=Harness, TRTTestCase=Harness)
    sys.modules |= {TESTS: package, harness.__name__: harness}
    for path in sorted(source.glob("test_*.py")):
        try:
            found = vars(_imported(path))
        except Exception as error:
            yield Case(path.stem, partial(dict, outcome="no case", reason=f"it is not imported: {said(error)}"))
            continue
        for own in (each for each in found.values() if isinstance(each, type) and issubclass(each, Harness)):
            for test in unittest.defaultTestLoader.getTestCaseNames(own) if own is not Harness else ():
                yield Case(f"{path.stem}.{own.__name__}.{test}", partial(_judge, own, test))


def _imported(path: Path) -> ModuleType:
    """Import a file of tests, whose tensors are on the CPU here."""
    module = ModuleType(f"{TESTS}.{path.stem}")
    vars(module).update(__package__=TESTS, unittest=unittest)  # one file uses it without an import
    text = on_cpu(path.read_text("utf-8")).replace("from ..conversion.harness", "from .harness")
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def version(source: Path) -> str:
    """Return the version that the checkout of the tests states."""
    folders = source.resolve().parents
    stated = folders[3] / "version.txt" if len(folders) > 3 else source
    return f"torch_tensorrt {stated.read_text().strip()}" if stated.is_file() else "torch_tensorrt, main"


def _judge(kind: type[Harness], test: str) -> Row:
    """Run a test; return the row of the worst of its modules, with what runs in PyTorch of all."""
    if test in UNDEFINED:
        return {"outcome": "no case", "reason": UNDEFINED[test]}
    case, reason = kind(test), "no module"
    try:
        case.debug()
    except (Exception, pytest.skip.Exception) as error:  # it is skipped, or compares a stand-in
        reason = said(error)
    rows = getattr(case, "judged", [])
    if not rows:
        return {"outcome": "no case", "reason": reason}
    worst: Row = max(rows, key=lambda row: SEVERITY.index(row["outcome"]))
    if worst["outcome"] == "right":
        worst["in_pytorch"] = {target: count for row in rows for target, count in row.get("in_pytorch", {}).items()}
    return worst
