"""The kit of random programs: programs are varied, print, and shrink; ``check_model`` tells what it should."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.artifact.engine_store import DiskStore
from pipeline.errors import CaptureError
from pipeline.runtime.worker import SegmentExecutor
from pipeline.testing import ModelError, TensorSpec, check_model, models
from pipeline.testing.memory import Snapshot, describe_shared_memory
from tests.fuzz import Snippet, program, shrunk
from tests.fuzz.scope import Scope, Value

TEXTS = [str(program(seed)) for seed in range(40)]

KINDS = {
    "mutation": r"\w_\(|\] = ",
    "buffers": "register_buffer",
    "views": r"\.mT|\.view\(|\[1:\]",
    "keywords": "kwargs=",
    "containers": "'q': ",
    "sizes": r"s\d+ = ",
    "joined": r"torch\.cat",
    "integers": r"torch\.int64",
    "bools": r"torch\.bool",
    "masks": r"torch\.where|masked_fill",
    "fallbacks": "torch_executed_ops",
    "blocks": "min_block_size",
    "None": r"None",
    "images": r"2d\(|F\.interpolate",
    "sequences": r"LSTM|GRU|MultiheadAttention|scaled_dot_product|Embedding",
    "halves": r"float16",
    "files": r"saved=True",
}


@pytest.mark.parametrize("kind", KINDS)
def test_programs_are_varied(kind: str) -> None:
    count = sum(bool(re.search(KINDS[kind], text)) for text in TEXTS)
    assert count >= 4, f"{count} of {len(TEXTS)}"


def test_a_program_shrinks_to_what_fails() -> None:
    def fails(snippet: Snippet) -> bool:
        return any("tanh" in line for line in snippet.body)

    found = next(p for p in map(program, range(40)) if fails(p))
    small = shrunk(found, fails)
    assert len(small.body) == 1
    assert not small.options and len(small.results) == 1


@pytest.mark.parametrize(
    ("given", "apart"), [("x", True), ("x[:]", True), ("x.mT", False), ("x[..., :1]", False), ("x.clone().mT", True)]
)
def test_what_a_write_reads_lies_apart_from_what_it_writes(given: str, apart: bool) -> None:
    scope = Scope(choose=min, worlds=[{"x": torch.ones(2, 2)}, {"x": torch.ones(3, 3)}])
    assert scope.is_apart(Value(given), Value("x")) is apart


class Asks(nn.Module):
    """Asks for a value in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N]"""
        while x.sum().item() > 0:
            x = x - 1
        return x


def test_what_torch_export_does_not_take_is_no_failure() -> None:
    with pytest.raises(CaptureError, match=r"branches on a tensor's value, which is unknown"):
        check_model(Asks, (TensorSpec(("n",)),), sizes={"n": (1, 2, 4)})


class Counting(nn.Module):
    """Another number at each call, in eager mode."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N]"""
        Counting.calls += 1
        return x * Counting.calls


def test_a_failure_has_its_kind() -> None:
    with pytest.raises(ModelError, match=r"values: .*result.*eager gives") as caught:
        check_model(Counting, (TensorSpec(("n",)),), sizes={"n": (1, 2, 4)})
    assert caught.value.kind == "values"


@pytest.mark.parametrize("seed", [3, 5])
def test_a_model_runs_under_torch_compile(seed: int) -> None:
    program(seed).run_backend()


def test_an_engine_that_the_cache_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskStore, "write", lambda self, key, parts: None)
    with pytest.raises(ModelError, match="cached: the engine cache does not have engine_0"):
        check_model(nn.ReLU, (TensorSpec((2, 3)),), build=True, min_block_size=1)


def test_a_file_that_is_another_program_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    other = check_model(nn.Tanh, (TensorSpec((2, 3)),), min_block_size=1)
    monkeypatch.setattr(models, "load", lambda path: other)
    with pytest.raises(ModelError, match="saved: the loaded program differs"):
        check_model(nn.ReLU, (TensorSpec((2, 3)),), saved=True, min_block_size=1)


def test_a_failing_program_comes_with_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentExecutor, "write_mutations", lambda self, slots, leaves: None)
    snippet = next(p for p in map(program, range(40)) if "_(" in str(p.body) and "self.state" in str(p.results))
    with pytest.raises(ModelError) as caught:
        snippet.run()
    assert str(snippet) in str(caught.value)


def test_a_snapshot_names_what_changed() -> None:
    tree: Any = {"a": torch.zeros(2), "b": [torch.tensor([float("nan")])]}
    snapshot = Snapshot.take(tree)
    assert not snapshot.describe_changes()
    tree["b"][0].zero_()
    assert snapshot.describe_changes() == "['b'][0]"


def test_sharing_is_told_where_eager_does_not_share() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    assert not describe_shared_memory([x + 1], [x], [y + 1], [y])
    assert "share memory" in describe_shared_memory([x[1:]], [x], [y + 1], [y])
    assert not describe_shared_memory([x + 1], [x], [y[1:]], [y])
    assert "one tensor in eager" in describe_shared_memory([x + 1], [x], [y], [y])
    assert not describe_shared_memory([x + 1], [x], [y], [y], [y])
