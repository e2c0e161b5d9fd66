"""Add recurrences over sequential steps, unrolled or as a TensorRT loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from pipeline.impl import base, slice
from pipeline.impl.base import ITensor, Net, Size, Value, block
from pipeline.impl.shape import as_size, concatenate, expression, strided_slice
from pipeline.trt import trt

UNROLLED: Final = 8
"""The maximum number of steps that are unrolled, so that TensorRT fuses them; longer sequences are built as a loop."""

State: TypeAlias = tuple[ITensor, ...]
Step: TypeAlias = Callable[[Sequence[ITensor], State], tuple[ITensor, State]]
"""A function from the inputs of a step and the state to the output of the step and the next state."""


@block
def run_steps(
    net: Net, step: Step, inputs: Sequence[ITensor], state: State, *, reverse: bool = False, unroll: int = UNROLLED
) -> tuple[ITensor, State]:
    """Call ``step([x[i] for x in inputs], state) -> (output, state)`` for each i, backwards if ``reverse``; unroll the
    loop if the number of steps is static and at most ``unroll``. Return the outputs, stacked [steps, ...] in the
    order of ``inputs``, and the last state."""
    steps = base.known_sizes(net, inputs[0])[0]
    if isinstance(steps, int) and steps <= unroll:
        outputs: dict[int, ITensor] = {}
        for at in range(steps)[:: -1 if reverse else 1]:
            outputs[at], state = step([slice.select(net, each, 0, at) for each in inputs], state)
        return stack(net, [outputs[at] for at in sorted(outputs)]), state
    count = base.cast(net, base.size_as_scalar(net, base.size(net, inputs[0], 0)), torch.int32)
    return _run_trt_loop(net, step, inputs, state, count, reverse)


@block
def in_float32(net: Net, value: Value) -> ITensor:
    """Cast a tensor to float32, in which states accumulate, and keep its known sizes."""
    return base.with_sizes(net, base.tensor(net, value, torch.float32), base.known_sizes(net, value))


@block
def split_into_chunks(net: Net, x: ITensor, dim: int, chunk_count: Size, chunk_length: int) -> ITensor:
    """Split a dim into ``chunk_count`` chunks along a new first dim, after padding it with zeros."""
    sizes = base.known_sizes(net, x)
    x = strided_slice(net, x, [dim], [0], [as_size(expression(chunk_count) * chunk_length)], mode="FILL")
    x = base.reshape(net, x, [*sizes[:dim], chunk_count, chunk_length, *sizes[dim + 1 :]])
    return base.permute(net, x, [dim, *(i for i in range(len(sizes) + 1) if i != dim)])


@block
def stack(net: Net, parts: Sequence[ITensor]) -> ITensor:
    raised = [base.unsqueeze(net, part, [0]) for part in parts]
    return raised[0] if len(raised) == 1 else concatenate(net, raised, 0, base.dtype_of(parts[0]))


def _run_trt_loop(
    net: Net, step: Step, inputs: Sequence[ITensor], state: State, count: ITensor, reverse: bool
) -> tuple[ITensor, State]:
    """Do what `run_steps` does in a loop of ``count`` steps (last first if ``reverse``): return outputs, last state."""
    loop = net.ctx.net.add_loop()
    _name_loop_layer(net, "trip_limit", loop.add_trip_limit(count, trt.TripLimit.COUNT))
    now = [_name_loop_layer(net, "iterator", loop.add_iterator(each, 0, reverse)).get_output(0) for each in inputs]
    carried = [_name_loop_layer(net, "recurrence", loop.add_recurrence(s)) for s in state]
    current = tuple(layer.get_output(0) for layer in carried)
    output, following = step(now, current)
    for layer, value in zip(carried, following, strict=True):
        layer.set_input(1, value)
    order = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    outputs = _name_loop_layer(net, "loop_output", loop.add_loop_output(output, order, 0))
    outputs.set_input(1, count)
    last = [loop.add_loop_output(value, trt.LoopOutput.LAST_VALUE, 0) for value in current]
    return outputs.get_output(0), tuple(_name_loop_layer(net, "loop_output", v).get_output(0) for v in last)


def _name_loop_layer(net: Net, kind: str, layer: Any) -> Any:
    layer.name = net.ctx.make_unique_name(f"{net.name}:{kind}")
    return layer
