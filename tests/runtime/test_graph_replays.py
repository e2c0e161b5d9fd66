"""Which instance of a CUDA graph is launched, and where it writes: on a fake CUDA that copies what nodes were told."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.runtime import graph_copies, graph_replays
from pipeline.runtime.graph_replays import CAPTURED, INSTANCES, PATIENCE, GraphInput, GraphOutput, Replayer

STREAM = 7
RESULT = torch.full((4,), 5.0)


class FakeCuda:
    """A graph that adds 1 to what it copied in and copies the result out, and ``cudart``, what CUDA has for it."""

    def __init__(self, feed: GraphInput, take: GraphOutput) -> None:
        self.feed, self.take = feed, take
        self.nodes = {
            "in": (feed.source.data_ptr(), feed.held.data_ptr()),
            "out": (take.value.data_ptr(), take.target.data_ptr()),
        }
        self.told: dict[Any, dict[str, tuple[int, int]]] = {"own": dict(self.nodes)}
        self.launched: list[tuple[Any, int]] = []
        self.telling = 0
        self.cudart = SimpleNamespace(
            cudaError_t=SimpleNamespace(cudaSuccess=0),
            cudaMemcpyKind=SimpleNamespace(cudaMemcpyDeviceToDevice=3),
            cudaGraphNodeType=SimpleNamespace(cudaGraphNodeTypeMemcpy=1, cudaGraphNodeTypeMemset=2),
            cudaGraph_t=lambda handle: handle,
            cudaGraphExec_t=lambda handle: handle,
            cudaGraphGetNodes=lambda whole, count=0: (0, list(self.nodes), len(self.nodes)),
            cudaGraphNodeGetType=lambda node: (0, 1),
            cudaGraphMemcpyNodeGetParams=self.form,
            cudaGraphInstantiate=self.instantiate,
            cudaGraphExecDestroy=self.told.pop,
            cudaGraphExecMemcpyNodeSetParams1D=self.tell,
            cudaGraphLaunch=self.launch,
        )

    def form(self, node: str) -> Any:
        source, target = (SimpleNamespace(ptr=address) for address in self.nodes[node])
        return 0, SimpleNamespace(srcPtr=source, dstPtr=target, extent=SimpleNamespace(width=RESULT.nbytes))

    def instantiate(self, whole: str, flags: int) -> Any:
        handle = f"instance {len(self.told)}"
        self.told[handle] = dict(self.nodes)
        return 0, handle

    def tell(self, handle: str, node: str, target: int, source: int, nbytes: int, kind: int) -> Any:
        self.telling += 1
        self.told[handle][node] = source, target
        return (0,)

    def launch(self, handle: str, stream: int) -> Any:
        copies = self.told[handle]
        self.launched.append((handle, stream))
        ctypes.memmove(*copies["in"][::-1], RESULT.nbytes)
        self.take.value.copy_(self.feed.held + 1)
        ctypes.memmove(*copies["out"][::-1], RESULT.nbytes)
        return (0,)


class FakeGraph:
    """PyTorch's handle of it."""

    def __init__(self) -> None:
        self.cuda: Any = None
        self.replayed = 0

    def instantiate(self) -> None:
        pass

    def raw_cuda_graph(self) -> str:
        return "whole"

    def raw_cuda_graph_exec(self) -> str:
        return "own"

    def replay(self) -> None:
        self.replayed += 1
        self.cuda.launch("own", 0)


Made = tuple[Replayer, Any, Any]


def replays(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Made:
    feed, take = GraphInput(0, torch.zeros(4), has_copy=True), GraphOutput(torch.zeros(4), has_copy=True)
    cuda, graph = FakeCuda(feed, take), FakeGraph()
    graph.cuda = cuda
    monkeypatch.setattr(graph_copies, "cudart", cuda.cudart)
    monkeypatch.setattr(graph_copies, "can_set_node_addresses", lambda: True)
    made: Any = Replayer(graph, [feed], [take], **{"random": False, **options})  # type: ignore[arg-type]
    return made, cuda, graph


def memory(run: Any, blocks: int) -> None:
    """An allocator that gives so many blocks in turn."""
    free = [torch.empty(4) for _ in range(blocks)]

    def make() -> torch.Tensor:
        free.append(free.pop(0))
        return free[-1]

    run._makers = [make]


def call(run: Replayer, value: float, stream: int = STREAM) -> torch.Tensor:
    (result,) = run([torch.full((4,), value)], stream)
    assert result is not None
    assert result.tolist() == [value + 1] * 4
    return result


def test_addresses_that_return_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cuda, graph = replays(monkeypatch)
    memory(run, INSTANCES)
    for i in range(3 * INSTANCES):
        call(run, i)
    assert len(cuda.told) == cuda.telling == INSTANCES
    assert {stream for _, stream in cuda.launched} == {STREAM}
    assert (graph.replayed, run.complete) == (0, True)


def test_memory_is_like_what_the_graph_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, _ = replays(monkeypatch)
    result = call(run, 1)
    assert (result.shape, result.stride(), result.dtype, result.device) == ((4,), (1,), torch.float32, RESULT.device)


def test_results_that_are_kept_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cuda, _ = replays(monkeypatch)
    memory(run, 20)
    kept = [call(run, i) for i in range(10)]
    assert [float(value[0]) for value in kept] == [i + 1 for i in range(10)]
    assert len(cuda.told) == INSTANCES


def test_random_numbers_are_drawn_by_pytorchs_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cuda, graph = replays(monkeypatch, random=True)
    memory(run, INSTANCES)
    for i in range(5):
        call(run, i)
    assert (graph.replayed, list(cuda.told)) == (5, ["own"])


def test_memory_made_for_another_stream_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cuda, _ = replays(monkeypatch)
    memory(run, 20)
    first = call(run, 1)
    waiting = run._next
    assert waiting is not None and waiting[2] == STREAM
    second = call(run, 2, stream=8)
    assert waiting[1][0] is not second is not first
    assert [stream for _, stream in cuda.launched] == [STREAM, 8]


def test_no_large_memory_waits_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_replays, "AHEAD", RESULT.nbytes - 1)
    run, cuda, _ = replays(monkeypatch)
    memory(run, 2)
    for i in range(10):
        call(run, i)
    assert run._next is None
    assert len(cuda.told) == cuda.telling == 2


def test_memory_that_is_missing_is_the_next_calls_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _, _ = replays(monkeypatch)
    call(run, 1)

    def full() -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    made = run._makers
    run._makers = [full]
    call(run, 2)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        call(run, 3)
    run._makers = made
    call(run, 4)


class Again:
    """Instances captured for some memory, to which they write without a copy."""

    def __init__(self) -> None:
        self.feed: Any = None
        self.captured: list[int] = []
        self.launched: list[int] = []

    def __call__(self, leaves: Any, made: Any) -> Any:
        [memory] = made
        address = memory.data_ptr()
        self.captured.append(address)

        def launch(stream: int) -> None:
            self.launched.append(address)
            memory.copy_(self.feed.source + 1)

        node = SimpleNamespace(read_from=lambda address: None)
        return SimpleNamespace(reads=[node], launch=launch, write_outputs_to=lambda addresses: None)


def test_memory_that_returns_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again()
    run, cuda, _ = replays(monkeypatch, recapture=lambda: again)
    again.feed = cuda.feed
    memory(run, INSTANCES)
    for i in range(4 * INSTANCES):
        call(run, i)
    assert len(again.captured) == len(set(again.captured)) == INSTANCES
    assert [handle for handle, _ in cuda.launched] == ["own"] * INSTANCES
    assert again.launched == again.captured * 3


def test_memory_that_never_returns_is_copied_to(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again()
    run, cuda, _ = replays(monkeypatch, recapture=lambda: again)
    memory(run, 30)
    kept = [call(run, i) for i in range(20)]
    assert [float(value[0]) for value in kept] == [i + 1 for i in range(20)]
    assert (again.captured, list(cuda.told)) == ([], ["own"])


def test_other_memory_that_returns_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Again()
    run, cuda, _ = replays(monkeypatch, recapture=lambda: again)
    again.feed = cuda.feed
    for _ in range(3):
        memory(run, INSTANCES)
        for i in range(4 * INSTANCES):
            call(run, i)
    assert len(run._instances) == CAPTURED
    assert len(set(again.launched)) > INSTANCES


def test_captures_are_few_whatever_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """More addresses in turn than there are instances."""
    again = Again()
    run, cuda, _ = replays(monkeypatch, recapture=lambda: again)
    again.feed = cuda.feed
    memory(run, CAPTURED + 2)
    for i in range(4 * PATIENCE):
        call(run, i)
    assert CAPTURED < len(again.captured) <= CAPTURED + 4


@pytest.mark.parametrize("before", [0, 2])
def test_what_cannot_be_captured_again_is_copied(
    before: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Captures that came before stay for their addresses, and are told no others."""
    again = Again()

    def few(leaves: Any, made: Any) -> Any:
        if len(again.captured) == before:
            raise RuntimeError("not now")
        return again(leaves, made)

    run, cuda, _ = replays(monkeypatch, recapture=lambda: few)
    again.feed = cuda.feed
    memory(run, 2 * INSTANCES)
    for i in range(8 * INSTANCES):
        call(run, i)
    assert (
        caplog.text.count("capturing a CUDA graph for reused memory failed, so calls copy their outputs: not now") == 1
    )
    assert list(cuda.told) == ["own"]
    assert set(again.launched) == set(again.captured) and len(again.captured) == before


def test_instances_go_with_their_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    run, cuda, _ = replays(monkeypatch)
    memory(run, INSTANCES)
    for i in range(INSTANCES):
        call(run, i)
    del run
    assert list(cuda.told) == ["own"]


def test_an_instance_keeps_what_it_copies_and_not_what_the_caller_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is written at once is only written again when it returns."""
    _, _, graph = replays(monkeypatch)
    copied, given = torch.zeros(4), torch.zeros(4)
    inside, outside = weakref.ref(copied), weakref.ref(given)
    made = graph_replays.make_instance(
        graph, [], [GraphOutput(copied, has_copy=True), GraphOutput(given, has_copy=False)]
    )
    del copied, given
    gc.collect()
    assert inside() is not None and outside() is None
    del made
    assert inside() is None


def test_without_cuda_bindings_pytorch_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, take = GraphInput(0, torch.zeros(4), has_copy=False), GraphOutput(torch.zeros(4), has_copy=False)
    graph = SimpleNamespace(replay=lambda: take.value.copy_(feed.held + 1))
    monkeypatch.setattr(graph_copies, "can_set_node_addresses", lambda: False)
    run: Any = Replayer(graph, [feed], [take], random=False)  # type: ignore[arg-type]
    assert (run([torch.ones(4)], STREAM), run.complete) == ((None,), False)
    assert take.value.tolist() == [2.0] * 4
