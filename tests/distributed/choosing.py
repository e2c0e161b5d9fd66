"""What two ranks check of `choose`, and of collectives that run without the other rank or through the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from attrs import field, frozen
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from benchmarks.sharded import by_plan
from pipeline.aten.collectives import is_collective
from pipeline.compat.transformers import compile_for_generation
from pipeline.compiled import Compiled
from pipeline.distributed.sharded import check_call_is_safe
from pipeline.profiling.measurements import Measurements, Milliseconds
from pipeline.profiling.segment_costs import SegmentCost
from pipeline.records.sharding import Alone
from pipeline.runtime.collective_calls import collective_function, without_communication
from pipeline.stages import choose, faster_in_torch
from pipeline.stages.choose import Choose
from tests.distributed.cases import BY_ROWS_AND_COLUMNS, CLOSE, mesh, run, sharded
from tests.distributed.models import SIZES, TEXT


@frozen
class Slow:
    """A GPU that takes so many milliseconds for the first engine, and one for all else. It runs each form some times
    on this rank alone, a larger number on the second rank."""

    rank: int
    first: float

    def __call__(self, programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
        for each in programs:
            module = run(without_communication(each))
            for _ in range(1 + 2 * self.rank):
                assert module(torch.randn(2, 4, 16)).shape == (2, 4, 16)
        return [
            {s.name: SegmentCost(self.first if s.name == "engine_0" else 1.0, 0.1) for s in each.partitioned.segments}
            for each in programs[:2]
        ] + [{"torch_0": SegmentCost(99.0, 0.1)}]


@frozen
class Kept:
    """A store of measurements."""

    pairs: dict[str, Milliseconds] = field(factory=dict)

    def load(self, targets: Sequence[str]) -> Mapping[str, Milliseconds]:
        """Return what it has."""
        return dict(self.pairs)

    def save(self, found: Mapping[str, Milliseconds]) -> None:
        """Add measurements."""
        self.pairs.update(found)


def unused(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
    """What times programs on a rank that has measurements."""
    raise AssertionError("it was measured before")


def broken(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
    """What times programs on a rank without memory."""
    raise torch.OutOfMemoryError("no memory")


def as_is(compiled: Compiled) -> Compiled:
    """Leave the engines as they are: there is no GPU."""
    return compiled


@contextmanager
def a_gpu() -> Iterator[None]:
    """A context in which programs are compared as on a GPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "LARGE", 0)
        patched.setattr(choose, "_has_its_gpu", lambda compiled: True)
        patched.setattr(choose, "copy_cached_kernels", lambda before, after: None)
        patched.setattr(faster_in_torch, "LEAST", 0)
        patched.setattr(faster_in_torch, "QUERIES", 2)
        patched.setattr(faster_in_torch, "HALVES", (torch.float32,))
        yield


def measuring(rank: int, folder: Path) -> Any:
    """Return a compiler that measures forms, and loads no engines."""
    settings = {"load_built_engines": True, "measurements": str(folder / f"measured{rank}.json")}
    return pipeline.default(**settings).replace("load", as_is)


def forms_that_ranks_choose(rank: int, folder: Path) -> None:
    """Each rank measures its own part, and all take the form that is fastest on the slowest rank."""
    whole, model = sharded(BY_ROWS_AND_COLUMNS)
    compile = measuring(rank, folder).without("choose")
    x, kept = torch.randn(2, 4, 16), Kept()
    rows: list[tuple[Any, Measurements, str]] = [
        (Slow(rank, (0.9, 5.0)[rank]), kept, "torch"),
        (Slow(rank, (0.9, 0.8)[rank]), Measurements(), "engine"),
        ((Slow(rank, 0.5), unused)[rank], (Measurements(), kept)[rank], "torch"),  # one rank has measurements
        ((Slow(rank, 5.0), broken)[rank], Measurements(), "torch"),  # or none at all
    ]
    for timer, store, kinds in rows:
        with a_gpu():
            compiled = Choose(timer, store)(compile(model, (x,)))
        assert compiled.partitioned.segments[0].kind == kinds
        torch.testing.assert_close(run(compiled)(x), whole(x), **CLOSE)


def ranks_that_compile_one_after_the_other(rank: int, folder: Path) -> None:
    """They do not wait for each other for long, and none of them takes another form."""
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    compile = measuring(rank, folder).without("choose")
    if rank == 1:
        dist.barrier()
    with a_gpu(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "ARRIVE", 0.3)
        compiled = Choose(Slow(rank, 5.0))(compile(model, (torch.randn(2, 4, 16),)))
    assert compiled.partitioned.segments[0].kind == "engine"
    if rank == 0:
        dist.barrier()


def matmuls(programs: Sequence[Compiled], profile: int | None) -> Sequence[Mapping[str, SegmentCost]]:
    """A GPU on which PyTorch is faster for matmuls alone."""
    costs = zip((1.0, 9.0, 0.1), programs, strict=True)
    return [{s.name: SegmentCost(ms, 0.1) for s in each.partitioned.segments} for ms, each in costs]


def matmuls_of_a_sharded_llama(rank: int, folder: Path) -> None:
    """They run in PyTorch, and ranks call collectives as they did."""
    whole = LlamaForCausalLM(LlamaConfig(**SIZES, **TEXT, eos_token_id=None)).eval()
    ids = torch.randint(1, 64, (2, 3))
    how: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
    expected = whole.generate(ids, **how)
    compile = measuring(rank, folder)
    compile = compile.replace("choose", Choose(matmuls))
    sizes: dict[str, Any] = {"max_cache_len": 16, "max_batch": 2, "executor": "reference"}
    with a_gpu():
        compiled = compile_for_generation(by_plan(whole), **sizes, compile=compile)
    segments = compiled.compiled["decoder"].partitioned.segments
    counts = Counter((s.kind, s.profile) for s in segments)
    assert len(counts) == 4 and min(counts.values()) > 4, counts
    assert torch.equal(compiled.generate(ids, **how), expected)


def collectives_through_the_host(rank: int, folder: Path) -> None:
    """Groups of gloo take tensors of the host; those of a GPU go there and back."""
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    program = pipeline.capture(model, (torch.randn(2, 4, 16),))
    first, wait = [node for node in program.graph.nodes if is_collective(node)]
    call = collective_function(first, program.sharding, torch.device("cuda"))
    assert (
        call is not first.target and collective_function(first, program.sharding, torch.device("cpu")) is first.target
    )
    x = torch.full((2, 4, 16), float(rank + 1))
    assert torch.equal(
        collective_function(wait, program.sharding, torch.device("cuda"))(call(x, *first.args[1:])), 3 * x / x
    )
    assert torch.equal(collective_function(first, Alone(rank, 2), x.device)(x), x)
    assert (
        collective_function(first, None, x.device) is first.target
    )  # of an ExportedProgram, compiled without a process group


def a_call_that_would_end_the_process(rank: int, folder: Path) -> None:
    """A module on a GPU with gloo is refused where it has to be called."""
    _, model = sharded(BY_ROWS_AND_COLUMNS)
    check_call_is_safe(model)
    ranks = SimpleNamespace(device_type="cuda", get_all_groups=mesh().get_all_groups)
    of_a_gpu = SimpleNamespace(dtensor=SimpleNamespace(device_mesh=ranks))
    refused = pytest.raises(pipeline.CaptureError, match="Block is sharded over GPUs with the backend gloo")
    with patch.object(pipeline.distributed.sharded, "_sharded_tensors", lambda model: [of_a_gpu]), refused:
        check_call_is_safe(model)


CHOOSING = (
    forms_that_ranks_choose,
    ranks_that_compile_one_after_the_other,
    matmuls_of_a_sharded_llama,
    collectives_through_the_host,
    a_call_that_would_end_the_process,
)
