"""How an engine is driven, on a fake one: what is called in which order, what is checked, what memory is given."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from attrs import evolve

from pipeline import ExecutionError
from pipeline.network.description import Network, Profile
from pipeline.runtime import engine_session
from pipeline.runtime.engine_buffers import ALIGNMENT, ActivationMemory, Binding, OutputBuffer, to_engine_memory
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession
from pipeline.trt import CAPABILITIES
from tests.runtime.fake_engine import CPU, HANDLE, FakeEngine, FakeStream

RANGE = Profile((("x", (1, 3), (2, 3), (4, 3)),))


def adder(**options: Any) -> FakeEngine:
    """x[n, 3] + y[3]"""
    return FakeEngine(
        {"x": ("float32", (-1, 3)), "y": ("float32", (3,))},
        {"sum": ("float32", (-1, 3))},
        lambda x, y: [x + y],
        profile=RANGE,
        **options,
    )


class Driven(EngineSession):
    """A session with a stream of its own."""

    def __init__(self, engine: FakeEngine, network: Network | None = None, **options: Any) -> None:
        self.stream: Any = FakeStream(engine.calls)
        super().__init__(LoadedEngine(engine, network or engine.network), self.stream, ActivationMemory(CPU), **options)

    def run(self, inputs: Sequence[Any], **options: Any) -> list[Any]:
        return self(inputs, self.stream, **options)


def session(engine: FakeEngine) -> Any:
    return Driven(engine).run


X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(3)


def test_inputs_then_shapes_then_outputs_then_the_run_on_the_lanes_stream() -> None:
    engine = adder()
    (result,) = session(engine)([X, Y])
    assert torch.equal(result, X + Y)
    assert engine.calls == [
        ("set_optimization_profile_async", 0, HANDLE),
        ("set_input_shape", "x", (2, 3)),
        ("set_input_shape", "y", (3,)),
        ("infer_shapes",),
        ("set_tensor_address", "sum"),
        ("set_device_memory",),
        ("set_tensor_address", "x"),
        ("set_tensor_address", "y"),
        ("execute_async_v3", HANDLE),
    ]


def test_a_second_run_with_the_same_shapes_only_enqueues() -> None:
    engine = adder()
    run = session(engine)
    run([X, Y])
    for i in range(4):
        engine.calls.clear()
        x = X + i
        (result,) = run([x, Y])
        assert torch.equal(result, x + Y)
    assert engine.calls == [("execute_async_v3", HANDLE)]


def aligned(value: torch.Tensor) -> torch.Tensor:
    """The same at an address that TensorRT takes."""
    memory = torch.empty(value.numel() + ALIGNMENT, dtype=value.dtype)
    start = -memory.data_ptr() % ALIGNMENT // value.element_size()
    return memory[start : start + value.numel()].view(value.shape).copy_(value)


def test_an_input_that_stays_where_it_is_is_not_copied() -> None:
    engine = adder()
    run, x, y = Driven(engine), aligned(X), aligned(Y)
    for i in range(3):
        x.fill_(i)
        assert torch.equal(run.run([x, y])[0], x + y)
        assert run.context.addresses["x"] == x.data_ptr()
    other = aligned(X)
    for given in (other, x, other):
        assert torch.equal(run.run([given, y])[0], given + y)
        assert run.context.addresses["x"] not in (x.data_ptr(), other.data_ptr())
    assert run.context.addresses["y"] == y.data_ptr()


def test_the_same_address_in_another_layout_is_not_taken_for_the_same() -> None:
    square = FakeEngine({"x": ("float32", (3, 3))}, {"y": ("float32", (3, 3))}, lambda x: [x.clone()])
    run, x = Driven(square), aligned(torch.arange(9.0).reshape(3, 3))
    for given in (x, x.t(), x):
        assert torch.equal(run.run([given])[0], given)


def test_a_shape_that_comes_again_is_set_again_and_inferred() -> None:
    engine = adder()
    run = session(engine)
    for rows in (2, 4, 2, 4):
        x = torch.full((rows, 3), float(rows))
        engine.calls.clear()
        (result,) = run([x, Y])
        assert torch.equal(result, x + Y)
        assert ("set_input_shape", "x", (rows, 3)) in engine.calls


def test_what_is_large_is_read_and_written_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_session, "COPIED", 12)
    engine = adder()
    run = Driven(engine)
    for _ in range(2):
        (result,) = run.run([X, Y])
        assert torch.equal(result, X + Y)
    assert run.context.addresses["sum"] == result.data_ptr()


def test_outputs_that_nobody_keeps_are_not_copied() -> None:
    run = session(adder())
    (first,), (second,) = run([X, Y], reuse_outputs=True), run([X, Y], reuse_outputs=True)
    assert first.data_ptr() == second.data_ptr()


def test_a_captured_run_reads_and_writes_where_it_is_told() -> None:
    engine = adder()
    run = Driven(engine)
    run.run([X, Y])
    (first,), (second,) = run.run([X, Y], in_place=True), run.run([X, Y], in_place=True)
    assert first.data_ptr() != second.data_ptr() == run.context.addresses["sum"]
    (after,) = run.run([X, Y])
    assert torch.equal(after, X + Y)


def test_the_plans_of_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_session, "PLANS", 2)
    run = Driven(adder())
    for rows in (1, 2, 3, 4, 1):
        x = torch.full((rows, 3), float(rows))
        assert torch.equal(run.run([x, Y])[0], x + Y)
    assert len(run.plans) == 2


@pytest.mark.parametrize(
    "call", ["set_input_shape", "set_tensor_address", "infer_shapes", "execute_async_v3", "set_output_allocator"]
)
def test_whatever_returns_false_is_an_error_with_tensorrts_words(call: str) -> None:
    engine = adder(open=["sum"])
    run = session(engine)
    engine.refuse.add(call)
    with pytest.raises(ExecutionError, match=rf"net: TensorRT refused .*\(fake {call} error\)"):
        run([X, Y])
    engine.refuse.clear()
    assert torch.equal(run([X, Y])[0], X + Y), "a failed run leaves nothing behind"


def test_what_is_refused_when_the_session_begins() -> None:
    engine = adder()
    engine.refuse = {"create_execution_context"}
    with pytest.raises(ExecutionError, match=r"refused an execution context \(fake out of memory\)"):
        session(engine)
    engine.refuse = {"set_optimization_profile_async"}
    with pytest.raises(ExecutionError, match="refused profile 0"):
        session(engine)


def test_shape_inference_may_raise() -> None:
    engine = adder()
    run = session(engine)
    engine.refuse.add("raise")
    with pytest.raises(ExecutionError, match="net: TensorRT cannot infer shapes: fake inference failed"):
        run([X, Y])


def test_a_refused_shape_names_the_range() -> None:
    engine = adder()
    run = session(engine)
    engine.refuse.add("set_input_shape")
    with pytest.raises(ExecutionError, match=r"the shape \[9, 3\] of input x, built for \[1, 3\] to \[4, 3\]"):
        run([torch.zeros(9, 3), Y])


def test_wrong_inputs_are_named() -> None:
    run = session(adder())
    with pytest.raises(ExecutionError, match="net takes 2 inputs, got 1"):
        run([X])
    with pytest.raises(ExecutionError, match=r"input x is int64\[2, 3\], but the engine takes x: float32\[-1, 3\]"):
        run([X.long(), Y])


def test_an_engine_of_another_network_is_named() -> None:
    engine = adder()
    other = evolve(engine.network, outputs=())
    other = evolve(other, inputs=(evolve(engine.network.inputs[0], name="z"),))
    with pytest.raises(ExecutionError, match=r"net has no input or output z, only .*x: float32\[-1, 3\]"):
        Driven(engine, other)


def test_float64_becomes_float32_and_strides_do_not_matter() -> None:
    run = session(adder())
    (result,) = run([X.double().t().contiguous().t(), Y])
    assert torch.equal(result, X + Y)


def test_outputs_are_new_at_every_call() -> None:
    run = session(adder())
    (first,), (second,) = run([X, Y]), run([X, Y])
    assert first.data_ptr() != second.data_ptr()
    second.zero_()
    assert torch.equal(first, X + Y)


def test_tensors_without_elements_have_addresses() -> None:
    """The fake asserts that no address is null and no two are alike."""
    (result,) = session(adder())([torch.empty(0, 3), Y])
    assert result.shape == (0, 3)


def sized(host: tuple[str, ...] = ("n", "count")) -> FakeEngine:
    """n ones, and n itself as an output in host memory."""
    return FakeEngine(
        {"n": ("int64", ())},
        {"ones": ("float32", (-1,)), "count": ("int64", ())},
        lambda n: [torch.ones(int(n)), n.clone()],
        host=host,
    )


@pytest.mark.parametrize("host", [("n", "count"), ()])
def test_an_int_is_a_tensor_of_rank_0_where_the_engine_wants_it(host: tuple[str, ...]) -> None:
    engine = sized(host)
    run = session(engine)
    ones, count = run([4])
    assert ones.tolist() == [1.0] * 4
    assert count.tolist() == 4
    assert (("set_input_shape", "n", ()) in engine.calls) == (not host), "only a tensor on the GPU has its shape set"
    assert ("synchronize" in engine.calls) == bool(host), "an output in host memory is waited for"
    (plan,) = run.__self__.plans.values()
    assert [(name, t.tolist()) for name, t in plan.fixed] == [("n", 4)], "kept as long as runs may read it"


def test_a_tensor_in_host_memory_is_copied() -> None:
    n = torch.tensor(3)
    run = session(sized())
    run([n])
    n.add_(2)
    assert run([n])[0].tolist() == [1.0] * 5, "its values are part of the plan"
    for count in (2, 4):
        n.fill_(count)
        assert run([n], shapes_key="a plan")[0].tolist() == [1.0] * count, "whatever stands for its shape"
    with pytest.raises(ExecutionError, match=r"input n is int64\[1\], but the engine takes n: int64\[\]"):
        run([n.reshape(1)])


def nonzero() -> FakeEngine:
    return FakeEngine({"x": ("float32", (-1,))}, {"where": ("int64", (-1, 1))}, lambda x: [x.nonzero()], open=["where"])


def test_a_shape_that_depends_on_data_is_told_by_the_run() -> None:
    engine = nonzero()
    run = session(engine)
    (first,) = run([torch.tensor([0.0, 1.0, 2.0])])
    (second,) = run([torch.tensor([3.0, 0.0])])
    (none,) = run([torch.zeros(5)])
    assert (first.tolist(), second.tolist(), none.shape) == ([[1], [2]], [[0]], (0, 1))
    assert none.dtype == torch.int64
    assert engine.calls.count(("set_output_allocator", "where")) == 1
    assert ("set_tensor_address", "where") not in engine.calls


def test_memory_of_an_output_belongs_to_the_caller_alone() -> None:
    run = session(nonzero())
    (result,) = run([torch.ones(3)])
    memory = weakref.ref(result.untyped_storage())
    del result
    gc.collect()
    assert memory() is None


def test_an_output_that_finds_no_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(nonzero())
    monkeypatch.setattr(run, "buffers", {"where": Full(run.known["where"], CPU)})
    run.context.allocators = run.buffers
    with pytest.raises(ExecutionError, match="net cannot allocate an output: full"):
        run.run([torch.ones(3)])


class Full(OutputBuffer):
    """No exception leaves the callback: TensorRT is told by a null address."""

    def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
        self.device = torch.device("meta")
        self.error = MemoryError("full")
        return 0


def test_a_buffer_that_was_not_asked_for_gives_nothing() -> None:
    buffer = OutputBuffer(Binding("y", torch.float32, (-1,), False), CPU)
    assert buffer.take_output() is None
    buffer.notify_shape("y", (3,))
    assert buffer.take_output() is None, "a shape without memory is no output"
    address = buffer.reallocate_output_async("y", 0, 12, 256, 0)
    assert address
    buffer.notify_shape("y", (3,))
    result = buffer.take_output()
    assert result is not None and (result.dtype, result.shape) == (torch.float32, (3,))
    assert result.data_ptr() == address
    assert buffer.take_output() is None


def test_an_exception_stays_in_the_callback() -> None:
    buffer = OutputBuffer(Binding("y", torch.float32, (-1,), False), torch.device("cuda", 10**3))
    assert buffer.reallocate_output("y", 0, 12, 256) == 0
    assert buffer.error is not None


@pytest.mark.skipif(not CAPABILITIES.kv_cache_update, reason="this TensorRT has no cache update")
def test_an_output_written_into_an_input_is_written_into_a_copy() -> None:
    """As a cache update does it; the caller's cache stays as it is."""
    engine = FakeEngine(
        {"cache": ("float32", (3,))}, {"new": ("float32", (3,))}, lambda cache: [cache + 1], alias={"new": "cache"}
    )
    run, cache = Driven(engine), torch.zeros(3)
    (new,) = run.run([cache])
    assert (cache.tolist(), new.tolist()) == ([0.0] * 3, [1.0] * 3)
    assert run.context.addresses["new"] == run.context.addresses["cache"] not in (new.data_ptr(), cache.data_ptr())
    run.run([cache])
    assert new.tolist() == [1.0] * 3


def test_inputs_are_aligned_and_contiguous() -> None:
    binding = Binding("x", torch.float32, (3,), False)
    value = torch.arange(1000.0)[1:4]
    made = to_engine_memory(value, binding, CPU)
    assert made.is_contiguous() and torch.equal(made, value)
    aligned = torch.arange(1000.0)
    start = -aligned.data_ptr() % ALIGNMENT // 4
    kept = to_engine_memory(aligned[start : start + 3], binding, CPU)
    assert kept.data_ptr() == aligned.data_ptr() + 4 * start, "what is right already is not copied"


def test_a_negative_view_is_resolved() -> None:
    """The imaginary part of a conjugate is a view whose memory has the other sign."""
    lazy = torch.tensor([1 + 2j]).conj().imag
    assert lazy.is_neg()
    made = to_engine_memory(lazy, Binding("x", torch.float32, (1,), False), CPU)
    assert not made.is_neg() and made.tolist() == [-2.0]


def test_gradients_do_not_matter() -> None:
    (result,) = session(adder())([X.clone().requires_grad_(), Y])
    assert not result.requires_grad
