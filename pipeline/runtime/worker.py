"""Workers, each of which runs one call of a program at a time, and a pool that lends workers to threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from pipeline.aten.types import Leaf
from pipeline.errors import DecisionError, error_text
from pipeline.program import Segment
from pipeline.runtime.call_plan import ON_CPU, CallPlan, Layout, RunOptions, SegmentRunner, Slots, Step
from pipeline.runtime.inputs import check_learnt_sizes
from pipeline.shapes.environment import evaluate_number


class SegmentExecutor:
    """Run a program's segments in order on the values of a call, a list by slot (see `Step`). Nothing is kept after."""

    def __init__(self, layout: Layout, runners: Sequence[SegmentRunner], device: torch.device) -> None:
        self.layout, self.runners, self.device = layout, runners, device
        self._set_steps(tuple(zip(layout.steps, runners, strict=True)))
        self._double = layout.program.settings.truncate_double

    def __call__(self, plan: CallPlan, leaves: Sequence[Leaf], options: RunOptions = ON_CPU) -> list[Leaf]:
        """Return the outputs of a call, and write mutated inputs and buffers back."""
        slots = plan.template.copy()
        for given, slot, moved in plan.moves:
            value = leaves[given]
            slots[slot] = self.convert_input(value) if moved or value.requires_grad else value
        if self.layout.decisions:
            self._run_and_check_branches(slots, plan, options)
        else:
            self.run(slots, plan, options)
        if self.layout.checks:
            plan.report_check_results(slots, self.layout.checks)
        results = self.collect_outputs(slots, leaves, plan)
        if self.layout.writes:
            self.write_mutations(slots, leaves)
        return results

    def instrument(self, wrap: Callable[[Segment, SegmentRunner], SegmentRunner]) -> None:
        """Let later calls run each segment by ``wrap(segment, runner)``, for measurements."""
        self._set_steps(tuple((step, wrap(step.segment, run)) for step, run in self._steps))

    def _set_steps(self, steps: tuple[tuple[Step, SegmentRunner], ...]) -> None:
        """Set the segments with their runners; list each profile's segments, each with the slots to clear after it."""
        self._steps = steps
        self._in_profile: dict[int | None, list[tuple[Step, SegmentRunner, tuple[int, ...]]]] = {}
        for profile in (None, *range(len(self.layout.program.profiles))):
            chosen = [(step, run) for step, run in steps if step.segment.runs_in(profile)]
            drops = self.layout.slots_to_clear_after([step for step, _ in chosen])
            self._in_profile[profile] = [(*row, after) for row, after in zip(chosen, drops, strict=True)]

    def convert_input(self, value: torch.Tensor) -> torch.Tensor:
        """Convert an input to the device and the dtype in which the program computes it."""
        value = value.detach().to(self.device)
        return value.float() if value.dtype == torch.float64 and self._double else value

    def run(self, slots: Slots, plan: CallPlan, options: RunOptions) -> None:
        """Run the segments: fill the slots of their outputs and of sizes; clear slots after their last use."""
        symbols = plan.symbols
        for step, run, drops in self._in_profile[plan.profile]:
            for slot, expr in step.late:
                slots[slot] = evaluate_number(expr, symbols)
            outputs = run([slots[i] for i in step.takes], options)
            for slot, value in zip(step.gives, outputs, strict=True):
                slots[slot] = value
            if step.learns:
                symbols = {**symbols, **check_learnt_sizes(self.layout.program, _learnt_values(step.learns, outputs))}
            for slot in drops:
                slots[slot] = None
        for slot, expr in self.layout.late:
            slots[slot] = evaluate_number(expr, symbols)

    def _run_and_check_branches(self, slots: Slots, plan: CallPlan, options: RunOptions) -> None:
        """Run the segments, and check that the call takes the data-dependent branches of the capture; waits for the
        GPU.

        Raises:
            DecisionError: the call takes another branch, or a segment failed, perhaps on sizes of another branch.
        """
        try:
            self.run(slots, plan, options)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            places = " or ".join(place for _, place in self.layout.decisions)
            why = f"this call failed, probably because it takes another branch than the captured example at {places}"
            raise DecisionError(f"{why}: {error_text(error)}") from error
        differ = torch.stack([slots[slot] for slot, _ in self.layout.decisions]).tolist()
        for differs, (_, place) in zip(differ, self.layout.decisions, strict=True):
            if differs:
                raise DecisionError(f"this call takes another branch than the captured example at {place}")

    def collect_outputs(self, slots: Slots, leaves: Sequence[object], plan: CallPlan) -> list[Leaf]:
        """Return the program's outputs: values in ``slots``, and inputs (``leaves``) that are outputs themselves."""
        results: list[Leaf] = []
        for output in self.layout.returns:
            if output.computed:
                value = slots[output.slot]
                if isinstance(value, torch.Tensor):
                    value = value if output.dtype is None or value.dtype == output.dtype else value.to(output.dtype)
                    value = value.clone() if output.copied else value
                    value = value if plan.output_device is None else value.to(plan.output_device)
            elif output.again is not None:
                value = results[output.again]
            elif output.input_index is not None:
                value = leaves[output.input_index]
            else:
                value = slots[output.held or 0]
                value = value if plan.is_on_output_device(value) else slots[output.slot].to(plan.output_device)
            results.append(value)
        return results

    def write_mutations(self, slots: Slots, leaves: Sequence[Leaf]) -> None:
        """Write mutations back to buffers and the caller's inputs."""
        for write, value in zip(self.layout.writes, self.layout.values_to_write(slots), strict=True):
            target = leaves[write.input_index] if write.input_index is not None else slots[write.buffer or 0]
            if target is not value:
                target.copy_(value)


def _learnt_values(learnt: Sequence[tuple[int, int | None, str]], outputs: Sequence[Leaf]) -> dict[str, Leaf]:
    """Return the values of the symbols that a segment's outputs determine, such as the size of a ``nonzero``.

    learnt: where to read each symbol: `Step.learns`.
    """
    sizes = {s: outputs[i] if dim is None else outputs[i].shape[dim] for i, dim, s in learnt}
    return {s: size if isinstance(size, float) else int(size) for s, size in sizes.items()}


W = TypeVar("W")


class Pool(Generic[W]):
    """A pool of at most ``limit`` workers, created on demand; `take` waits while all are busy."""

    def __init__(self, make: Callable[[], W], limit: int) -> None:
        self._make, self._left = make, limit
        self._free: list[W] = []
        self._turn = threading.Condition()
        self._waiting = 0

    def take(self) -> W:
        """Take a worker for exclusive use until `give`."""
        try:
            return self._free.pop()  # atomic; with one thread every call ends here
        except IndexError:
            return self._make_or_wait()

    def give(self, worker: W) -> None:
        """Return a worker to the pool."""
        self._free.append(worker)
        if self._waiting:
            with self._turn:
                self._turn.notify()

    def clear(self) -> None:
        """Drop the free workers."""
        while self._free:
            self._free.pop()
            self._left += 1

    def _make_or_wait(self) -> W:
        """Return a new worker, or, if ``limit`` workers exist, the next one that another thread gives back."""
        with self._turn:
            if self._left:
                self._left -= 1
                try:
                    return self._make()
                except BaseException:
                    self._left += 1
                    raise
            self._waiting += 1
            try:
                while True:
                    self._turn.wait_for(lambda: bool(self._free))
                    with suppress(IndexError):  # another thread was faster
                        return self._free.pop()
            finally:
                self._waiting -= 1
