"""What interrupts a trace, or runs beside it: torch, the model and other threads are as they were."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event, Thread
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import BaseTorchFunctionMode

import pipeline
from pipeline.aten.tracing_thread import one_export
from pipeline.export_fixes import interrupts, patch_contexts
from pipeline.export_fixes.patching import Patches, Replacement, _active_kinds
from pipeline.export_fixes.restore_model_state import restore_model
from pipeline.export_fixes.torch_patches import TABLE

aten = torch.ops.aten


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> None:
    """Each interrupt collects garbage, which is fast where little else is tracked."""
    gc.collect()
    gc.freeze()


class Inherits(dict[str, Any]):
    """An attribute that is inherited is replaced, and then is again."""


class Interrupt:
    """Raise KeyboardInterrupt at one of the moments at which Python may: where a function begins, and behind a call
    of C."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self.at:
                sys.setprofile(None)
                raise KeyboardInterrupt


def interrupted(call: Callable[[], object], at: int) -> tuple[int, BaseException | None]:
    """How many such moments a call had, and the interrupt with its traceback, which keeps what its frames hold."""
    interrupt = Interrupt(at)
    try:
        sys.setprofile(interrupt)
        call()
    except KeyboardInterrupt as error:
        return interrupt.seen, error
    finally:
        sys.setprofile(None)
    return interrupt.seen, None


def each_interrupt(call: Callable[[], object], step: int = 1) -> Iterator[None]:
    """Interrupt a call at each of its moments, or each ``step``-th."""
    at, error = 1, None
    while True:
        _, error = interrupted(call, at)
        if error is None:
            return
        yield
        at += step


def test_no_interrupt_leaves_a_change() -> None:
    """Of the process, in a table of each kind of places; of a model; and of torch's modes."""
    table, operator = {"f": len}, aten.gru_cell.default
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    rows = [Replacement(owner, name, lambda own, *_: 0, "why") for owner, name in (
        (table, "f"), (Inherits, "get"), (nn.Identity, "forward"), (operator, key),
    )]  # fmt: skip
    places, model = Patches(rows), nn.Sequential(nn.Linear(2, 2))
    own, weight, count = [row.read_entry() for row in rows], model[0].weight, 0

    def change() -> None:
        with torch.no_grad(), places.activate("trace"), restore_model(model), FakeTensorMode():
            model[0]._parameters["weight"] = None

    for _ in each_interrupt(interrupts.interruptible(change)):
        count += 1
        assert [row.read_entry() for row in rows] == own and model[0].weight is weight
        assert not _active_kinds.get() and torch.is_grad_enabled() and not torch._C._len_torch_dispatch_stack()
    assert count > 100
    assert "get" not in vars(Inherits)


class PutsBack:
    """What an interrupted function leaves behind: a context that is left later, and then pushes a mode again."""

    def __init__(self) -> None:
        self.itself = self  # it is garbage, and nobody counts references to it down

    def __del__(self) -> None:
        torch._C._push_on_torch_function_stack(BaseTorchFunctionMode())


@pytest.mark.parametrize("chained", [False, True])
def test_contexts_that_end_late_end_before_modes_are_put_back(chained: bool) -> None:
    def stopped() -> None:
        context = PutsBack()
        raise ValueError(str(context)) if chained else KeyboardInterrupt

    def stops() -> None:
        try:
            stopped()
        except ValueError:
            raise KeyboardInterrupt from None

    try:
        interrupts.interruptible(stops)()
    except KeyboardInterrupt as error:
        kept = error
        gc.collect()
        assert torch._C._len_torch_function_stack() == 0
    assert kept.__traceback__ is not None


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_what_another_thread_exports_is_left_alone(error: type[BaseException] | None) -> None:
    """A function that began before the export, and ends in the middle of it, in whichever way."""
    modes, own = torch._ops.mode_stack_state_for_pre_dispatch(), vars(nn.Module)["__call__"]
    begun, patched, seen = Event(), Event(), list[bool]()

    def other(*_: object) -> None:
        """As torch.export's own."""

    def export() -> None:
        begun.wait()
        with one_export:
            modes.set(0, other)
            nn.Module.__call__ = other  # type: ignore[method-assign, assignment]
            patched.set()
            main.join(0.2)
            seen.extend((modes.get(0) is other, vars(nn.Module)["__call__"] is other))
            modes.set(0, None)
            nn.Module.__call__ = own  # type: ignore[method-assign]

    def function() -> None:
        begun.set()
        patched.wait()
        if error is not None:
            raise error

    def run() -> None:
        with suppress(ValueError, KeyboardInterrupt):
            interrupts.interruptible(function)()

    main, beside = Thread(target=run), Thread(target=export)
    for thread in (main, beside):
        thread.start()
    for thread in (main, beside):
        thread.join()
    assert seen == [True, True] and modes.get(0) is None and vars(nn.Module)["__call__"] is own


def test_an_interrupted_export_leaves_torch_as_it_was() -> None:
    rows = [row for row in TABLE if row.is_needed]
    own = [row.read_entry() for row in rows]
    module = nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 4)).eval()
    spec = pipeline.Input(min_shape=(2, 4), opt_shape=(3, 4), max_shape=(9, 4))

    def export() -> None:
        with one_export, ExitStack() as stack:
            stack.enter_context(patch_contexts.patch_for_export())
            stack.enter_context(patch_contexts.decide_by_example())

    total, _ = interrupted(interrupts.interruptible(export), -1)
    for _ in each_interrupt(interrupts.interruptible(export), max(1, total // 97)):
        assert [row.read_entry() for row in rows] == own
    assert not torch.compiler.is_compiling() and not one_export._is_owned()
    assert pipeline.capture(module, (spec,)).shapes


class Beside(nn.Module):
    """A model that another thread runs functions beside, in the middle of its forward."""

    def __init__(self, *functions: Callable[[], object]) -> None:
        super().__init__()
        self.functions = functions
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Wait for the other thread."""
        thread = Thread(target=lambda: [function() for function in self.functions])
        thread.start()
        thread.join()
        return self.linear(x) * 2


@pytest.mark.parametrize("dims", [None, ({0: torch.export.Dim("n", min=1, max=9)},)])
@pytest.mark.parametrize("decisions", ["refuse", "example"])
def test_what_other_threads_run_is_right(dims: Any, decisions: Any) -> None:
    """A compiled program, and layers in layers, which are called, moved and read."""
    torch.manual_seed(0)
    x, eager = torch.randn(2, 4), nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU()).eval()
    served = pipeline.default(min_block_size=1)(eager, args=(x,)).module()
    found: list[Any] = []
    calls = (lambda: served(x), lambda: eager(x), lambda: eager.to(torch.float32)(x), lambda: type(eager[0]))
    beside = Beside(*(lambda call=call: found.append(call()) for call in calls))
    settings = pipeline.CompilationSettings(decisions=decisions)
    program = pipeline.capture(beside.eval(), (x,), dynamic_shapes=dims, settings=settings)
    assert len([n for n in program.graph.nodes if n.op == "call_function"]) == 2
    results, kind = [each for each in found if isinstance(each, torch.Tensor)], found[-1]
    assert kind is nn.Sequential and len(results) == 3
    for result in results:
        torch.testing.assert_close(result, eager(x), rtol=1e-6, atol=1e-6)


def test_threads_capture_one_model() -> None:
    model, x, failed = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval(), torch.randn(2, 4), list[Exception]()

    def capture() -> None:
        try:
            for _ in range(4):
                pipeline.capture(model, (x,))
        except Exception as error:
            failed.append(error)

    before, threads = sys.getswitchinterval(), [Thread(target=capture) for _ in range(2)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed and model(x).isfinite().all()
