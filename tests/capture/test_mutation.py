"""Functionalisation by rewriting gives what eager gives, with inputs and buffers as eager leaves them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.aten.op_predicates import mutates_argument
from pipeline.program import Program

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda t: t[1:],
    "every second": lambda t: t[..., ::2],
    "negative": lambda t: t[..., -2:],
    "select": lambda t: t.select(0, -1),
    "transpose": lambda t: t.transpose(0, -1),
    "permute": lambda t: t.permute(*range(1, t.dim()), 0),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "flatten": lambda t: t.flatten(),
    "reshape": lambda t: t.reshape(-1, 2) if t.numel() % 2 == 0 else t.reshape(-1),
    "view": lambda t: t.view(t.shape),
    "unflatten": lambda t: t.unflatten(0, (1, t.shape[0])),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(0),
    "diagonal": lambda t: t.diagonal() if t.dim() > 1 else t,
    "chunk": lambda t: t.chunk(2)[-1],
    "split": lambda t: t.split(2)[0],
    "unbind": lambda t: t.unbind(0)[0],
    "detach": lambda t: t.detach(),
    "contiguous": lambda t: t.contiguous(),
    "float": lambda t: t.float(),
    "expand": lambda t: t.expand(t.shape),
    "expand_as": lambda t: t.expand_as(t.clone()),
    "complex": lambda t: torch.view_as_real(torch.view_as_complex(t)) if t.shape[-1] == 2 else t,
    "dropout": lambda t: torch.nn.functional.dropout(t, 0.5, training=False),
}
"""What may share the memory of what it is made from, or not, as the strides have it."""

WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "add_": lambda t, other: t.add_(1.5),
    "mul_": lambda t, other: t.mul_(other.flatten()[0]),
    "copy_": lambda t, other: t.copy_(other.sum()),
    "doubles": lambda t, other: t.add_(other.double().sum()),
    "fill_": lambda t, other: t.fill_(3.0),
    "zero_": lambda t, other: t.zero_(),
    "relu_": lambda t, other: t.relu_(),
    "itself": lambda t, other: t.sub_(t.sum(0, keepdim=True)),
    "masked_fill_": lambda t, other: t.masked_fill_(t > 0, -1.0),
    "setitem": lambda t, other: t.__setitem__(0, 2.0),
}

STEPS = st.lists(
    st.tuples(st.sampled_from(["view", "view", "write", "read"]), st.integers(0, 99), st.integers(0, 99)),
    min_size=2,
    max_size=8,
)


class Writer(torch.nn.Module):
    """Views of an input, a buffer and a value of its own, writes to any of them, and what is read in between."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.eval()
        self.register_buffer("state", torch.arange(12.0).reshape(3, 4) / 7)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        values, read = [x, self.state, x * 2], []
        for what, which, how in self.steps:
            value = values[which % len(values)]
            if what == "view" and value.dim() and value.shape[0] > 1:
                values.append(list(VIEWS.values())[how % len(VIEWS)](value))
            elif what == "write" and value.dim():
                list(WRITES.values())[how % len(WRITES)](value, values[how % 3])
            elif what == "read":
                read.append(value + 1)
        return [*read, *(value * 1 for value in values)]


def called(program: Program, model: torch.nn.Module, x: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """The outputs of a program's graph, and what it writes, by target."""
    tensors = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    given = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            target = program.buffers.get(node.name) or getattr(program.constants.get(node.name), "name", None)
            given.append(program.parameters[target] if target in program.parameters else tensors.get(target, x))
    results = program.graph_module(*given)
    kinds = [output.kind for output in program.outputs]
    written = {o.target: r for o, r in zip(program.outputs, results, strict=True) if o.kind != "user"}
    return [r for r, kind in zip(results, kinds, strict=True) if kind == "user"], written


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that torch traces again."""
    again: list[str] = []
    own = torch.export.ExportedProgram.run_decompositions

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        again.append(str(self.graph))
        return own(self, *args, **kwargs)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", noted)
    return again


def agrees(program: Program, model: torch.nn.Module, x: torch.Tensor) -> None:
    """Outputs, buffer and input are what eager gives and leaves."""
    eager, after = copy.deepcopy(model), x.clone()
    expected = eager(after)
    assert not any(map(mutates_argument, program.graph.nodes))
    found, written = called(program, model, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(written.get("state", model.state), eager.state, rtol=0, atol=0)
    torch.testing.assert_close(written.get("x", x), after, rtol=0, atol=0)


@given(STEPS)
def test_what_is_written_is_read_as_in_eager(steps: list[tuple[str, int, int]]) -> None:
    model, x = Writer(steps), torch.arange(12.0).reshape(3, 4) - 5.5
    try:
        copy.deepcopy(model)(x.clone())
    except RuntimeError:  # a view of what has no such view
        return
    agrees(pipeline.capture(model, (x,)), model, x)


class Dynamic(Writer):
    """Writes to parts of what has sizes that vary."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        flat = x.view(-1)
        flat[: x.shape[0]].fill_(7.0)
        x[1:].t().mul_(2)
        self.state.flatten()[2:5].copy_(x[0, :3])
        rows = (x + 1).unsqueeze(1)
        rows[:, 0, 1:-1] = self.state[0, 0]
        return [x, rows.sum(1), self.state[:1].expand(x.shape[0], 4) + x]


class Promoted(Writer):
    """Writes of another dtype than what they are written to, and Python's operators."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x.add_(x.double().sum())
        half = x.half()
        half += x
        mask = x > 0
        mask &= x < 3
        count = mask.int()
        count *= 2
        count[0] //= torch.tensor(3)
        index = torch.tensor([1, 2, 0])
        index += 1
        return [half, mask, count, index]


class Regions(Writer):
    """Writes within regions that torch.export sets apart."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        with torch.no_grad():
            y[0] = 1.0
            with torch.enable_grad():
                self.state += y.sum()
        with torch.autocast("cpu", enabled=False):
            y = y @ y.t()
        return [y.relu_(), self.state + 1]


class Turned(Writer):
    """Writes to pairs as complex numbers, to complex numbers as pairs, and to what is expanded to its own size."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        pairs = x.view(3, 2, 2)
        turned = torch.view_as_complex(pairs)
        turned.mul_(2.0)
        turned[0] = 1.0
        again = torch.view_as_real(turned * 2)
        again[..., 0].add_(1.5)
        whole = x.expand_as(self.state)
        whole.relu_()
        return [pairs, again, torch.view_as_real(turned), whole]


def test_sizes_may_vary(traces: list[str]) -> None:
    model, x = Dynamic([]), torch.arange(12.0).reshape(3, 4)
    program = pipeline.capture(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim("rows", min=2, max=9)}})
    for rows in (3, 2, 7):
        agrees(program, model, torch.arange(4.0 * rows).reshape(rows, 4))
    assert not traces


@pytest.mark.parametrize("kind", [Promoted, Regions, Turned])
def test_writes_need_no_second_trace(kind: type[Writer], traces: list[str]) -> None:
    model, x = kind([]), torch.arange(12.0).reshape(3, 4) - 5.5
    agrees(pipeline.capture(torch.export.export(model, (x.clone(),))), model, x)
    assert not traces


class Training(Writer):
    """Writes that only torch's functionalisation knows."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.batch_norm(x, self.state[0], self.state[1] + 1, training=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_other_writes_are_left_to_torch(traces: list[str], dtype: torch.dtype) -> None:
    model, x = Training([]).to(dtype), (torch.arange(12.0).reshape(3, 4) - 5.5).to(dtype)
    program = pipeline.capture(model, (x,))
    assert traces
    module = pipeline.default()(program).module("reference")
    torch.testing.assert_close(module(x), model(x))
    torch.testing.assert_close(module.state_dict(), model.state_dict())


class Norms(torch.nn.Module):
    """A norm whose operator does not declare that it writes statistics; torch.export drops the write."""

    def __init__(self, norm: Callable[..., torch.Tensor], training: bool) -> None:
        super().__init__()
        self.norm, self.training = norm, training
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x, None, None, self.mean, self.mean + 1, self.training, 0.1, 1e-5)


NORMS = {
    "of a batch": lambda *args: torch.native_batch_norm(*args)[0],
    "of images": lambda *args: torch.instance_norm(*args, False),
}


@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_not_lost(name: str) -> None:
    with pytest.raises(pipeline.CaptureError, match=r"(?s)running statistics.*eval"):
        pipeline.capture(Norms(NORMS[name], True), (torch.ones(2, 4, 3),))
    pipeline.capture(Norms(NORMS[name], False), (torch.ones(2, 4, 3),))


def test_a_default_of_the_write_alone_is_kept() -> None:
    """``bernoulli_()`` is that of 0.5, for which ``bernoulli`` has no default."""

    class Draws(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone().bernoulli_()

    x = torch.zeros(64)
    module = pipeline.default()(Draws(), (x,)).module("reference")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = module(x)
        torch.manual_seed(0)
        assert torch.equal(ours, Draws()(x))


def test_sizes_that_data_decides_are_made_once() -> None:
    """Whether an operator gives a view is tried out on fakes; the sizes that it makes up there are nobody's."""

    class Repeats(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.repeat_interleave(torch.tensor([1, 2, 0, 3]), 1)

    program = pipeline.capture(Repeats(), (torch.randn(3, 4, 5),))
    values = (n.meta.get("val") for n in program.graph.nodes)
    mode = next(v.fake_mode for v in values if isinstance(v, torch.Tensor))  # type: ignore[attr-defined]
    assert not mode.shape_env.pending_fresh_unbacked_symbols


def test_what_is_written_whole_is_not_read() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(6, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cache[: self.cache.shape[0]].add_(x)
            return self.cache[:6] * 2

    x = torch.randn(6, 4)
    program = pipeline.capture(Model().eval(), (x,))
    assert "slice_scatter" not in str(program)
    module = pipeline.default()(program).module("reference")
    assert torch.equal(module(x), 2 * x) and torch.equal(module(x), 4 * x)


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "written before": lambda x: (v := x * 2, x.add_(1), v.copy_(x))[0],
    "written by a copy": lambda x: (v := torch.zeros(2, 4), x.copy_(v + 1), v.copy_(x))[0],
    "a view": lambda x: (v := x * 2, x.add_(1), v.copy_(x.view(2, 4)))[0],
    "not written": lambda x: torch.zeros(2, 4).copy_(x.add(0)),
}


@pytest.mark.parametrize("form", COPIES)
def test_a_copy_of_an_input_shares_no_memory_with_it(form: str) -> None:
    class Copying(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return COPIES[form](x)

    module = pipeline.default()(Copying(), (torch.randn(2, 4),)).module("reference")
    ours, theirs = torch.ones(2, 4), torch.ones(2, 4)
    result, expected = module(ours), Copying()(theirs)
    assert torch.equal(result, expected) and torch.equal(ours, theirs)
    result.zero_()
    assert torch.equal(ours, theirs)


OLD: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "delay line": lambda s, x: (s.b * 1, s.b.copy_(s.a), s.a.copy_(x))[0],
    "delay line of slices": lambda s, x: (s.b * 1, s.b[:6].copy_(s.a), s.a[:6].copy_(x))[0],
    "the other order": lambda s, x: (s.a * 1, s.a.copy_(s.b), s.b.copy_(x))[0],
    "views": lambda s, x: (s.b * 1, s.b.copy_(s.a.T), s.a.copy_(x))[0],
    "exchange": lambda s, x: (t := s.a.clone(), s.a.copy_(s.b), s.b.copy_(t), s.a - s.b + x)[-1],
    "an input": lambda s, x: (x.copy_(s.a), s.a.add_(1), s.a + x)[-1],
    "an input and a buffer": lambda s, x: (t := x.clone(), x.copy_(s.a), s.a.copy_(t), s.a + x)[-1],
}


class Delayed(torch.nn.Module):
    """Two buffers, written in one of these forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("a", torch.zeros(6, 6))
        self.register_buffer("b", torch.ones(6, 6) * 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[6, 6] -> [6, 6]"""
        return OLD[self.form](self, x)


@pytest.mark.parametrize("fallback", [(), ("aten.mul.Tensor", "aten.clone.default", "aten.permute.default")], ids=str)
@pytest.mark.parametrize("form", OLD)
def test_old_values_are_written_before_they_change(form: str, fallback: tuple[str, ...]) -> None:
    eager, compile = Delayed(form).eval(), pipeline.default(torch_executed_ops=fallback)
    module = compile(copy.deepcopy(eager), args=(torch.zeros(6, 6),)).module("reference")
    for step in range(4):
        x = torch.arange(36.0).reshape(6, 6) + step
        ours, theirs = x.clone(), x.clone()
        assert torch.equal(module(ours), eager(theirs)) and torch.equal(ours, theirs)
        assert all(torch.equal(value, eager.get_buffer(name)) for name, value in module.named_buffers())


@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize("kind", [torch.nn.GRUCell, torch.nn.LSTMCell, torch.nn.RNNCell])
def test_a_cell_reads_what_is_written(kind: type[torch.nn.RNNCellBase], device: str | None) -> None:
    """Its kernel for a GPU has no shapes of its own, and its result is no view."""

    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(4, 4)

        def forward(self, x: torch.Tensor, to: torch.Tensor) -> Any:
            """[N, 4], [N] -> [N, 4]"""
            gathered = x.new_zeros(x.shape).index_add_(0, to, x)
            gathered[0] = 1
            return self.cell(gathered, self.cell(gathered))

    model, x, to = Summed().eval(), torch.randn(5, 4), torch.tensor([0, 3, 3, 1, 0])
    compile = pipeline.default(require_full_compilation=True, min_block_size=1, device=device)
    torch.testing.assert_close(compile(model, args=(x, to)).module("reference")(x, to), model(x, to))


@pytest.mark.parametrize("size", [5, 0])
def test_a_result_that_resizes_its_memory_is_refused(size: int) -> None:
    class Added(torch.nn.Module):
        def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
            """[N], [N] -> [N], which is written to the second"""
            return torch.add(x, 1, out=out)

    class Summed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.empty(size))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[N] -> []"""
            return torch.sum(x, 0, out=self.total)

    with pytest.raises(pipeline.CaptureError, match=rf"resizes its input out from \[{size}\] to \[10\]"):
        pipeline.capture(Added(), (torch.ones(10), torch.empty(size)))
    with pytest.raises(pipeline.CaptureError, match=rf"resizes its buffer total from \[{size}\] to \[\]"):
        pipeline.capture(Summed(), (torch.ones(10),))
    module = pipeline.default()(Added(), (torch.ones(10), out := torch.empty(10))).module(executor="reference")
    assert torch.equal(module(torch.ones(10), out), torch.full((10,), 2.0)) and out[0] == 2
