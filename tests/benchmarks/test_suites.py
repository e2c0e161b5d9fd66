"""The drivers of others' tests count cases as right, refused or wrong; a run goes on where it stopped."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.suites import inductor, judge, summary, torch_tensorrt, torch_tensorrt_models, transformers_exporters
from benchmarks.suites.judge import Case, judged_call
from benchmarks.suites.run import rows, run, sampled
from pipeline.errors import CaptureError

X = torch.linspace(-2, 2, 12).view(3, 4)


def fails(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("eager does not take it")


JUDGED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "converted": (lambda x: x.exp() @ x.mT, {"outcome": "right", "in_pytorch": {}}),
    "written": (lambda x: x.add_(1).sum(), {"outcome": "right", "in_pytorch": {}}),
    "drawn": (lambda x: x + torch.rand_like(x), {"outcome": "right"}),
    "complex": (lambda x: torch.view_as_complex(x.view(6, 2)) * 2j, {"outcome": "right"}),
    "what data decides": (lambda x: x * 2 if x.sum() > 9 else x + 1, {"outcome": "refused"}),
    "no case": (fails, {"outcome": "no case", "reason": "eager does not take it"}),
}


@pytest.mark.parametrize("name", JUDGED)
def test_outcomes(name: str) -> None:
    function, expected = JUDGED[name]
    row = judged_call(function, (X,), {})
    assert {key: row[key] for key in expected} == expected
    assert torch.equal(X, torch.linspace(-2, 2, 12).view(3, 4))


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = judge.Captured.__call__

    def wrong(self: judge.Captured, *given: Any) -> Any:
        run, programs = own(self, *given)
        return lambda *tensors: run(*tensors) + 1e-3, programs

    monkeypatch.setattr(judge.Captured, "__call__", wrong)
    row = judged_call(torch.exp, (X,), {})
    assert row["outcome"] == "wrong" and "eager gives" in row["reason"]


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    called: list[str] = []

    def case(name: str) -> Case:
        def judge() -> dict[str, Any]:
            called.append(name)
            if name == "b" and called.count("b") == 1:
                raise KeyboardInterrupt
            return {"outcome": "right", "in_pytorch": {}}

        return Case(name, judge)

    cases, log = [case(name) for name in "abcd"], tmp_path / "log.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(cases, log, 60)
    assert rows(log)["b"] == {"case": "b", "outcome": "wrong", "reason": "the process ended"}
    run(cases, log, 60)
    assert called == [*"abcd"] and [row["outcome"] for row in rows(log).values()] == [
        "right",
        "wrong",
        "right",
        "right",
    ]
    assert [c.name for c in sampled(cases, 2, 0)] == [c.name for c in sampled(cases, 2, 0)] and len(cases) == 4


TESTS = """
from torch._inductor.utils import gone_from_torch, run_and_get_code
import torch
import unittest

class TestCase(unittest.TestCase):
    pass

def check_model(self, model, example_inputs, kwargs=None):
    raise AssertionError("the file's own")

class CommonTemplate:
    def test_right(self):
        self.common(lambda x: (x.sin() + 1,), (torch.ones(3),))
        self.assertEqual(gone_from_torch, "code of Inductor's")

    def test_refused(self):
        check_model(self, lambda x: x.dim(), (torch.ones(3),))

    def test_code(self):
        run_and_get_code(None)
"""


def test_inductors_tests_run_with_our_backend(tmp_path: Path) -> None:
    source = tmp_path / "test" / "inductor" / "test_torchinductor.py"
    source.parent.mkdir(parents=True)
    source.write_text(TESTS)
    (tmp_path / "version.txt").write_text("2.99.0a0\n")
    found = {case.name: case.judge() for case in inductor.cases(source)}
    assert {name: row["outcome"] for name, row in found.items()} == {"test_right": "right", "test_refused": "refused"}
    assert found["test_right"]["operators"] == 2 and inductor.version(source) == "torch 2.99.0a0"


def test_counts_become_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.environment.RESULTS", tmp_path)
    right = {"outcome": "right", "operators": 2}
    found = [
        {"case": "a", **right, "in_pytorch": {}},
        {"case": "b", **right, "in_pytorch": {"aten.rand.default: it draws random numbers": 1}},
        {"case": "c", "outcome": "refused", "reason": "data decides"},
        {"case": "d", "outcome": "wrong", "reason": "result: at [0]"},
        {"case": "e", "outcome": "no case", "reason": "fewer samples"},
    ]
    path = summary.write("opinfo", "torch 2", 9, {row["case"]: row for row in found})
    assert list(summary.table_rows(tmp_path)) == [["opinfo", "torch 2", "4", "2", "1", "1", "1"]]
    data = json.loads(path.read_text())
    assert data["refusals"] == {"data decides": 1} and data["wrong"] == {"d": "result: at [0]"} and data["total"] == 9


def test_the_page_is_current() -> None:
    assert summary.PAGE.read_text() == summary.page(), "run: python -m benchmarks.tables"


PEERS_TEST = """
import torch
import torch_tensorrt
from torch_tensorrt import Input
from torch_tensorrt.dynamo.utils import ATOL

from .harness import DispatchTestCase


class TestCos(DispatchTestCase):
    def test_rows(self):
        class Cos(torch.nn.Module):
            def forward(self, x):
                return torch.ops.aten.cos.default(x)

        self.run_test(Cos(), [torch.randn(2, 3)], atol=ATOL, precision=torch_tensorrt.dtype.f32)
        sizes = {"min_shape": (1, 3), "opt_shape": (2, 3), "max_shape": (4, 3)}
        self.run_test_with_dynamic_shape(Cos(), [Input(dtype=torch.float32, **sizes)])

    def test_random(self):
        class Random(torch.nn.Module):
            def forward(self, x):
                raise ValueError("eager does not run it")

        self.run_test(Random(), [torch.randn(2, 3)])

    def test_nothing(self):
        with self.assertRaises(ValueError):
            raise ValueError
"""


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
    """Judge the tests of a file, while Torch-TensorRT's modules are stand-ins."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def judge(suite: Any, text: str) -> dict[str, Any]:
        (tmp_path / "test_cos_aten.py").write_text(text)
        return {re.split(r"\.|::", case.name)[-1]: case.judge() for case in suite.cases(tmp_path)}

    yield judge
    for name in [n for n in sys.modules if n.partition(".")[0] in (torch_tensorrt.PEER, torch_tensorrt.TESTS)]:
        del sys.modules[name]


def test_tests_of_torch_tensorrt_are_judged(judged: Callable[..., dict[str, Any]]) -> None:
    found = judged(torch_tensorrt, PEERS_TEST)
    assert {name: row["outcome"] for name, row in found.items()} == {
        "test_rows": "right",
        "test_random": "no case",
        "test_nothing": "no case",
    }
    assert found["test_rows"]["operators"] == 1 and not found["test_rows"]["in_pytorch"]
    assert found["test_nothing"]["reason"] == "no module"


PEERS_MODEL = """
import torch
import torch_tensorrt as torchtrt

MODEL, X = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4, device="cuda")


def test_right(ir):
    compiled = torchtrt.compile(MODEL, ir, inputs=[torchtrt.Input((2, 4), dtype=torch.float32)], min_block_size=1)
    torch.testing.assert_close(compiled(X), MODEL(X))


def test_wrong():
    assert torch.equal(torchtrt.dynamo.compile(MODEL, arg_inputs=[X])(X), X)


def test_saved(ir, tmp_path):
    torchtrt.save(torchtrt.compile(MODEL, ir=ir, inputs=[X]), tmp_path / "model.ep")
    torch.testing.assert_close(torchtrt.load(tmp_path / "model.ep").module()(X), MODEL(X))


def test_theirs(ir):
    torchtrt.save(torchtrt.compile(MODEL, ir=ir, inputs=[X]), "model.ts", output_format="torchscript")


def test_nothing():
    pass
"""


def test_tests_of_models_decide_by_their_own_assertions(judged: Callable[..., dict[str, Any]]) -> None:
    found = judged(torch_tensorrt_models, PEERS_MODEL)
    assert {name: (row["outcome"], row.get("reason", "").split(":")[0]) for name, row in found.items()} == {
        "test_right[dynamo]": ("right", ""),
        "test_wrong": ("wrong", "AssertionError"),
        "test_saved[dynamo]": ("right", ""),
        "test_theirs[dynamo]": ("no case", "TheirsError"),
        "test_nothing": ("no case", "it compiles no model"),
    }
    assert found["test_right[dynamo]"]["operators"] and not found["test_right[dynamo]"]["in_pytorch"]


EXPORT_TESTS = """
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter


class Exports:
    def test_torch_export_static(self):
        exporter = DynamoExporter()
        for model_class in self.all_model_classes:
            model, inputs = model_class().eval(), {"x": torch.ones(2, 4)}
            expected = model(**inputs)
            with self.subTest(model_class.__name__):
                found = exporter.export(model, inputs, config=DynamoConfig(dynamic=False)).module()(**inputs)
                torch.testing.assert_close(found, expected)

    def test_other_format(self):
        raise ValueError
"""
EXPORTED_MODELS = """
import unittest

import torch

from ...exporters.test_export import Exports


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Drawn(torch.nn.Module):
    def forward(self, x):
        return torch.rand_like(x)


class Decided(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 9 else -x


class ModelTest(Exports, unittest.TestCase):
    def setUp(self):
        self.all_model_classes = (Twice, Drawn, Decided)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as transformers' checkout has it: its package of tests is in the place of ours meanwhile."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("", "exporters", "models", "models/some"):
        (tmp_path / "tests" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / folder / "__init__.py").touch()
    (tmp_path / "tests/exporters/test_export.py").write_text(f"import torch\n{EXPORT_TESTS}")
    (tmp_path / "tests/models/some/test_modeling_some.py").write_text(EXPORTED_MODELS)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def test_a_test_of_exporters_is_a_case_if_the_librarys_own_passes(checkout: Path) -> None:
    found = {case.name: case.judge() for case in transformers_exporters.cases(checkout)}
    assert {name.partition("[")[2]: (row["outcome"], row.get("reason", "")[:24]) for name, row in found.items()} == {
        "Twice]": ("right", ""),
        "Drawn]": ("no case", "the library's own fails:"),
        "Decided]": ("no case", "the library's own fails:"),
    }
    assert found["ModelTest::test_torch_export_static[Twice]"]["operators"] == 1


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "wrong"), (ValueError("ours"), "wrong"), (CaptureError("not ours"), "refused")]
)
def test_faults_of_our_exporter_are_not_hidden(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, outcome: str
) -> None:
    def call(*_: Any, **__: Any) -> torch.Tensor:
        if error:
            raise error
        return torch.zeros(2, 4)

    monkeypatch.setattr(transformers_exporters.Runner, "__call__", call)
    case = next(case for case in transformers_exporters.cases(checkout) if "Twice" in case.name)
    assert case.judge()["outcome"] == outcome


def test_the_share_of_right_cases() -> None:
    outcomes = ["right", "right", "right", "wrong", "no case"]
    assert summary.share({str(i): {"outcome": outcome} for i, outcome in enumerate(outcomes)}) == 75
    assert summary.share({}) == 0
