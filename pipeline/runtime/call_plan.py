"""Plan calls: assign each value of a program to a slot, and compute every size once for given input shapes.

A program's values are stored in *slots*, a list that each call copies and fills. ``Layout`` numbers the slots once for
each module. The first call with new shapes, dtypes and devices runs every check and creates a ``CallPlan``, which later
calls find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import sympy
import torch
from attrs import evolve, field, frozen

from pipeline.aten.op_predicates import moves_elements
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Leaf
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Port, Program, Segment
from pipeline.runtime.ranks import collectives_capture_obstacle
from pipeline.runtime.state import PositionGuard
from pipeline.shapes.environment import Expr, as_expr

Slots: TypeAlias = list[Leaf]
TENSORS = (torch.Tensor, TensorType)
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, sympy.Basic)
"""The types of a graph's numbers that depend on sizes; a graph loaded from a file has sympy expressions."""


@frozen
class Step:
    """A segment to run. A slot is an index in the list of a call's values (inputs, weights, sizes, results). The
    segment reads the slots ``takes``, and fills the slots ``gives``.

    ``late``: (slot, expression) of each size to compute just before this segment runs, since it depends on results of
    earlier segments. ``learns``: the symbols whose values this segment's outputs determine, each as (output index, dim
    or None if the output is an int, symbol).
    """

    segment: Segment
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    late: tuple[tuple[int, Expr], ...] = ()
    learns: tuple[tuple[int, int | None, str], ...] = ()


@frozen
class Return:
    """Where a call finds one output of a program: in ``slot`` (see `Step`), or, if one of these is set, an object that
    exists already: the input with index ``input_index``, the earlier output with index ``again``, or the parameter or
    buffer in slot ``held``.

    ``dtype``: the dtype to return a computed tensor in. ``copied``: the caller gets a clone of the slot's tensor.
    """

    slot: int
    input_index: int | None = None
    dtype: torch.dtype | None = None
    copied: bool = False
    again: int | None = None
    held: int | None = None
    computed: bool = field(init=False)
    """Whether the program computes this output, rather than returning an object that the caller has already."""

    @computed.default
    def _is_computed(self) -> bool:
        """Whether the output is a value computed by the call, and not an input, parameter or earlier output itself."""
        return self.input_index is None and self.again is None and self.held is None


@frozen
class Write:
    """A mutation: after a call, the value in ``slot`` is written to the input ``input_index``, or to the buffer in slot
    ``buffer``. If an engine updates the buffer in place, ``slot`` and ``buffer`` hold the same tensor, and no copy is
    needed. ``old``: the value may be a view of a mutated input or buffer, so it is cloned before all writes."""

    slot: int
    input_index: int | None = None
    buffer: int | None = None
    old: bool = False


@frozen
class Layout:
    """The slots of a program: each call stores its values in a list, and ``slots`` has the index of each value by name.

    ``steps``: the segments in order, with the slots that each reads and fills.
    """

    program: Program = field(repr=False)
    slots: Mapping[str, int]
    steps: tuple[Step, ...]
    returns: tuple[Return, ...]
    writes: tuple[Write, ...]
    checks: tuple[int, ...]
    decisions: tuple[tuple[int, str], ...]
    sizes: Mapping[int, Expr]
    constants: Mapping[int, Leaf]
    late: tuple[tuple[int, Expr], ...]
    weights: Mapping[int, str]
    """The slots of weights that engines read in place, each with the name of the weight's placeholder."""

    @property
    def on_cpu(self) -> bool:
        """Whether the outputs were on the CPU when the model was captured."""
        values = {n.name: n.meta.get("val") for n in self.program.graph.nodes}
        outputs = [values.get(o.value) for o in self.program.outputs if o.kind == "user" and not o.constant]
        return all(value.device.type == "cpu" for value in outputs if isinstance(value, TENSORS))

    @property
    def is_static(self) -> bool:
        """Whether the shapes of the inputs determine every shape in the program."""
        return not self.late and not any(step.late or step.learns for step in self.steps)

    @property
    def capture_obstacle(self) -> str:
        """The reason why calls cannot be captured in a CUDA graph; empty if they can."""
        if self.decisions:
            return "each call checks on the host that it takes the captured data-dependent branches"
        if not self.is_static:
            return "sizes inside the program depend on its inputs' values"
        return collectives_capture_obstacle(self.program)

    def slots_to_clear_after(self, steps: Sequence[Step]) -> list[tuple[int, ...]]:
        """Return, for each step, the slots of computed values that are not needed after it, not even as outputs."""
        computed = {slot for step in steps for slot in step.gives}
        read = {*self.checks, *(slot for slot, _ in self.decisions), *(end.slot for end in self.writes)}
        read |= {slot for end in self.returns for slot in (end.slot, end.held) if slot is not None}
        read |= {end.buffer for end in self.writes if end.buffer is not None}
        found: list[tuple[int, ...]] = []
        for step in reversed(steps):
            used = {*step.takes, *step.gives} & computed
            found.append(tuple(sorted(used - read)))
            read |= used
        return found[::-1]

    def values_to_write(self, slots: Slots) -> list[Leaf]:
        """Return the value to write for each mutation; clone a value first if another mutation would change it."""
        return [slots[write.slot].clone() if write.old else slots[write.slot] for write in self.writes]


@frozen(eq=False)
class CallPlan:
    """What calls with equal shapes, dtypes, devices and Python numbers have in common.

    ``template``: the list of values by slot (see `Step`) that each call copies, filled with what they share: sizes,
    weights and buffers. ``moves``: for each tensor input (input index, its slot, whether to convert it to the program's
    device or dtype). ``profile``: the index of the program's first profile that fits. ``output_device``: None for the
    module's device. ``guard``: raises an error after a call that wrote outside of a KV cache; None if the program does
    not check this.
    """

    template: Slots = field(repr=False)
    symbols: Mapping[str, int]
    profile: int | None
    moves: tuple[tuple[int, int, bool], ...]
    output_device: torch.device | None
    guard: PositionGuard | None = field(default=None, repr=False)

    def report_check_results(self, slots: Slots, check_slots: Sequence[int]) -> None:
        """Let ``guard`` record whether a call wrote outside of a KV cache. ``slots``: the call's values.
        ``check_slots``: the indices in ``slots`` of the bool tensors that say so."""
        for slot in check_slots:
            if self.guard is not None:
                self.guard.add_result(slots[slot])

    def is_on_output_device(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the device of the program's outputs."""
        return self.output_device is None or tensor.device == self.output_device


@frozen(eq=False)
class RunOptions:
    """The options of a call that each segment receives in addition to its inputs.

    Attributes:
        stream: the CUDA stream that engines run on; None on the CPU.
        plan: the call's plan, which engines use as a cache key for shapes; None if some shapes are data-dependent.
        captured: whether the call is captured in a CUDA graph.
        into: the memory to which engines write some outputs, by the output's slot (see `Step`).
    """

    stream: Any = None
    plan: CallPlan | None = None
    captured: bool = False
    into: Mapping[int, torch.Tensor] = FrozenDict()


ON_CPU: Final = RunOptions()
"""The options of a call on the CPU."""
SegmentRunner: TypeAlias = Callable[[list[Any], RunOptions], Sequence[Any]]
"""The type of functions that run a segment: from its inputs and the call's options to its outputs."""


class LayoutBuilder:
    """Assign slots to a program's values, and build its `Layout`."""

    def __init__(self, program: Program, segments: Iterable[Segment]) -> None:
        self.program = program
        self.slots: dict[str, int] = {}
        self.sizes: dict[int, Expr] = {}
        self.constants: dict[int, Leaf] = {}
        self.late: list[tuple[int, Expr]] = []
        self.weights: dict[int, str] = {}
        self.nodes: dict[str, torch.fx.Node] = {n.name: n for n in program.graph.nodes}
        self.input_index = {p.name: i for i, p in enumerate(program.inputs)}
        sizes = (size for p in program.inputs for size in ([p.value] if p.is_number else p.shape))
        self.from_inputs = frozenset(str(s) for size in sizes if not isinstance(size, int) for s in size.free_symbols)
        self.known = set(self.from_inputs)
        for name in (*self.input_index, *program.buffers):
            self._slot_of(name)
        self.steps = tuple(map(self._make_step, segments))

    def build(self) -> Layout:
        """Return the `Layout`: the slots of all values, the steps, and how outputs are returned and written back."""
        outputs = self.program.outputs
        users = [o for o in outputs if o.kind == "user"]
        returns = _mark_duplicates(users, [self._make_return(o) for o in users])
        writes = self._make_writes([o for o in outputs if o.kind in ("buffer", "input")])
        checks = tuple(self._output_slot(o) for o in outputs if o.kind == "check")
        decisions = tuple((self._output_slot(o), o.target) for o in outputs if o.kind == "decision")
        first = self.program, self.slots, self.steps, returns, writes, checks, decisions
        return Layout(*first, self.sizes, self.constants, tuple(self.late), self.weights)

    def _slot_of(self, value_name: str) -> int:
        return self.slots.setdefault(value_name, len(self.slots))

    def _make_step(self, segment: Segment) -> Step:
        """Return the step that runs a segment, with a slot for each of its inputs and outputs."""
        late = tuple(
            (self._slot_of(_size_value_name(p.value)), p.value)
            for p in segment.inputs
            if p.is_number and not self._is_known_from_inputs(p.value)
        )
        takes = tuple(self._segment_input_slot(p) for p in segment.inputs)
        gives = tuple(self._slot_of(p.name) for p in segment.outputs)
        learns = tuple(self._sizes_learnt_from(segment.outputs))
        return Step(segment, takes, gives, late, learns)

    def _is_known_from_inputs(self, size: Expr) -> bool:
        """Return whether the inputs' shapes alone determine a size, so that the call plan can contain its value."""
        early = isinstance(size, int) or {str(s) for s in size.free_symbols} <= self.from_inputs
        if early:
            self.sizes[self._slot_of(_size_value_name(size))] = size
        return early

    def _segment_input_slot(self, port: Port) -> int:
        """Return the index at which a call stores a segment's input: a weight, a size, or a result before it."""
        if port.name in self.program.constants:
            slot = self._slot_of(f"weight {port.name}")  # not the slot of a returned constant, which may move
            self.weights[slot] = port.name
            return slot
        return self._slot_of(_size_value_name(port.value) if port.is_number else port.name)

    def _sizes_learnt_from(self, outputs: Sequence[Port]) -> Iterable[tuple[int, int | None, str]]:
        """Yield each symbol whose value is first known from these outputs of a segment.

        Each is (output index, dim or None if the output is an int, symbol).
        """
        for position, port in enumerate(outputs):
            for dim, size in [(None, port.value)] if port.is_number else enumerate(port.shape):
                if not isinstance(size, int) and size.is_Symbol and str(size) not in self.known:
                    self.known.add(str(size))
                    yield position, dim, str(size)

    def _make_return(self, output: Output) -> Return:
        """Return where a call finds an output of the model: a slot, or an input, parameter or buffer itself."""
        if output.constant:
            return Return(self._output_slot(output))
        itself = output.target or output.value
        if itself in self.input_index:
            return Return(self._slot_of(itself), input_index=self.input_index[itself])
        slot, constant = self._output_slot(output), output.value in self.program.constants
        if itself in self.program.buffers or (constant and itself == output.value):
            return Return(slot, held=self._slot_of(itself))
        expected = self.nodes[output.value].meta.get("val")
        dtype = expected.dtype if isinstance(expected, TENSORS) and not constant else None
        copied = constant or output.value in self.input_index or output.value in self.program.buffers
        return Return(slot, dtype=dtype, copied=copied)

    def _output_slot(self, output: Output) -> int:
        """Return the slot of an output's value; register a constant or size, so that calls fill the slot with it."""
        if output.constant:
            slot = self._slot_of(f"constant {type(output.value).__name__} {output.value!r}")
            self.constants[slot] = output.value
            return slot
        expected = self.nodes[output.value].meta.get("val")
        if isinstance(expected, NUMBERS):
            expr = as_expr(expected)
            slot = self._slot_of(_size_value_name(expr))
            if not self._is_known_from_inputs(expr):
                self.late.append((slot, expr))
            return slot
        return self._slot_of(output.value)

    def _make_writes(self, outputs: Sequence[Output]) -> tuple[Write, ...]:
        """Return a `Write` for each output that is the new value of a mutated input or buffer of the model."""
        holders = {target: name for name, target in self.program.buffers.items()}
        written = {o: o.target if o.kind == "input" else holders[o.target] for o in outputs}
        old = {o: self._memory_owner_name(o.value) in written.values() and o.value != written[o] for o in outputs}
        return tuple(
            Write(self._output_slot(o), input_index=self.input_index[written[o]], old=old[o])
            if o.kind == "input"
            else Write(self._output_slot(o), buffer=self._slot_of(written[o]), old=old[o])
            for o in outputs
        )

    def _memory_owner_name(self, value_name: str) -> str:
        """Return the name of the value whose memory this value may share: the first in its chain of views, copies and
        casts."""
        node = self.nodes[value_name]
        while node.op == "call_function" and moves_elements(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node.name


def _mark_duplicates(outputs: Sequence[Output], returns: Sequence[Return]) -> tuple[Return, ...]:
    """Return ``returns`` with two fields set where values repeat: ``again`` if the model returns the same tensor as an
    earlier output, ``copied`` if it returns another tensor whose value is in the slot of an earlier output."""
    first: dict[tuple[Any, Return], int] = {}
    slots: set[int] = set()
    marked: list[Return] = []
    for i, (output, item) in enumerate(zip(outputs, returns, strict=True)):
        at = first.setdefault((output.target, item), i)
        shared = item.slot in slots and item.input_index is None and item.held is None
        slots.add(item.slot)
        marked.append(evolve(item, again=at) if at < i else evolve(item, copied=item.copied or shared))
    return tuple(marked)


def _size_value_name(size: Expr) -> str:
    """Return the name by which `LayoutBuilder` assigns a slot to a size, such as ``size 2*s``."""
    return f"size {size}"
