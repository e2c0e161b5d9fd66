"""Run a segment eagerly in PyTorch, on the current stream and the same device as the engines.

A segment refers only to the constants that its nodes or its control-flow branches read. So weights that only engines
use can be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch.fx.node import map_arg

from pipeline.aten.collectives import is_collective
from pipeline.aten.interpreter import Builder, ReplaceConstant, get_attribute, interpreter_of
from pipeline.aten.kv_cache_ops import IN_PLACE
from pipeline.aten.own_ops import OPEN_MASK
from pipeline.aten.types import Argument, Leaf, Node, aten
from pipeline.program import Program, Segment
from pipeline.runtime.call_plan import ON_CPU, RunOptions, SegmentRunner
from pipeline.runtime.collective_calls import collective_function
from pipeline.runtime.compiled_segment import CompiledOrInterpreted, Run, compile_segment
from pipeline.runtime.few_rows import is_triton_installed, linear
from pipeline.runtime.grouped_attention import SDPA, attention, attention_in_graphs

LINEAR: Final = aten.linear.default


def torch_segment(
    program: Program,
    segment: Segment,
    get_constant: Callable[[str], torch.Tensor],
    device: torch.device,
    mode: str | None = None,
    *,
    in_cuda_graph: bool = False,
) -> SegmentRunner:
    """Return a function that runs a segment in PyTorch, from the segment's inputs to its outputs.

    get_constant: returns a constant of the program on the device, by the name of its placeholder. mode: the mode of
        torch.compile; None to call operator by operator. in_cuda_graph: whether CUDA graphs capture the program's calls
        (not while a module measures its segments).
    """
    constants = {name: get_constant(name) for name in segment.constants}
    steps = _Steps(program, segment, device, constants, in_cuda_graph)
    for name in segment.nodes:
        if name not in steps.left_out:
            steps.add(steps.nodes[name])
    call: Run = steps.builder.build(tuple(steps.nodes[port.name] for port in segment.outputs))
    if mode is not None and (run_compiled := compile_segment(program, segment, mode, steps.moved)) is not None:
        call = CompiledOrInterpreted(segment.name, run_compiled, tuple(constants.values()), call)
    leaving = {output.value for output in program.outputs if not output.constant} - steps.updated
    owned = frozenset(i for i, port in enumerate(segment.outputs) if port.name in leaving)
    memory = frozenset(map(_storage_pointer, constants.values()))

    def run(inputs: list[Leaf], options: RunOptions = ON_CPU) -> Sequence[Leaf]:
        results: Sequence[Leaf] = call(*inputs)
        return _clone_shared_results(results, inputs, owned, memory) if owned else results

    return run


def _clone_shared_results(
    results: Sequence[object], inputs: Sequence[object], outputs: frozenset[int], constant_addresses: frozenset[int]
) -> Sequence[object]:
    """Return a segment's results, with clones of those outputs of the program that share memory with an input, constant
    or other result: the optimized graph may have a view where the model makes a copy. ``outputs``: the indices of the
    program's outputs among the results. ``constant_addresses``: the storage addresses of the constants."""
    seen = {*constant_addresses, *(_storage_pointer(v) for v in inputs if isinstance(v, torch.Tensor))}
    cloned = list(results)
    for i, result in enumerate(results):
        if isinstance(result, torch.Tensor) and result.numel():
            if i in outputs and _storage_pointer(result) in seen:
                cloned[i] = result.clone()
            seen.add(_storage_pointer(result))
    return cloned


def _storage_pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


class _Steps:
    """Build the calls that run a segment's nodes. ``updated``: the names of nodes that update a buffer in place.
    ``left_out``: the names of nodes that need no call: see `replaceable_masks`."""

    def __init__(
        self,
        program: Program,
        segment: Segment,
        device: torch.device,
        constants: Mapping[str, torch.Tensor],
        in_cuda_graph: bool,
    ) -> None:
        self.program, self.device = program, device
        self.nodes = {node.name: node for node in program.graph.nodes}
        self.moved: ReplaceConstant = lambda value: device if isinstance(value, torch.device) else value
        self.builder = Builder((port.name for port in segment.inputs), self.moved)
        for name, value in constants.items():
            self.builder.add_constant(name, value)
        masks = {mask.name: rest for mask, *rest in replaceable_masks(self.nodes, segment, constants)}
        self.replaceable_masks = {mask: condition for mask, (_, condition) in masks.items()}
        self.left_out = {name for mask, (choice, _) in masks.items() for name in (mask, choice.name)}
        self.kernels: dict[object, Callable[..., Argument]] = {}
        if device.type == "cuda":
            fast = in_cuda_graph and is_triton_installed()
            self.kernels = {SDPA: attention_in_graphs, LINEAR: linear} if fast else {SDPA: attention}
        self.updated: set[str] = set()

    def add(self, node: torch.fx.Node) -> None:
        """Add a call for a node, after calls for the nodes that compute sizes it reads (unless they are inputs)."""
        if node.name in self.builder.places:
            return
        if node.op == "get_attr":
            graph = get_attribute(self.program.graph_module, str(node.target))
            flow = interpreter_of(graph, lambda tensor: tensor.detach().to(self.device, copy=True), self.moved)
            self.builder.add_constant(node.name, flow)
            return
        args, kwargs = node.args, node.kwargs
        if node.target is SDPA:
            args, kwargs = map_arg((args, kwargs), lambda source: self.replaceable_masks.get(source.name, source))
        map_arg((args, kwargs), self.add)
        target: Argument = self.kernels.get(node.target, node.target)
        if target in IN_PLACE and getattr(node.args[0], "name", "") in self.program.buffers:
            target = IN_PLACE[target]  # nothing else reads the buffer: `improvements.update_in_place`
            self.updated.add(node.name)
        if is_collective(node):
            target = collective_function(node, self.program.sharding, self.device)
        self.builder.add_call(node.name, target, args, kwargs)


def replaceable_masks(
    nodes: Mapping[str, Node], segment: Segment, constants: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Node, Node, Node]]:
    """Yield (mask, ``where`` node, condition) for each attention mask ``where(condition, 0, lowest number)`` in a
    segment: attention can read the boolean condition as its mask, so that nothing computes the additive mask.
    ``nodes``: the program's nodes by name. ``constants``: the segment's constants by name."""
    outputs = {port.name for port in segment.outputs}
    for mask in (nodes[name] for name in segment.nodes):
        choice = where_of_open_mask(mask)
        if choice is None or choice.name not in segment.nodes or outputs & {mask.name, choice.name}:
            continue
        operands: Argument = choice.args
        condition, zero, lowest = operands
        numbers = [constants[each.name] for each in (zero, lowest) if getattr(each, "name", "") in constants]
        if len(numbers) == 2 and all(number.numel() == 1 for number in numbers):
            high, low = (number.item() for number in numbers)
            if high == 0 and low <= torch.finfo(numbers[1].dtype).min and condition.meta["val"].dtype == torch.bool:
                yield mask, choice, condition


def where_of_open_mask(mask: Node) -> Node | None:
    """Return the ``where`` node that computes an attention mask. Return None unless the operator `OPEN_MASK` marks the
    mask (every row has an unmasked key), and only attention reads it."""
    choice: Argument = mask.args[0] if mask.target is OPEN_MASK else None
    chosen = isinstance(choice, Node) and choice.target is aten.where.self and list(choice.users) == [mask]
    return choice if chosen and all(user.target is SDPA for user in mask.users) else None
