"""What a model keeps from one call to the next follows, or is refused by name and line; what repeats is no state."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import pipeline

RANGE = ({0: torch.export.Dim("n", min=1, max=4)},)


class Holder:
    """An object that is no module."""

    def __init__(self) -> None:
        self.total = torch.zeros(3)


class Keeps(nn.Module):
    """Keeps something of a call: two buffers, tensors and numbers as attributes, objects."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("last", torch.zeros(3, dtype=dtype))
        self.register_buffer("other", torch.ones(3, dtype=dtype))
        self.state: torch.Tensor | None = None
        self.plain, self.calls, self.is_begun = torch.zeros(3), 0, False
        self.seen: list[torch.Tensor] = []
        self.table: dict[str, Any] = {"rows": [torch.zeros(3)]}
        self.holder = Holder()


Step = Callable[[Any, torch.Tensor], torch.Tensor]


def keeping(step: Step, *dtype: torch.dtype) -> nn.Module:
    """A module whose ``forward`` is this function, by its name too: torch notes lines of such functions alone."""
    forward = FunctionType(step.__code__.replace(co_name="forward"), globals())
    return type("Keeping", (Keeps,), {"forward": forward})(*dtype).eval()


def sums(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.last = m.last + x.sum(0).to(m.last.dtype)
    return x + m.last


def returns_the_one_before(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    before = m.last
    m.last = x[-1].to(before.dtype)
    return before.to(x.dtype).expand(x.shape)


def swaps(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.last.add_(x.sum(0).to(m.last.dtype))
    m.last, m.other = m.other, m.last
    return x * m.last + 2 * m.other


def registers_again(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.register_buffer("last", m.last + x.sum(0).to(m.last.dtype))
    return x * m.last


def assigns_data(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    before = m.last
    m.last.data = m.last.data + x.sum(0).to(m.last.dtype)
    return x * m.last + before


def writes_data(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.last.data.mul_(2).add_(x.sum(0).to(m.last.dtype))
    return x * m.last


FOLLOWED = (sums, returns_the_one_before, swaps, registers_again, assigns_data, writes_data)


def alone_and_within(step: Step, *dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    return keeping(step, *dtype), nn.Sequential(nn.Sequential(keeping(step, *dtype))).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("step", FOLLOWED, ids=lambda step: step.__name__)
def test_buffers_that_a_model_assigns_follow(step: Any, dtype: torch.dtype) -> None:
    for model in alone_and_within(step, dtype):
        eager = copy.deepcopy(model)
        compiled = pipeline.default(min_block_size=1)(model, args=(torch.ones(2, 3),), dynamic_shapes=RANGE)
        for rows in (1, 3, 2):
            x = torch.randint(-3, 4, (rows, 3)).float()
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), eager(x))
        assert all(torch.equal(b, torch.full_like(b, n.endswith("other"))) for n, b in model.named_buffers())
    program = pipeline.capture(model, (torch.ones(2, 3),), device="cuda")
    assert {output.kind for output in program.outputs} == {"buffer", "user"}


def state_of_none(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.state = (torch.zeros(3) if m.state is None else m.state) + x.sum(0)
    return x * m.state


def first_input(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    if m.state is None:
        m.state = x.sum(0)
    return x - m.state


def constant_state(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.plain = m.plain + 1
    return x * m.plain


def plain_in_place(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.plain[0] += x.sum()
    return x * m.plain


def number(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return x * m.calls


def flag(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    y = x * 3 if m.is_begun else x
    m.is_begun = True
    return y


def grows(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.seen.append(x.sum(0))
    return x + torch.stack(m.seen).sum(0)


def nested(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.table["rows"][0] = m.table["rows"][0] + x.sum(0)
    return x + m.table["rows"][0]


def entry(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.table["sum"] = m.table.get("sum", 0) + x.sum(0)
    return x + m.table["sum"]


def of_an_object(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.holder.total = m.holder.total + x.sum(0)
    return x + m.holder.total


def longer(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.last = torch.cat([m.last, x.sum(0)])
    return x + m.last.sum()


def weight(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.layer.weight.data = m.layer.weight.data * 2
    return m.layer(x)


def weight_in_place(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    m.layer.weight.data.clamp_(-0.1, 0.1)
    return m.layer(x)


REFUSED = {
    state_of_none: r"state \(.*m\.state = \(torch",
    first_input: r"state \(.*m\.state = x\.sum",
    constant_state: r"plain \(.*m\.plain = m\.plain \+ 1",
    plain_in_place: r"plain, a tensor that is not a buffer \(.*m\.plain\[0\] \+= x",
    number: r"calls \(.*m\.calls \+= 1",
    flag: r"is_begun \(.*m\.is_begun = True",
    grows: r"seen \(.*m\.seen\.append",
    nested: r"table \(.*m\.table",
    entry: r"table \(.*m\.table",
    of_an_object: r"holder\.total \(.*m\.holder\.total = ",
    longer: r"last \(.*m\.last = torch\.cat",
    weight: r"layer\.weight \(.*m\.layer\.weight\.data = ",
    weight_in_place: r"layer\.weight .*\(.*clamp_",
}


@pytest.mark.parametrize("step", REFUSED, ids=lambda step: step.__name__)
def test_other_state_is_refused_by_name_and_line(step: Any) -> None:
    for model, prefix in zip(alone_and_within(step), ("", r"0\.0\."), strict=True):
        before = [dict(vars(module)) for module in model.modules()]
        with pytest.raises(pipeline.CaptureError, match=rf"\b{prefix}{REFUSED[step]}"):
            pipeline.capture(model, (torch.ones(2, 3),), dynamic_shapes=RANGE)
        assert [dict(vars(module)) for module in model.modules()] == before
    if step in (first_input, number, flag, grows, longer, weight):  # what others keep is on the CPU from the beginning
        with pytest.raises(pipeline.CaptureError, match=REFUSED[step]):
            pipeline.capture(model, (torch.ones(2, 3),), device="cuda")


class Views(nn.Module):
    """A buffer, and part of it as another."""

    def __init__(self, written: str) -> None:
        super().__init__()
        self.written = written
        self.register_buffer("whole", torch.zeros(3))
        self.register_buffer("part", self.whole[1:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3] -> [N, 3]"""
        if self.written:
            getattr(self, self.written).add_(1)
        return x + self.whole + self.part.sum()


def test_a_buffer_that_is_a_view_of_one_that_is_written() -> None:
    x = torch.ones(2, 3)
    for written, read in (("whole", "part"), ("part", "whole")):
        with pytest.raises(
            pipeline.CaptureError, match=rf"writes to {written} \(.*add_.*reads {read}, which shares its memory"
        ):
            pipeline.capture(Views(written).eval(), (x,))
    torch.testing.assert_close(pipeline.default(min_block_size=1)(Views("").eval(), args=(x,))(x), x)


def repeats(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    """Counts, notes sizes, fills caches in, and leaves a result for others; a second call computes the same."""
    m.calls += 1
    m.shape, m.layer, m.plain = tuple(x.shape), m.layer.to(x.dtype), m.plain.to(x.dtype)
    if m.state is None:
        m.state = torch.arange(3.0)
    if x.shape[0] not in m.table:
        m.table[x.shape[0]] = m.state.type_as(x) * torch.ones_like(x[0]) + m.layer.bias
    m.result = m.layer(x) * m.table[x.shape[0]] + m.state * torch.tensor(0.5)
    m.result[0] = 2.0
    return m.result


def fills_in(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    """Fills caches in, of weights and constants, in the dtype and on the device of an input."""
    if m.state is None:
        m.state = torch.arange(3).type_as(x) + x.new_full((3,), 2) * torch.ones_like(x[0])
        m.state[1:] = 7
    if "bias" not in m.table:
        m.table["bias"] = m.layer.bias * 2
    return x * m.state + m.table["bias"]


@pytest.mark.parametrize(("step", "exports"), [(repeats, 2), (fills_in, 1)])
def test_what_each_call_computes_anew_is_no_state(
    step: Any, exports: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Any] = []
    own = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: (made.append(1), own(*args, **kwargs))[1])
    model = keeping(step)
    model.layer.double()
    eager = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING):
        compiled = pipeline.default(min_block_size=1)(model, args=(torch.ones(2, 3),))
    assert not [record for record in caplog.records if record.name.startswith("pipeline")]
    assert len(made) == exports
    for _ in range(2):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), eager(x).detach())


def counts_rows(m: Keeps, x: torch.Tensor) -> torch.Tensor:
    """Notes a dtype; writes in place to what is made of a size, which both calls read."""
    rows = torch.arange(x.shape[0]) * 1.0
    rows += 1
    m.plain, m.note = m.plain.to(x.dtype), x.dtype
    return x + rows[:, None] * m.plain.sum() + x.shape[0]


def test_sizes_are_not_written_by_what_is_computed_of_them() -> None:
    model = keeping(counts_rows)
    model.plain = model.plain.double()
    eager = copy.deepcopy(model)
    compiled = pipeline.default(min_block_size=1)(model, args=(torch.ones(2, 3),), dynamic_shapes=RANGE)
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), eager(x).detach())


class Leaves(nn.Module):
    """Leaves what it computes for others to read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N]"""
        self.left_for_others = x * 2
        return x + 1


def test_what_no_code_of_the_model_reads_is_told(caplog: pytest.LogCaptureFixture) -> None:
    pipeline.capture(Leaves(), (torch.ones(3),))
    assert "assigns left_for_others (test_model_state.py" in caplog.text
    assert "the compiled program does not" in caplog.text


def adds(x: torch.Tensor, y: Any) -> Any:
    y.update(c=x.sin(), a=y["a"] * 2) if isinstance(y, dict) else y.append(x * 2)
    return y


def puts(x: torch.Tensor, y: Any) -> Any:
    y["a" if isinstance(y, dict) else 0] = x + 1
    return y


def reads(x: torch.Tensor, y: Any) -> Any:
    (y["a"] if isinstance(y, dict) else y[0]).add_(x)
    return [*y.values()] if isinstance(y, dict) else [*y, x]


@pytest.mark.parametrize("function", [adds, puts, reads])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("make", [lambda x: {"a": x}, lambda x: [x]], ids=["dict", "list"])
def test_entries_of_inputs_that_change_are_told(
    function: Any, make: Any, by_name: bool, caplog: pytest.LogCaptureFixture
) -> None:
    x, (args, kwargs) = torch.ones(3), ((), {"y": make(torch.ones(3))}) if by_name else ((make(torch.ones(3)),), {})
    compiled = pipeline.default(min_block_size=1)(Draws(function), (x, *args), kwargs)
    told = "changes entries of its input y: the compiled program does not" in caplog.text
    assert told == (function is not reads)
    torch.testing.assert_close(compiled(x, make(x.clone())), function(x, make(x.clone())))


def seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + torch.rand(3)


def seeds_the_generator(x: torch.Tensor) -> torch.Tensor:
    torch.default_generator.manual_seed(0)
    return x + torch.rand(3)


def has_a_generator(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


class Draws(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: Any = None) -> Any:
        """[3] -> any"""
        return self.function(x) if y is None else self.function(x, y)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (seeds, r"seeds torch's random generator at test_model_state\.py:\d+, torch\.manual_seed\(0\)"),
        (seeds_the_generator, "seeds torch's random generator when it is called"),
        (has_a_generator, r"draws with a torch\.Generator of its own"),
    ],
)
def test_a_model_that_seeds_is_refused(function: Any, words: str) -> None:
    before = torch.get_rng_state()
    with pytest.raises(pipeline.CaptureError, match=words):
        pipeline.capture(Draws(function), (torch.ones(3),))
    assert torch.equal(torch.get_rng_state(), before)
