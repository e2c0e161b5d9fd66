"""Partitioners as users meet them: what a cut program prints, what runs where, and partitioners of one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from benchmarks.partitions import unbuilt
from pipeline.partitioning import assemble
from pipeline.partitioning.split_engine import split_by_submodule
from pipeline.program import Partitioned, Validated, is_operator
from pipeline.stages.partition import BySubmodule, Partition

X = torch.randn(2, 8)


class Layer(nn.Module):
    """A product, an activation, and a sort where asked for, which engines are told to leave to PyTorch."""

    def __init__(self, sorts: bool = False) -> None:
        super().__init__()
        self.linear, self.sorts = nn.Linear(8, 8), sorts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 8]"""
        y = torch.softmax(torch.relu(self.linear(x)), -1)
        return y.sort(-1).values if self.sorts else y + x


class Stack(nn.Module):
    """Four layers, of which the third sorts, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(i == 2) for i in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 3]"""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


SORTS = {"aten.sort.default"}


def cut(partitioner: Any = None, **settings: Any) -> Partitioned:
    compile = pipeline.default(**{"min_block_size": 1, "torch_executed_ops": SORTS, **settings})
    compile = compile if partitioner is None else compile.replace("partition", partitioner)
    dims = ({0: torch.export.Dim("n", min=1, max=6)},)
    record: Partitioned = compile.until("partition")(Stack().eval(), args=(X,), dynamic_shapes=dims)
    return record


PRINTED = """\
3 segments: 14 of 15 operators in 2 engines
engine_0: 11 operators: 3 aten.linear.default, 3 aten.relu.default, 3 aten.softmax.int, 2 aten.add.Tensor
  input  x: float32[1..2..6, 8]
  output softmax_2: float32[N=1..2..6, 8]
  cut    engine_0 -> torch_1: 1 tensor, 64 bytes (at most 192 bytes): softmax_2
torch_1: 1 operator: 1 aten.sort.default
  input  softmax_2: float32[N=1..2..6, 8]
  output getitem: float32[N=1..2..6, 8]
  cut    torch_1 -> engine_2: 1 tensor, 64 bytes (at most 192 bytes): getitem
engine_2: 5 operators: 2 aten.linear.default, 1 aten.add.Tensor, 1 aten.relu.default, 1 aten.softmax.int
  input  getitem: float32[N=1..2..6, 8]
  output output: float32[N=1..2..6, 3]
aten.sort.default at node sort ("""


def test_a_cut_program_prints() -> None:
    record = cut()
    text = str(record).replace("x.shape[0]", "N")
    assert text.startswith(PRINTED.replace("14 of 15", "16 of 17")), text
    assert text.endswith("torch_executed_ops keeps aten.sort.default in PyTorch")


def test_cuts_are_records() -> None:
    first, second = cut().cuts
    assert (first.source, first.target, first.nbytes, first.max_nbytes) == ("engine_0", "torch_1", 64, 192)
    assert [p.name for p in second.tensors] == ["getitem"]


def test_a_report_has_the_cuts_and_what_each_segment_runs() -> None:
    compile = pipeline.default(min_block_size=1, torch_executed_ops=SORTS)
    report = compile(Stack().eval(), args=(X,)).report()
    assert "  cut    engine_0 -> torch_1: 1 tensor, 64 bytes: softmax_2" in report
    assert "torch_1: 1 operator: 1 aten.sort.default" in report
    assert re.search(r"^  engine \d+.\d MB, tensorrt.* layers \(", report, re.M)


def test_a_predicate_on_module_paths_runs_modules_in_pytorch() -> None:
    record = cut(torch_executed_ops=[lambda path: path.startswith("layers.1")])
    paths = {f.node for f in record.fallbacks}
    assert [s.kind for s in record.segments] == ["engine", "torch", "engine"]
    assert len(paths) == 4


def test_full_compilation_names_what_stands_in_its_way() -> None:
    with pytest.raises(pipeline.UnsupportedOperatorException, match="1 of 17 nodes would run in PyTorch"):
        cut(require_full_compilation=True)
    with pytest.raises(pipeline.UnsupportedOperatorException, match="1 of 17 nodes would run in PyTorch"):
        cut(pipeline.by_submodule(2), require_full_compilation=True)


def test_submodules_stay_whole() -> None:
    record = cut(pipeline.by_submodule(2))
    assert [s.kind for s in record.segments] == ["engine", "torch", "engine"]
    reasons = {f.target: f.reason for f in record.fallbacks}
    assert reasons["aten.relu.default"] == "layers.2 stays in one segment, and its operator sort runs in PyTorch"
    assert reasons.keys() == {"aten.linear.default", "aten.relu.default", "aten.softmax.int", "aten.sort.default"}
    model = Stack().eval()
    compile = pipeline.default(min_block_size=1, torch_executed_ops=SORTS).replace("build", unbuilt)
    run = compile.replace("partition", pipeline.by_submodule(2))(model, args=(X,)).module("reference")
    torch.testing.assert_close(run(X), model(X))


@pytest.mark.parametrize(
    ("partitioner", "fallbacks"),
    [
        (pipeline.by_submodule(1), 16),
        (pipeline.by_submodule(3), 2),  # the relu goes with the product of its child
        (pipeline.by_submodule(pattern="layers.?"), 4),
        (pipeline.by_submodule(pattern="layers"), 16),
        (pipeline.by_submodule(pattern="head"), 1),
    ],
    ids=["depth 1", "depth 3", "pattern", "their parent", "another module"],
)
def test_which_submodules_stay_whole(partitioner: BySubmodule, fallbacks: int) -> None:
    assert len(cut(partitioner).fallbacks) == fallbacks


def test_a_submodule_that_is_called_twice_runs_in_one_kind_of_place() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = Layer(), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 8] -> [N, 8]"""
            return self.layer(torch.erfinv(self.other(self.layer(x)).tanh()))

    compile = (
        pipeline.default(min_block_size=4, torch_executed_ops={"aten.erfinv.default"})
        .until("partition")
        .replace("partition", pipeline.by_submodule(1))
    )
    record = compile(Twice().eval(), args=(X,))
    assert [s.kind for s in record.segments] == ["engine", "torch", "engine"]
    calls = {s.kind: [n for n in s.nodes if n.startswith("softmax")] for s in record.segments}
    assert [len(found) for found in calls.values()] == [1, 0]


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_is_at_least_one(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        pipeline.by_submodule(depth)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_pieces_are_cut_between_layers(count: int) -> None:
    record = cut(pipeline.in_pieces(count), torch_executed_ops=())
    assert [s.kind for s in record.segments] == ["engine"] * count
    made = {p.name: s.name for s in record.segments for p in s.outputs}
    assert [[p.name for p in c.tensors] for c in record.cuts] == [[name] for name in list(made)[:-1]]
    layers = [[n for n in s.nodes if n.startswith("softmax")] for s in record.segments]
    assert sorted(map(len, layers)) == [4 // count] * count


@pytest.mark.parametrize(
    ("keys", "updates", "ends"),
    [
        ("..aaabbbccc", (), [5, 8, 11]),
        ("..aaabbbccc", (3, 6, 9), [4, 7, 10, 11]),
        ("aaabbbccc", (0, 1, 6), [2, 3, 7, 9]),
        ("aaabbbccc", (2, 5, 8), [3, 6, 9]),
        ("aaabbbccc..", (9, 10), [3, 6, 11]),
    ],
)
def test_pieces_are_cut_behind_cache_updates_if_something_follows(
    keys: str, updates: tuple[int, ...], ends: list[int]
) -> None:
    alone: Any = SimpleNamespace(unit_of=list(range(len(keys))), members=[(i,) for i in range(len(keys))])
    unread: Any = SimpleNamespace(
        read=[()] * len(keys), produced=[()] * len(keys), values=[], is_cheap=[True] * len(keys)
    )
    own = [None if key == "." else key for key in keys]
    parts = split_by_submodule(unread, alone, range(len(keys)), own, frozenset(updates))
    assert [part[-1] + 1 for part in parts] == ends
    assert list(chain.from_iterable(parts)) == list(range(len(keys)))


@pytest.mark.parametrize(
    ("nbytes", "again", "early"),
    [
        ((4, 8, 8, 4), None, 3),
        ((4, 4, 4, 4), None, 3),
        ((4, 8, 8, 8), None, 0),
        ((4, 8, 4, 8), None, 2),
        ((4, 8, 8, 4), 0, 0),
        ((4, 8, 8, 4), 2, 0),
        ((4, 4, 4, 4), 1, 3),
    ],
    ids=[
        "there and back",
        "alike",
        "larger",
        "larger at the end",
        "the query is read twice",
        "a step is read twice",
        "the cache is read alone",
    ],
)
def test_what_only_changes_a_value_on_its_way_is_before_the_cut(
    nbytes: tuple[int, ...], again: int | None, early: int
) -> None:
    """``nbytes``: the query's, as operators 0 and 2 to 4 make it; operator 6 reads ``again`` what this one made, and of
    the cache it is the only one."""
    assert parts_of(nbytes, again) == [tuple(range(2 + early)), tuple(range(2 + early, 7))]


def test_what_is_read_before_the_cut_may_be_changed_there_too() -> None:
    assert parts_of((4, 8, 8, 4), 0, by=1)[0] == (0, 1, 2, 3, 4)


def test_what_another_submodule_reads_as_it_is_crosses_unchanged() -> None:
    assert parts_of((4, 8, 8, 4), 0, keys="aaaaaab")[0] == (0, 1)


def test_nothing_passes_what_has_to_be_before_it() -> None:
    """Such as what makes a size."""
    assert parts_of((4, 4, 4, 4), after={3: 6})[0] == (0, 1, 2)


def test_what_costs_something_stays_behind_the_cut() -> None:
    assert parts_of((4, 4, 4, 4), cheap=False)[0] == (0, 1)


def parts_of(
    nbytes: tuple[int, ...],
    again: int | None = None,
    after: Mapping[int, int] = MappingProxyType({}),
    cheap: bool = True,
    by: int = 6,
    keys: str = "aaaaaaa",
) -> list[tuple[int, ...]]:
    """Operator 0 makes the query, 1 updates the cache, 2 to 4 change the query, 5 is the attention."""
    maker = [0, 2, 3, 4, 1]
    readers = [[2], [3], [4], [5], [5]]
    if again is not None:
        readers[maker.index(again)] = [6] if again == 1 else [*readers[maker.index(again)], by]
    values = [
        SimpleNamespace(producer=by, readers=tuple(of), nbytes=size)
        for by, of, size in zip(maker, readers, (*nbytes, 64), strict=True)
    ]
    read = [tuple(v for v, of in enumerate(readers) if i in of) for i in range(7)]
    made = [tuple(v for v, by in enumerate(maker) if by == i) for i in range(7)]
    before = [(*(maker[v] for v in each), *([after[i]] if i in after else [])) for i, each in enumerate(read)]
    flow: Any = SimpleNamespace(values=values, produced=made, read=read, is_cheap=[cheap] * 7)
    alone: Any = SimpleNamespace(unit_of=list(range(7)), members=[(i,) for i in range(7)], before=before)
    return split_by_submodule(flow, alone, range(7), [*keys], frozenset({1}))


def test_pieces_of_each_engine_beside_pytorch() -> None:
    record = cut(pipeline.in_pieces(2))
    assert [s.kind for s in record.segments] == ["engine", "engine", "torch", "engine", "engine"]
    assert len(cut(pipeline.in_pieces(100)).segments) < 17, "fewer than asked for, where what is fused is all there is"


def test_large_engines_are_cut_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    operators, pieces = 15, 3
    monkeypatch.setattr(import_module("pipeline.stages.partition"), "OPERATORS_PER_ENGINE", operators // pieces)
    record = cut(torch_executed_ops=())
    assert [s.nodes for s in record.segments] == [
        s.nodes for s in cut(pipeline.in_pieces(pieces), torch_executed_ops=()).segments
    ]
    assert len(record.segments) == pieces
    assert len(cut(torch_executed_ops=(), max_engines=1).segments) == 1
    assert len(cut(pipeline.in_pieces(1), torch_executed_ops=()).segments) == 1


@pytest.mark.parametrize(("count", "error"), [(0, ValueError), (-1, ValueError), ("2", TypeError)])
def test_a_count_is_at_least_one(count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="count must be an integer of at least 1"):
        pipeline.in_pieces(count)


def test_a_path_is_no_depth() -> None:
    with pytest.raises(TypeError, match=r"depth must be an integer .*'encoder'; pass module paths as pattern="):
        pipeline.by_submodule("encoder")  # type: ignore[arg-type]


def test_partitioners_are_values() -> None:
    assert Partition() == Partition()
    assert pipeline.by_submodule(2) == BySubmodule(2) != BySubmodule(3)
    compile = pipeline.default().replace("partition", pipeline.by_submodule(2))
    assert compile["partition"].name == "partition"


def operators(validated: Validated) -> list[str]:
    return [n.name for n in validated.program.graph.nodes if is_operator(n)]


def test_a_partitioner_of_ones_own() -> None:
    @pipeline.stage
    def halves(validated: Validated) -> Partitioned:
        """The first half in PyTorch, the rest in an engine."""
        names = operators(validated)
        middle = len(names) // 2
        groups: list[Any] = [("torch", names[:middle]), ("engine", names[middle:])]
        return assemble(validated, groups, dict.fromkeys(names[:middle], "it is in the first half"))

    model = Stack().eval()
    compile = pipeline.default().replace("partition", halves).replace("build", unbuilt)
    compiled = compile(model, args=(X,))
    assert {f.reason for f in compiled.coverage.fallback} == {"it is in the first half"}
    assert len(compiled.coverage.converted) == 9
    torch.testing.assert_close(compiled.module("reference")(X), model(X))


WRONG: dict[str, Any] = {
    "the operator sort is in an engine segment, but an engine cannot run it": lambda names: [("engine", names)],
    "linear is in two segments": lambda names: [("torch", names), ("engine", names[:1])],
    "linear is in no segment": lambda names: [("torch", names[1:])],
    "a group has nonsense, which is not an operator of the program": lambda names: [("torch", [*names, "nonsense"])],
    "the segment of softmax would run before relu, whose result it reads": lambda names: [
        ("engine", names[2:3]),
        ("torch", names[:2] + names[3:]),
    ],
    "the kind of a segment must be 'engine' or 'torch', got 'gpu'": lambda names: [("gpu", names)],
}


@pytest.mark.parametrize("message", WRONG)
def test_groups_that_make_no_segments_are_errors(message: str) -> None:
    compile = pipeline.default(torch_executed_ops=SORTS).until("validate")
    validated = compile(Stack().eval(), args=(X,))
    with pytest.raises(ValueError, match=message):
        assemble(validated, WRONG[message](operators(validated)), {})
    with pytest.raises(ValueError, match="reasons has a reason for nonsense, which is not an operator"):
        assemble(validated, [("torch", operators(validated))], {"nonsense": "it is not there"})


def test_what_a_partitioner_does_not_explain_has_a_reason_all_the_same() -> None:
    compile = pipeline.default(torch_executed_ops=SORTS).until("validate")
    validated = compile(Stack().eval(), args=(X,))
    found = {f.node: f.reason for f in assemble(validated, [("torch", operators(validated))], {}).fallbacks}
    assert found["linear"] == "the partitioner keeps it in PyTorch"
    assert "torch_executed_ops keeps" in found["sort"]
