"""What a stage took is written down: seconds, memory, and who holds the weights."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import threading
import time
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import pipeline
from pipeline.compose.events import Event
from pipeline.compose.ledger import HOLDERS, Ledger
from pipeline.compose.progress import StageProgress
from pipeline.compose.resident import Sampler, descendant_pids, process_memory, process_tree_memory
from pipeline.stages.unbuilt import unbuilt

MEGABYTES = 64
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


def taken(size: int) -> mmap:
    """So many bytes, each page written to, that go back to the system when they are closed: what an allocator is given
    back it may keep."""
    memory = mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    for page in range(0, size, PAGESIZE):
        memory[page] = 1
    return memory


@linux
def test_a_stage_that_takes_memory_is_seen_to() -> None:
    ledger = Ledger()
    ledger(Event("started", "greedy"))
    passing, kept = taken(MEGABYTES << 20), taken(MEGABYTES << 20)
    time.sleep(0.1)
    passing.close()
    ledger(Event("finished", "greedy", 0.1))
    (entry,) = ledger.entries
    assert len(kept) * 0.9 <= entry.growth <= len(kept) * 1.5
    assert len(kept) * 1.9 <= entry.anonymous <= len(kept) * 2.5
    assert entry.peak >= entry.anonymous * 0.9


@linux
def test_children_count() -> None:
    code = f"x = bytearray(b'x' * ({MEGABYTES} << 20)); print(flush=True); input()"
    with (
        Sampler(interval=0.005) as sampler,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        assert (
            child.pid in set(descendant_pids())
            and process_tree_memory().total >= process_memory().total + process_memory(child.pid).total
        )
        time.sleep(0.05)
        child.communicate(b"\n")
    assert sampler.anonymous - sampler.first.anonymous >= MEGABYTES << 20
    assert process_memory(child.pid).total == 0


def test_every_stage_of_a_compilation_has_an_entry() -> None:
    ledger = pipeline.Ledger()
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)).eval()
    compiled = pipeline.default().observed_by(ledger)(model, args=(torch.ones(1, 3, 8, 8),))
    assert list(ledger.seconds) == ["capture", *pipeline.default().names]
    by_stage = {entry.stage: entry.held for entry in ledger.entries}
    weights = sum(t.nbytes for t in (*model.parameters(), *model.buffers()) if t.is_floating_point())
    assert weights <= by_stage["capture"]["model"] <= weights + 8
    assert by_stage["convert"]["plans"] == 0 == by_stage["build"]["folded"]
    assert by_stage["refit_map"]["plans"] == compiled.engines[0].nbytes
    assert all(set(held) <= set(HOLDERS) for held in by_stage.values())
    head, *lines = str(ledger).splitlines()
    assert head.split()[:2] == ["stage", "seconds"] and [line.split()[0] for line in lines] == list(ledger.seconds)


def test_weights_made_for_tensorrt_are_told_from_the_models() -> None:
    class Scaled(nn.Module):
        """A weight that is computed from a parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N, 64] -> [N, 64]"""
            return x @ torch.tanh(self.weight)

    ledger = pipeline.Ledger()
    pipeline.default().until("convert").observed_by(ledger)(Scaled().eval(), args=(torch.ones(2, 64),))
    assert ledger.entries[-1].held["folded"] == ledger.entries[-1].held["model"] == 64 * 64 * 4


def test_a_stage_that_fails_is_written_down() -> None:
    @pipeline.stage
    def failing(program: pipeline.Program) -> pipeline.Program:
        raise ValueError("no")

    ledger = pipeline.Ledger()
    compile: Any = pipeline.default().insert(failing, before="decompose").observed_by(ledger)
    with pytest.raises(ValueError, match="no"):
        compile(nn.Linear(2, 2), args=(torch.ones(1, 2),))
    assert [(entry.stage, entry.failed) for entry in ledger.entries] == [("capture", False), ("failing", True)]
    assert "failing!" in str(ledger)


@pytest.mark.parametrize("made", [Ledger, StageProgress])
def test_an_observer_that_is_a_ledger_is_the_only_one(made: type[Ledger]) -> None:
    ledger = made()
    compile = pipeline.default().replace("build", unbuilt).observed_by(lambda event: None, ledger)
    for count in (1, 2):
        compiled = compile(nn.ReLU(), args=(torch.ones(2),))
        assert [entry.stage for entry in compiled.took] == ["capture", *pipeline.default().names]
        assert len(ledger.entries) == count * len(compiled.took)
        assert all(
            one is other for one, other in zip(compiled.took, ledger.entries[-len(compiled.took) :], strict=True)
        )


class Closed(io.StringIO):
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        """Raises an error."""
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_gone_fails_no_compilation(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with StageProgress(Console(file=Closed(), force_terminal=True)) as progress:
            made = pipeline.default().until("validate").observed_by(progress)(nn.ReLU(), (torch.ones(2),))
        assert made.program.graph.nodes
    assert len([each for each in caplog.messages if each.startswith("progress bars are not shown")]) >= 2


def test_progress_inside_of_itself_lets_others_draw() -> None:
    terminal = io.StringIO()
    with StageProgress(Console(file=terminal, force_terminal=True)) as progress, progress:
        pass
    with StageProgress(Console(file=terminal, force_terminal=True)) as other:
        assert other._draws


@linux
def test_memory_is_read_while_a_stage_runs_and_no_longer() -> None:
    before = set(threading.enumerate())
    with Sampler(interval=0.05) as sampler:
        passing, until = taken(MEGABYTES << 20), time.monotonic() + 30
        while sampler.anonymous - sampler.first.anonymous < (MEGABYTES << 20) * 0.9:
            assert time.monotonic() < until, "memory is not read while a stage runs"
            time.sleep(0.01)
        passing.close()
    assert set(threading.enumerate()) <= before
