"""A file is data: one whose digests are right runs no code of its author, and asks for no more than it says."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

import pipeline
from pipeline.artifact.container import MANIFEST
from pipeline.artifact.graphs import LoadedGraph
from pipeline.runtime.reference import elementwise
from pipeline.settings import CompilationSettings
from tests.artifact import fuzz
from tests.artifact.damage import entries_of, rewritten
from tests.artifact.programs import BATCH, Case, Function
from tests.artifact.test_files import compiled

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")

Records: TypeAlias = dict[str, Any]
SYMBOL = ["Symbol", "s77", "integer", "positive"]
KEPT = {"torch_executed_ops": ("aten.gelu", torch.ops.higher_order.cond), "min_block_size": 1}


def _model(m: Function, x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.gelu(m.linear(x))
    return m.linear(torch.cond(y.sum() > 0, lambda v: v + m.linear.bias, lambda v: v * 2, (y,)))


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A program with an engine, an operator and control flow in PyTorch, a varying size, and recipes."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("kept") / "p.trtp"
    compiled(Case(Function(_model).eval(), (torch.randn(2, 8),), {"args": ({0: BATCH},)}, KEPT)).save(path)
    return entries_of(path.read_bytes())


def written(entries: dict[str, bytes], change: Callable[[Records], object], path: Path) -> Path:
    """A file of the entries after a change, with digests that are right."""
    records = {name: json.loads(data) for name, data in entries.items() if name.endswith(".json")}
    change(records)
    texts = {name: json.dumps(record).encode() for name, record in records.items() if name != MANIFEST}
    path.write_bytes(rewritten({**entries, **texts}, records[MANIFEST]))
    return path


def nodes_of(records: Records) -> list[Records]:
    """All nodes that run in PyTorch, with those of the graphs inside."""
    found: list[Records] = []
    waiting = [record for name, record in records.items() if name.startswith(("segments", "graph", "source"))]
    while waiting:
        graph = waiting.pop()
        graph = graph.get("graph", graph)
        found += graph["nodes"]
        waiting += [inner for _, inner in graph.get("graphs", [])]
    return found


def of_operator(name: str, change: Callable[[Records], object]) -> Callable[[Records], None]:
    """A change of each node that calls an operator."""

    def act(records: Records) -> None:
        rows = [row for row in nodes_of(records) if row["target"] == name and row.get("calls", True)]
        assert rows
        for row in rows:
            change(row)

    return act


def of_graphs(change: Callable[[Records], object]) -> Callable[[Records], None]:
    """A change of each graph that control flow runs."""

    def act(records: Records) -> None:
        graphs = [g for name, r in records.items() if name != MANIFEST for _, g in r.get("graph", r).get("graphs", [])]
        assert graphs
        for graph in graphs:
            change(graph)

    return act


def of_recipe(**step: Any) -> Callable[[Records], None]:
    """A recipe of one step."""

    def act(records: Records) -> None:
        for row in records[MANIFEST]["refit_map"]["recipes"]:
            row[1] = {"name": row[0], "result": {"name": "w"}, "steps": [{"name": "w", **step}]}

    return act


def of_manifest(key: str, value: Any) -> Callable[[Records], None]:
    """Another value of a field of the manifest."""
    return lambda records: records[MANIFEST].__setitem__(key, value)


def in_a_circle(records: Records) -> None:
    """The first layer of a network reads the result of its last."""
    layers = records["networks/0.json"]["layers"]
    first = next(layer for layer in layers if layer["inputs"])
    first["inputs"][0] = layers[-1]["outputs"][0]["name"]


def of_layer(kind: str, **fields: Any) -> Callable[[Records], None]:
    """Other fields of the layers of a kind."""

    def act(records: Records) -> None:
        layers = [layer for layer in records["networks/0.json"]["layers"] if layer["kind"] == kind]
        assert layers
        for layer in layers:
            layer.update(fields)

    return act


def through_a_loop(records: Records) -> None:
    """Two layers make one tensor."""
    layers = records["networks/0.json"]["layers"]
    layers[-1]["outputs"][0]["name"] = layers[0]["outputs"][0]["name"]


def relation(expression: Any) -> Callable[[Records], None]:
    """A relation of sizes, which each call evaluates."""
    row = {"condition": {"size": ["Ge", expression, SYMBOL]}, "words": "w"}
    return lambda records: records[MANIFEST]["shapes"].__setitem__("relations", [row])


def tower(depth: int) -> Any:
    """64 to the power of 64 to the power of 64 …"""
    return ["Pow", 64, tower(depth - 1)] if depth else 64


def deep(depth: int) -> Any:
    """An expression in an expression in …"""
    return ["Add", 1, deep(depth - 1)] if depth else SYMBOL


GELU, ADD = "aten.gelu.default", "aten.add.Tensor"
EVIL = "x=[__import__('os').system('touch /tmp/ran')]"
REFUSED: dict[str, tuple[Callable[[Records], object], str]] = {
    "a keyword is code": (of_operator(GELU, lambda r: r.update(kwargs={"dict": [[EVIL, 1]]})), "has no argument"),
    "a keyword of another": (
        of_operator(GELU, lambda r: r.update(kwargs={"dict": [["out", None]]})),
        "has no argument",
    ),
    "a name is code": (of_operator(GELU, lambda r: r.update(name=EVIL)), "than those that the manifest lists"),
    "an input is code": (of_graphs(lambda g: g["nodes"][0].update(target=EVIL)), "has a missing target or extra"),
    "an input has a value": (
        of_graphs(lambda g: g["nodes"][0].update(args={"tuple": [1]})),
        "has a missing target or extra arguments",
    ),
    "an attribute of Python": (
        of_graphs(
            lambda g: g["nodes"].insert(0, {**g["nodes"][0], "name": "q", "op": "get_attr", "target": "__init__"})
        ),
        "has a missing target or extra arguments",
    ),
    "an attribute's path": (
        of_graphs(lambda g: g.update(tensors=[["a.__class__", g_tensor()]])),
        "is not the path of an attribute",
    ),
    "a module is called": (of_operator(GELU, lambda r: r.update(op="call_module")), "which torch.fx does not have"),
    "a method is called": (
        of_operator(GELU, lambda r: r.update(op="call_method", target="save")),
        "which torch.fx does not have",
    ),
    "a file is read": (of_operator(GELU, lambda r: r.update(target="aten.from_file.default")), "reads or writes files"),
    "a file is written": (of_operator(GELU, lambda r: r.update(target="aten.save.default")), "is TorchScript's own"),
    "memory is given away": (
        of_operator(GELU, lambda r: r.update(target="aten.set_.source_Storage")),
        "changes or exp",
    ),
    "an argument is written to": (
        of_operator(GELU, lambda r: r.update(target="aten.add_.Tensor")),
        "writes to its arg",
    ),
    "a function of Python": (
        of_operator(GELU, lambda r: r.update(target="builtins.eval")),
        "an operator that this process does not have",
    ),
    "an operator in an operator": (
        of_operator("higher_order.cond", lambda r: r["args"]["tuple"].__setitem__(1, {"operator": GELU})),
        "needs 2 inner graphs of the file",
    ),
    "another operator of graphs": (
        of_operator("higher_order.cond", lambda r: r.update(target="higher_order.wrap")),
        "runs graphs, and is not one|an operator that this process does not have",
    ),
    "a recipe reads a file": (
        of_recipe(target="aten.from_file.default", args=["/etc/passwd"]),
        "reads or writes files",
    ),
    "a recipe climbs": (of_recipe(target="aten.__class__.mro"), "an operator that this process does not have"),
    "a recipe fills memory": (of_recipe(target="aten.full.default", args=[[2**40], 1.0]), "a tensor of .* bytes"),
    "a recipe repeats": (
        lambda records: [
            row.__setitem__(
                1,
                {
                    "name": row[0],
                    "result": {"name": "w"},
                    "steps": [
                        {"name": "w", "target": "aten.repeat.default", "args": [{"ref": "linear.bias"}, [2**40]]}
                    ],
                },
            )
            for row in records[MANIFEST]["refit_map"]["recipes"]
        ],
        "a tensor of .* bytes",
    ),
    "a recipe reads nothing": (
        of_recipe(target="aten.neg.default", args=[{"ref": "nobody"}]),
        "is not defined before it",
    ),
    "a node fills memory": (
        of_operator(GELU, lambda r: r.update(target="aten.full.default", args={"tuple": [[2**20, 2**20], 1.0]})),
        "a node creates",
    ),
    "a layer reads its result": (in_a_circle, "needs its own result|nothing computes"),
    "a segment makes no such output": (
        lambda records: [s["outputs"][0].update(name="nobody") for s in records[MANIFEST]["segments"]],
        "does not compute its output|than those that the manifest|its entries contradict",
    ),
    "a layer does not say what it does": (of_layer("ELEMENTWISE", attributes=[]), "lacks the attribute 'op"),
    "a layer says it twice": (of_layer("ELEMENTWISE", attributes=[["op", "SUM"], ["op", "SUB"]]), "an attribute twice"),
    "a layer says too much": (of_layer("ELEMENTWISE", attributes=[["alpha", 1]]), "the attribute 'alpha', which no E"),
    "a constant without a value": (of_layer("CONSTANT", weights=[]), "is a constant without a weight"),
    "an output that nothing makes": (
        lambda records: records[MANIFEST]["segments"][-1]["outputs"][0].update(name="linear_9"),
        "no node computes the program's output|than those that the manifest|does not compute its output",
    ),
    "two layers make a tensor": (through_a_loop, "two tensors are called"),
    "a power of a power": (relation(tower(4)), "more than 8192 bits"),
    "a shift": (relation(["LShift", 1, 2**40]), "more than 8192 bits"),
    "many digits": (relation(["RoundDecimal", SYMBOL, -(10**9)]), "is not an expression"),
    "a deep expression": (relation(deep(200)), "more than 4096 parts, or 128 levels|nested too deeply"),
    "a name of two lines": (
        lambda records: records[MANIFEST]["outputs"][0].update(name='y\nparameters { key: "x" }'),
        "has a line break",
    ),
    "a name for terminals": (
        lambda records: records[MANIFEST]["inputs"][0].update(name="\x1b[2J"),
        "control character",
    ),
    "half of a character": (
        lambda records: records[MANIFEST]["inputs"][0].update(name="\ud800"),
        "has a lone surrogate",
    ),
    "no number": (of_manifest("computed", float("nan")), "NaN"),
}


def g_tensor() -> Records:
    """A tensor that the file has."""
    return {"key": "linear.bias", "dtype": "float32", "shape": [8]}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_asks_for_more_than_a_program_may_is_refused(
    case: str, entries: dict[str, bytes], tmp_path: Path
) -> None:
    change, words = REFUSED[case]
    path, start = written(entries, change, tmp_path / "p.trtp"), time.process_time()
    with pytest.raises(pipeline.ArtifactError, match=words):
        pipeline.load(path)
    assert time.process_time() - start < 2


def test_the_graph_of_a_file_is_never_source(entries: dict[str, bytes], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.fx.Graph, "python_code", None)
    program = pipeline.load(written(entries, lambda records: None, tmp_path / "p.trtp"))
    x = torch.randn(3, 8)
    pipeline.verify(executor="reference")(program)
    graph = program.program.graph_module
    assert isinstance(graph, LoadedGraph) and isinstance(copy.deepcopy(graph), LoadedGraph)
    with pytest.raises(pipeline.ArtifactError, match="cannot be called"):
        graph(x)
    monkeypatch.undo()
    assert program(x).shape == (3, 8)


def test_a_power_of_a_size_is_bounded_when_it_is_computed(entries: dict[str, bytes], tmp_path: Path) -> None:
    path = written(entries, relation(["Pow", 2, ["Pow", 2, ["Mul", 8, SYMBOL]]]), tmp_path / "p.trtp")
    with pytest.raises(pipeline.PipelineError):
        pipeline.load(path)(torch.randn(8, 8))


def test_a_file_chooses_no_folder(entries: dict[str, bytes], tmp_path: Path) -> None:
    def chosen(records: Records) -> None:
        places = [[name, str(tmp_path)] for name in ("engine_cache_dir", "measurements", "runtime_cache")]
        records[MANIFEST]["settings"] = [*records[MANIFEST]["settings"], *places]

    settings = pipeline.load(written(entries, chosen, tmp_path / "p.trtp")).settings
    default = CompilationSettings()
    assert (settings.engine_cache_dir, settings.runtime_cache) == (default.engine_cache_dir, default.runtime_cache)
    assert settings.measurements is default.measurements


def test_a_file_that_is_overwritten_is_noticed(entries: dict[str, bytes], tmp_path: Path) -> None:
    path, x = written(entries, lambda records: None, tmp_path / "p.trtp"), torch.randn(3, 8)
    program = pipeline.load(path)
    module = program.module("reference")
    expected = module(x)
    os.utime(path)
    program.module("reference")  # it has the same bytes
    path.write_bytes(b"another")
    assert torch.equal(module(x), expected)
    actions: list[Callable[[], object]] = [
        *(lambda: program.module("reference"), lambda: program.save(tmp_path / "q"), lambda: bytes(program.engines[0])),
        lambda: pipeline.verify(executor="reference")(program),
        lambda: pipeline.refit_module_weights(program, dict(program.program.parameters)),
    ]
    for act in actions:
        with pytest.raises(pipeline.ArtifactError, match="was overwritten while this process uses it"):
            act()


def test_a_call_that_fails_in_an_operator_names_the_file_and_the_node(
    entries: dict[str, bytes], tmp_path: Path
) -> None:
    change = of_operator(GELU, lambda row: row.update(target="aten.view.default", args=view_of(row)))
    module = pipeline.load(written(entries, change, tmp_path / "p.trtp")).module("reference")
    with pytest.raises(
        pipeline.ExecutionError, match=r"p\.trtp failed in a call, in node gelu: shape '\[7\]' is invalid"
    ):
        module(torch.randn(3, 8))


def view_of(row: Records) -> Records:
    """The arguments of a view in a shape that no input has."""
    return {"tuple": [row["args"]["tuple"][0], [7]]}


def test_a_file_whose_numbers_are_not_what_it_says_is_a_fault(
    entries: dict[str, bytes], tmp_path: Path, monkeypatch: Any
) -> None:
    program = next(fuzz.programs(tmp_path, ("whole",)))
    records, binary = fuzz.parts_of(program.entries)
    path = tmp_path / "p.trtp"
    of_layer("ELEMENTWISE", attributes=[["op", "SUB"]])(records)
    path.write_bytes(fuzz.file_of(records, binary))
    assert fuzz.attempt(path, program, records, binary) == "computed what it says"
    monkeypatch.setitem(elementwise.ELEMENTWISE, "SUB", torch.mul)
    with pytest.raises(fuzz.WrongNumbersError):
        fuzz.attempt(path, program, records, binary)


def test_files_changed_by_their_grammar_are_refused_or_programs() -> None:
    seconds = "60" if os.environ.get("HYPOTHESIS_PROFILE") == "ci" else "5"
    found = subprocess.run(
        [sys.executable, "-m", "tests.artifact.fuzz", "--seconds", seconds],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
