"""How compiled programs run on a GPU: CUDA graphs, threads, streams, memory, kernels kept on disk."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import pipeline
from examples.models import SMALL, Case, small
from pipeline import Compiled
from pipeline.runtime import cuda_graphs, engine_session
from pipeline.runtime.cuda_worker import CudaWorker
from pipeline.trt import CAPABILITIES
from tests.gpu.threads import in_threads

pytestmark = pytest.mark.gpu


class Mixed(nn.Module):
    """Exact in any precision; ``cumsum`` can be made to run in PyTorch between two engines."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 4.0]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 3] -> [N, 3], [N, 3]"""
        y = torch.relu(x * self.scale + 1) * 2 - x
        z = torch.cumsum(y, 0)
        return y, torch.relu(z * 0.5) + x


X = torch.arange(-6.0, 6.0).reshape(4, 3)
BATCH = ({0: Dim("n", min=1, max=64)},)
APART = {"torch_executed_ops": {"aten.cumsum.default"}, "min_block_size": 1}


def compiled(model: nn.Module, *args: Any, dynamic: Any = None, **options: Any) -> Compiled:
    return pipeline.default(**options)(model.eval(), args=args, dynamic_shapes=dynamic)


def worker(module: Any) -> CudaWorker:
    """The worker that a call takes."""
    taken = module._workers.take()
    module._workers.give(taken)
    assert isinstance(taken, CudaWorker)
    return taken


def values(n: int, i: int) -> torch.Tensor:
    return (torch.arange(3.0 * n, device="cuda").reshape(n, 3).remainder(7) + i).contiguous()


@pytest.mark.parametrize("options", [{}, APART], ids=["one engine", "three segments"])
def test_alternating_shapes_with_graphs(options: dict[str, Any]) -> None:
    """Each shape runs, is captured, and is replayed; nothing a caller holds is overwritten."""
    run = compiled(Mixed(), X, dynamic=BATCH, **options).module(cuda_graphs=True)
    held = []
    for i in range(6):
        for n in (4, 1, 64, 7):
            x = values(n, i)
            held.append((x, run(x)))
    graphs = worker(run).graphs
    assert graphs is not None and (len(graphs.kept), graphs.refused) == (4, {})
    for x, (y, z) in held:
        expected_y, expected_z = Mixed()(x.cpu())
        assert torch.equal(y.cpu(), expected_y)
        assert torch.equal(z.cpu(), expected_z)


def test_the_graphs_are_bounded() -> None:
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True, max_cuda_graphs=2)
    for _ in range(3):
        for n in (1, 2, 3, 4):
            for _ in range(3):
                x = values(n, n)
                assert torch.equal(run(x)[0].cpu(), Mixed()(x.cpu())[0])
    graphs = worker(run).graphs
    assert graphs is not None and len(graphs.kept) == 2


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many elements as calls were captured."""
    made: list[int] = []
    whole = cuda_graphs.CapturedCall.__init__
    monkeypatch.setattr(cuda_graphs.CapturedCall, "__init__", lambda self, *a: made.append(1) or whole(self, *a))
    return made


def test_a_shape_is_captured_once_and_once_more_when_its_input_moves(captured: list[int]) -> None:
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True)
    inputs = {n: values(n, 0) for n in (1, 2, 3, 4)}
    for _ in range(5):
        for x in inputs.values():
            run(x)
    assert len(captured) == 4
    held = [values(n, i) for i in range(4) for n in inputs]
    for x in held:
        assert torch.equal(run(x)[0].cpu(), Mixed()(x.cpu())[0])
    assert len(captured) == 8


def test_inputs_are_read_where_they_are(captured: list[int]) -> None:
    """Other values at the same address, and other views of it."""
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=True)
    x = values(3, 0)
    memory = torch.cuda.memory_allocated()
    for i in range(4):
        x.fill_(i)
        assert torch.equal(run(x)[0].cpu(), Mixed()(x.cpu())[0])
    assert len(captured) == 1
    for view in (x.t(), torch._neg_view(x), x.clone().requires_grad_()):
        x.copy_(values(3, 7))
        assert torch.equal(run(view)[0].cpu(), Mixed()(view.detach().cpu())[0])
    assert len(captured) == 2
    del x, view
    run(values(3, 1))
    assert torch.cuda.memory_allocated() - memory < 2**20


def test_memory_for_outputs_is_of_the_stream_that_is_current() -> None:
    """Made ahead on one stream, it is not used on another."""
    run, streams = compiled(Mixed(), X).module(cuda_graphs=True), [torch.cuda.Stream() for _ in range(3)]
    held = []
    for i in range(30):
        with torch.cuda.stream(streams[i % 7 % 3]):
            x = values(4, i)
            held.append((x, *run(x)))
    torch.cuda.synchronize()
    assert len({y.data_ptr() for _, y, _ in held}) == len(held)
    for x, y, z in held:
        expected = Mixed()(x.cpu())
        assert torch.equal(y.cpu(), expected[0]) and torch.equal(z.cpu(), expected[1])


@pytest.mark.parametrize("graphs", [False, True])
def test_outputs_are_reused_only_on_request(graphs: bool) -> None:
    once = compiled(Mixed(), X).module(cuda_graphs=graphs)
    again = compiled(Mixed(), X).module(cuda_graphs=graphs, reuse_outputs=True)
    for run, same in ((once, False), (again, True)):
        results = [run(values(4, 0))[0] for _ in range(5)]
        assert (results[-1].data_ptr() == results[-2].data_ptr()) == same


@pytest.mark.parametrize("where", ["cpu", "strided", "gradient", "offset"])
def test_graphs_take_inputs_of_any_kind(where: str) -> None:
    run = compiled(Mixed(), X).module(cuda_graphs=True)
    for i in range(4):
        base = torch.arange(24.0).reshape(4, 6).remainder(5) + i
        x = {
            "cpu": base[:, :3].contiguous(),
            "strided": base.cuda()[:, ::2],
            "gradient": base[:, :3].cuda().requires_grad_(),
            "offset": base.cuda().flatten()[1:13].view(4, 3),
        }[where]
        y, z = run(x)
        assert (y.device, y.requires_grad) == (x.device, False)
        expected = Mixed()(x.detach().cpu())
        assert torch.equal(y.cpu(), expected[0]) and torch.equal(z.cpu(), expected[1])


class Counter(nn.Module):
    """A buffer and an input that are changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[3] -> [3], [3]"""
        self.count.add_(x)
        x.mul_(2)
        return self.count * 2, x + 1


def test_mutation_in_graphs() -> None:
    run = compiled(Counter(), torch.ones(3), min_block_size=1).module(cuda_graphs=True)
    for i in range(1, 8):
        x = torch.ones(3, device="cuda")
        total, after = run(x)
        assert total.tolist() == [2.0 * i] * 3
        assert (x.tolist(), after.tolist()) == ([2.0] * 3, [3.0] * 3)
    graphs = worker(run).graphs
    assert graphs is not None and len(graphs.kept) == 1


class Outputs(nn.Module):
    """The input itself, a constant, an int, the same tensor twice."""

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 3] -> a dictionary"""
        y = x * 2
        return {"x": x, "twice": [y, y], "n": x.shape[0], "none": None, "two": 2}


def test_every_kind_of_output_from_a_graph() -> None:
    run = compiled(Outputs(), X, dynamic=BATCH, min_block_size=1).module(cuda_graphs=True)
    for i in range(5):
        x = values(4 + i % 2, i)
        result = run(x)
        assert result["x"] is x
        assert torch.equal(result["twice"][0], x * 2) and torch.equal(result["twice"][1], x * 2)
        assert (result["n"], result["none"], result["two"]) == (4 + i % 2, None, 2)


class Nonzero(nn.Module):
    """Sizes that depend on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3] -> [M, 3]"""
        return torch.relu(x[x[:, 0] > 0] + 1)


def test_what_cannot_be_captured_says_why_and_runs(caplog: Any) -> None:
    run = compiled(Nonzero(), X, min_block_size=1).module(cuda_graphs=True)
    with caplog.at_level(logging.WARNING):
        for i in range(4):
            x = values(4, i - 3)
            assert torch.equal(run(x).cpu(), Nonzero()(x.cpu()))
    assert caplog.text.count("sizes inside the program depend on its inputs' values") == 1


class Dropped(nn.Module):
    """Randomness, which runs in PyTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N]"""
        return torch.rand_like(x) + x * 0


def test_random_operators_stay_random_in_graphs() -> None:
    run = compiled(Dropped(), torch.ones(64), min_block_size=1).module(cuda_graphs=True)
    results = [run(torch.ones(64, device="cuda")) for _ in range(5)]
    assert len({tuple(r.tolist()) for r in results}) == 5


def test_what_is_large_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_session, "COPIED", 8)
    run = compiled(Mixed(), X, dynamic=BATCH).module()
    for i in range(4):
        for n in (4, 9):
            x = values(n, i)
            y, z = run(x)
            expected = Mixed()(x.cpu())
            assert torch.equal(y.cpu(), expected[0]) and torch.equal(z.cpu(), expected[1])


def agree(case: Case, run: Any, plain: Any) -> None:
    """With graphs as without, at alternating sizes."""
    sizes = [{"batch": 1}, {"batch": 3, "sequence": 9, "target": 5}, {"batch": 8, "sequence": 32, "target": 32}]
    inputs = [{k: v.cuda() for k, v in case.inputs(**s).items()} for s in sizes]
    expected = [[leaf.clone() for leaf in tree_leaves(plain(**i))] for i in inputs]
    for _ in range(4):
        for given, wanted in zip(inputs, expected, strict=True):
            for leaf, want in zip(tree_leaves(run(**given)), wanted, strict=True):
                scale = want.float().abs().max().clamp(min=1e-6)
                assert float((leaf.float() - want.float()).abs().max() / scale) < 2e-3


@pytest.mark.parametrize("name", sorted(SMALL))
def test_architectures_with_graphs(name: str) -> None:
    case = small(name, torch.float16)
    compile = pipeline.default(require_full_compilation=True)
    result = compile(case.model, args=(), kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    run = result.module(cuda_graphs=True)
    agree(case, run, result.module())
    graphs = worker(run).graphs
    assert graphs is not None and (len(graphs.kept), graphs.refused) == (3, {})


@pytest.mark.parametrize("graphs", ["none", "copied from", "written at once"])
def test_eight_threads_on_one_compiled(graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 calls in all, each with values and a shape of its own, on streams of their own and the default one."""
    if graphs == "written at once":
        monkeypatch.setattr(cuda_graphs, "LARGE", 1)
    run = compiled(Mixed(), X, dynamic=BATCH).module(cuda_graphs=graphs != "none", execution_contexts=4)

    def work(seed: int) -> None:
        stream = torch.cuda.default_stream() if seed % 4 == 0 else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            held = []
            for i in range(1250):
                x = values(1 + (seed + i) % 5, seed * 13 + i % 11)
                held.append((x, *run(x)))
                if len(held) == 50:
                    check(held)
                    held.clear()

    def check(held: list[Any]) -> None:
        scale = torch.tensor([0.5, 2.0, 4.0], device="cuda")
        for x, y, z in held:
            want = torch.relu(x * scale + 1) * 2 - x
            assert torch.equal(y, want)
            assert torch.equal(z, torch.relu(torch.cumsum(want, 0) * 0.5) + x)

    in_threads(work)


@pytest.mark.parametrize("graphs", ["none", "copied from", "written at once"])
def test_memory_stays(graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if graphs == "written at once":
        monkeypatch.setattr(cuda_graphs, "LARGE", 1)
    run = compiled(Mixed(), X, dynamic=BATCH, **({} if graphs == "written at once" else APART)).module(
        cuda_graphs=graphs != "none"
    )
    sizes = []
    gc.collect()  # what tests before this one left behind
    for _ in range(20):
        for i in range(40):
            run(values(1 + i % 4, i))
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_allocated())
    assert len(set(sizes[10:])) == 1, sizes  # by then each of the four shapes is captured for eight addresses


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("options", [{}, APART], ids=["one engine", "three segments"])
@pytest.mark.parametrize("graphs", [False, True])
def test_a_module_that_is_dropped_is_freed_at_once(graphs: bool, options: dict[str, Any]) -> None:
    result = compiled(Mixed(), X, dynamic=BATCH, **options)
    given = [values(1 + i % 4, i) for i in range(40)]
    torch._C._cuda_clearCublasWorkspaces()  # of earlier tests: a graph's capture frees them
    before = torch.cuda.memory_allocated()
    run = result.module(cuda_graphs=graphs)
    for x in given:
        run(x)
    torch.cuda.synchronize()
    watched = [weakref.ref(o) for o in (worker(run), *run._parts)]
    del run
    assert [o() for o in watched if o() is not None] == []
    assert torch.cuda.memory_allocated() == before


def test_engines_of_one_program_share_their_scratch_memory() -> None:
    run = compiled(Mixed(), X, dynamic=BATCH, **APART).module()
    run(values(4, 0))
    sessions = [r.session for r in worker(run).executor.runners if hasattr(r, "session")]
    assert len(sessions) == 2
    assert sessions[0].arena is sessions[1].arena
    assert sessions[0].arena.nbytes == max(s.loaded.device_memory for s in sessions)


@pytest.mark.skipif(not CAPABILITIES.runtime_config, reason="this TensorRT keeps no kernels")
def test_kernels_are_kept_for_the_next_start(tmp_path: Path, caplog: Any) -> None:
    result = compiled(Mixed(), X, dynamic=BATCH)
    expected = result.module(runtime_cache=str(tmp_path))(values(4, 0))
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    again = result.module(runtime_cache=str(tmp_path))(values(4, 0))
    assert "compiled again" not in caplog.text
    file.write_bytes(b"rubbish" * 100)
    third = result.module(runtime_cache=str(tmp_path))(values(4, 0))
    assert "do not match their checksum" in caplog.text
    assert file.read_bytes() != b"rubbish" * 100 and len(data) > 0
    for results in (again, third):
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.skipif(not CAPABILITIES.runtime_config, reason="this TensorRT keeps no kernels")
def test_kernels_serve_a_network_with_other_weights(tmp_path: Path) -> None:
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).half().cuda()
    kept = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 8)).half().eval().cuda()
        result = compiled(model, x).module(runtime_cache=str(tmp_path))(x)
        with torch.no_grad():
            assert torch.allclose(result, model(x), atol=2e-3)
        (file,) = tmp_path.iterdir()
        kept.append((file.name, file.stat().st_ino))
    assert kept[0] == kept[1], "the second start compiled something"


@pytest.mark.parametrize("strategy", ["none", "eager", "lazy"])
def test_every_kernel_specialization_runs(strategy: str) -> None:
    run = compiled(Mixed(), X, dynamic=BATCH).module(kernel_specialization=strategy)
    for n in (1, 5, 64):
        x = values(n, n)
        assert torch.equal(run(x)[0].cpu(), Mixed()(x.cpu())[0])
