"""Engines of little networks, driven directly: shapes, dtypes, streams, memory, and what is refused."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from pipeline import ExecutionError
from pipeline.runtime.engine_buffers import OutputBuffer
from pipeline.runtime.engine_load import LIBRARY
from pipeline.trt import CAPABILITIES, to_trt, trt
from tests.gpu.networks import Ranges, engine_of, on_gpu, runner_of
from tests.gpu.threads import in_threads
from tests.runtime.engine_runner import EngineRunner
from tests.runtime.reference_networks import Net

pytestmark = pytest.mark.gpu

SUM = trt.ElementWiseOperation.SUM
RANGE = {"in0": ((1, 3), (4, 3), (8, 3))}


def doubled(value: torch.Tensor, dynamic: tuple[int, ...] = ()) -> Net:
    """x + x, and OR for bools."""
    net = Net()
    x = net.input(value, dynamic)
    operation = trt.ElementWiseOperation.OR if value.dtype == torch.bool else SUM
    return net.output(net.net.add_elementwise(x, x, operation).get_output(0))


def one(runner: EngineRunner, *inputs: Any) -> torch.Tensor:
    (result,) = runner(inputs)
    assert result.is_cuda
    return result


@pytest.fixture(scope="module")
def batched() -> EngineRunner:
    """x + x for x float32[1..4..8, 3]"""
    return runner_of(doubled(torch.ones(4, 3), dynamic=(0,)), RANGE)


@pytest.mark.parametrize("batch", [1, 4, 8, 3, 1])
def test_dynamic_batch(batched: EngineRunner, batch: int) -> None:
    x = torch.randn(batch, 3, device="cuda")
    assert torch.equal(one(batched, x), x + x)


@pytest.mark.parametrize("shape", [(9, 3), (4, 2), (4, 3, 1)], ids=str)
def test_a_shape_outside_the_range_is_refused_with_tensorrts_words(batched: EngineRunner, shape: Any) -> None:
    with pytest.raises(
        ExecutionError, match=r"refused the shape .* of input in0, built for \[1, 3\] to \[8, 3\]"
    ) as info:
        batched([torch.ones(shape, device="cuda")])
    assert "gave no reason" not in str(info.value)
    x = torch.randn(4, 3, device="cuda")
    assert torch.equal(one(batched, x), x + x), "the runner works on after a refusal"


def test_a_wrong_static_shape_is_refused() -> None:
    runner = runner_of(doubled(torch.ones(4, 3)))
    with pytest.raises(ExecutionError, match=r"the shape \[5, 3\] of input in0"):
        runner([torch.ones(5, 3, device="cuda")])


DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)], ids=str)
def test_every_dtype_and_rank_0(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    (result,) = on_gpu(doubled(x))
    assert (result.dtype, result.shape) == (dtype, x.shape)
    assert torch.equal(result, x | x if dtype == torch.bool else x + x)


def test_int64_is_exact_beyond_int32() -> None:
    x = torch.tensor([2**40 + 1, -(2**33), 2**62 - 1])
    assert torch.equal(on_gpu(doubled(x))[0], x + x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_tensors_without_elements(dtype: torch.dtype) -> None:
    x = torch.empty(0, 3, dtype=dtype)
    (result,) = on_gpu(doubled(x))
    assert (result.dtype, result.shape) == (dtype, (0, 3))


def test_a_dynamic_size_may_be_zero() -> None:
    """Also where the output then has elements: a sum over nothing is 0."""
    net = Net()
    x = net.input(torch.ones(2, 3), dynamic=(0,))
    total = net.net.add_reduce(x, trt.ReduceOperation.SUM, 1, False).get_output(0)
    net.output(total, net.net.add_elementwise(x, x, SUM).get_output(0))
    runner = runner_of(net, {"in0": ((0, 3), (2, 3), (4, 3))})
    for batch in (2, 0, 4, 0):
        x = torch.randn(batch, 3, device="cuda")
        total, twice = runner([x])
        assert twice.shape == (batch, 3), f"at batch {batch}"
        assert torch.equal(twice, x + x), f"at batch {batch}"
        torch.testing.assert_close(total, x.sum(0))


def sliced() -> tuple[Net, Ranges]:
    """x[:n], where n is an int64 input of rank 0; and n + n."""
    net = Net()
    x, n = net.input(torch.arange(12.0)), net.input(torch.tensor(4))
    size = net.net.add_unsqueeze(n, net.ints(0)).get_output(0)
    layer = net.net.add_slice(x, (0,), (1,), (1,))
    layer.set_input(2, size)
    net.output(layer.get_output(0), net.net.add_elementwise(n, n, SUM).get_output(0))
    return net, {"in1": ((1,), (4,), (12,))}


@pytest.mark.parametrize("place", ["int", "cpu", "cuda"])
def test_an_int_is_a_shape_input_of_rank_0(place: str) -> None:
    runner = runner_of(*sliced())
    x = torch.arange(12.0, device="cuda")
    for n in (1, 12, 4):
        head, twice = runner([x, n if place == "int" else torch.tensor(n, device=place)])
        assert head.tolist() == list(range(n)), runner._session.known
        assert (twice.tolist(), twice.dtype, twice.is_cuda) == (2 * n, torch.int64, True), runner._session.known


def test_a_shape_input_outside_the_range_is_an_error() -> None:
    runner = runner_of(*sliced())
    x = torch.arange(12.0, device="cuda")
    with pytest.raises(ExecutionError):
        runner([x, 13])
    assert runner([x, 3])[0].tolist() == [0.0, 1.0, 2.0]


def test_ints_follow_each_other_without_waiting() -> None:
    """The host memory of one run is not that of the next."""
    runner = runner_of(*sliced())
    x = torch.arange(12.0, device="cuda")
    results = [runner([x, 1 + i % 12])[1] for i in range(200)]
    assert [int(r) for r in results] == [2 * (1 + i % 12) for i in range(200)]


def test_outputs_are_never_shared(batched: EngineRunner) -> None:
    x, y = torch.randn(4, 3, device="cuda"), torch.randn(4, 3, device="cuda")
    first, second = one(batched, x), one(batched, y)
    assert first.data_ptr() not in (second.data_ptr(), x.data_ptr())
    assert torch.equal(first, x + x) and torch.equal(second, y + y)
    first.zero_()
    assert torch.equal(one(batched, x), x + x)


VIEWS = {
    "offset": lambda: torch.randn(100, device="cuda")[1:13].view(4, 3),
    "transposed": lambda: torch.randn(3, 4, device="cuda").t(),
    "strided": lambda: torch.randn(4, 6, device="cuda")[:, ::2],
    "expanded": lambda: torch.randn(1, 3, device="cuda").expand(4, 3),
    "cpu": lambda: torch.randn(4, 3),
    "float64": lambda: torch.randn(4, 3, device="cuda").double(),
    "gradient": lambda: torch.randn(4, 3, device="cuda", requires_grad=True),
}


@pytest.mark.parametrize("view", VIEWS)
def test_inputs_of_any_layout_and_place(batched: EngineRunner, view: str) -> None:
    x = VIEWS[view]()
    assert torch.equal(one(batched, x), (x + x).detach().cuda().float())


def test_another_dtype_is_refused(batched: EngineRunner) -> None:
    with pytest.raises(ExecutionError, match=r"in0 is float16\[4, 3\], but the engine takes in0: float32\[-1, 3\]"):
        batched([torch.ones(4, 3, device="cuda").half()])


def heavy() -> Net:
    """Eight products of 512 x 512 matrices, so that runs on two streams would overlap if nothing kept them apart."""
    net = Net()
    x = net.input(torch.eye(512))
    none = trt.MatrixOperation.NONE
    weight = net.constant(torch.eye(512).roll(1, 0))
    for _ in range(8):
        x = net.net.add_matrix_multiply(x, none, weight, none).get_output(0)
    return net.output(x)


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_runs_on_several_streams_do_not_disturb_each_other(streams: int) -> None:
    """Multiplying by a permutation is exact, also in TF32, for small integers."""
    runner = runner_of(heavy())
    lanes: list[Any] = [torch.cuda.Stream() for _ in range(streams)]
    lanes[0] = torch.cuda.default_stream()
    base = torch.arange(512.0, device="cuda").remainder(97).expand(512, 512).contiguous()
    torch.cuda.synchronize()
    results = []
    for i in range(40):
        with torch.cuda.stream(lanes[i % streams]):
            results.append(one(runner, base + i))
    torch.cuda.synchronize()
    wrong = [i for i, r in enumerate(results) if not torch.equal(r, (base + i).roll(-8, 1))]
    assert not wrong, f"runs {wrong} of 40 on {streams} streams gave wrong values"


@pytest.mark.parametrize("default", [True, False])
def test_work_before_and_after_is_in_order(default: bool) -> None:
    """What the stream does before a run is seen by it, and what comes after sees its output."""
    runner = runner_of(heavy())
    stream = torch.cuda.default_stream() if default else torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(512, 512, device="cuda")
        torch.cuda._sleep(20_000_000)
        x += torch.arange(512.0, device="cuda").remainder(97)
        expected = x.roll(-8, 1) + 1
        result = one(runner, x)
        x.zero_()
        result += 1
        del x
        torch.full((512, 512), -1.0, device="cuda")
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


def test_threads_take_turns(batched: EngineRunner) -> None:
    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.default_stream()):
            for i in range(25):
                x = torch.full((1 + (seed + i) % 8, 3), float(seed * 100 + i), device="cuda")
                assert torch.equal(one(batched, x), x + x), f"thread {seed}, run {i}"

    in_threads(work, 6)


def test_two_runners_of_one_engine(batched: EngineRunner) -> None:
    engine, network = engine_of(doubled(torch.ones(4, 3), dynamic=(0,)), RANGE)
    runners = [EngineRunner(engine, network) for _ in range(3)]
    for i, runner in enumerate(runners):
        x = torch.randn(1 + i, 3, device="cuda")
        assert torch.equal(one(runner, x), x + x)


def test_memory_does_not_grow(batched: EngineRunner) -> None:
    x = torch.randn(8, 3, device="cuda")
    sizes = []
    for _ in range(3):
        for _ in range(50):
            one(batched, x)
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_allocated())
    assert sizes[1] == sizes[2], sizes


@pytest.mark.parametrize("shape", [(4, 3), (0, 3), ()], ids=str)
def test_an_output_through_an_allocator(shape: tuple[int, ...]) -> None:
    """As outputs whose shape depends on data get their memory; RTX has no layer that needs it, but asks if told to."""
    runner = runner_of(doubled(torch.ones(shape)))
    session = runner._session
    buffer = session.buffers["out0"] = OutputBuffer(session.known["out0"], session.device)
    session._in.set_output_allocator("out0", buffer)
    results = []
    for i in range(3):
        x = torch.full(shape, float(i), device="cuda")
        results.append((x, one(runner, x)))
    for x, result in results:
        assert result.shape == shape
        assert torch.equal(result, x + x)


@pytest.mark.skipif(not CAPABILITIES.nonzero, reason="this TensorRT has no NonZero")
def test_a_shape_that_depends_on_data() -> None:
    net = Net()
    x = net.input(torch.tensor([0.0, 1.0, 2.0, 0.0]))
    runner = runner_of(net.output(net.net.add_non_zero(x, to_trt(torch.int64)).get_output(0)))
    for values in ([0.0, 1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0] * 4):
        x = torch.tensor(values, device="cuda")
        assert torch.equal(one(runner, x), x.nonzero().t())


def test_a_cut_plan_does_not_load() -> None:
    engine, network = engine_of(doubled(torch.ones(3)))
    cut = attrs.evolve(engine, plan=bytes(engine)[:-100])
    with pytest.raises(ExecutionError, match=r"engine cannot be loaded \(.+\)") as info:
        EngineRunner(cut, network)
    assert "gave no reason" not in str(info.value)


def test_a_plan_of_another_version_says_so() -> None:
    engine, network = engine_of(doubled(torch.ones(3)))
    plan = bytearray(bytes(engine))
    plan[:64] = bytes(64)
    other = attrs.evolve(engine, plan=bytes(plan), library=f"{CAPABILITIES.flavour} 0.9")
    with pytest.raises(ExecutionError, match=f"built by {CAPABILITIES.flavour} 0.9, but {LIBRARY} loads only its own"):
        EngineRunner(other, network)


def test_a_whole_plan_loads_whatever_version_it_claims() -> None:
    """A version-compatible plan of another version does load, so the claim alone is no reason to refuse."""
    engine, network = engine_of(doubled(torch.ones(3)))
    claimed = attrs.evolve(engine, library=f"{CAPABILITIES.flavour} 0.9")
    assert one(EngineRunner(claimed, network), torch.ones(3)).tolist() == [2.0] * 3
