"""Steps in turn, each of which takes the state that the one before it leaves: a loop, or written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from pipeline.impl import base, slice
from pipeline.impl.base import ITensor, Value
from pipeline.impl.block_decorators import block
from pipeline.impl.shape import concatenate
from pipeline.network.net import Net
from pipeline.trt import trt

WRITTEN_OUT: Final = 8
"""Up to so many steps are written out, which TensorRT fuses; a loop builds in the same time whatever its length."""

State: TypeAlias = tuple[ITensor, ...]
Step: TypeAlias = Callable[[Sequence[ITensor], State], tuple[ITensor, State]]
"""What a step is given, and the state before it, to its output and the state behind it."""


@block
def repeated(
    net: Net, step: Step, taken: Sequence[ITensor], state: State, *, reverse: bool = False, most: int = WRITTEN_OUT
) -> tuple[ITensor, State]:
    """A step for each element of the first dim of ``taken``, from the last to the first if ``reverse``.

    Up to ``most`` of a known number are written out. Returns the outputs, stacked [steps, ...] in the order of what is
    taken, and the last state.
    """
    steps = base.known_sizes(net, taken[0])[0]
    if isinstance(steps, int) and steps <= most:
        return _written_out(net, step, taken, state, range(steps)[:: -1 if reverse else 1])
    count = base.cast(net, base.scalar_of(net, base.size(net, taken[0], 0)), torch.int32)
    return _looped(net, step, taken, state, count, reverse)


@block
def in_float32(net: Net, value: Value) -> ITensor:
    """What steps add up, in float32; its sizes stay known."""
    return base.noted(net, base.tensor(net, value, torch.float32), base.known_sizes(net, value))


@block
def stacked(net: Net, parts: Sequence[ITensor]) -> ITensor:
    """Tensors of one shape along a new first dim."""
    raised = [base.unsqueeze(net, part, [0]) for part in parts]
    return raised[0] if len(raised) == 1 else concatenate(net, raised, 0, base.dtype_of(parts[0]))


def _written_out(net: Net, step: Step, taken: Sequence[ITensor], state: State, order: range) -> tuple[ITensor, State]:
    outputs: dict[int, ITensor] = {}
    for at in order:
        outputs[at], state = step([slice.select(net, each, 0, at) for each in taken], state)
    return stacked(net, [outputs[at] for at in sorted(outputs)]), state


def _looped(
    net: Net, step: Step, taken: Sequence[ITensor], state: State, count: ITensor, reverse: bool
) -> tuple[ITensor, State]:
    loop = net.ctx.net.add_loop()
    _boundary(net, "trip_limit", loop.add_trip_limit(count, trt.TripLimit.COUNT))
    now = [_boundary(net, "iterator", loop.add_iterator(each, 0, reverse)).get_output(0) for each in taken]
    carried = [_boundary(net, "recurrence", loop.add_recurrence(s)) for s in state]
    current = tuple(layer.get_output(0) for layer in carried)
    output, following = step(now, current)
    for layer, value in zip(carried, following, strict=True):
        layer.set_input(1, value)
    order = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    outputs = _boundary(net, "loop_output", loop.add_loop_output(output, order, 0))
    outputs.set_input(1, count)
    last = [loop.add_loop_output(value, trt.LoopOutput.LAST_VALUE, 0) for value in current]
    return outputs.get_output(0), tuple(_boundary(net, "loop_output", v).get_output(0) for v in last)


def _boundary(net: Net, kind: str, layer: Any) -> Any:
    layer.name = net.ctx.unique(f"{net.name}:{kind}")
    return layer
