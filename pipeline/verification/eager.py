"""Run a captured program with PyTorch's own operators, without the model's code.
Runs use eager's dtypes, a wider dtype, or random rounding errors. Calibration records ranges of activations in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.aten.calls import safe_function
from pipeline.aten.graphs import results_of
from pipeline.aten.interpreter import get_attribute, interpreter_of
from pipeline.aten.traits import CONTRACTIONS, Kind, op_kind
from pipeline.aten.types import Argument
from pipeline.errors import CalibrationError
from pipeline.improvements.precision import EXPONENTS, TABLE, op_name
from pipeline.program import Program
from pipeline.runtime.call_memory import CallLimit
from pipeline.runtime.opened_file import check_files
from pipeline.verification.bounds import largest_magnitude

WIDENED = 4
"""The ratio of the sizes of float64 and half-precision elements in bytes."""

INEXACT = (*CONTRACTIONS, Kind.NORMALIZES, Kind.SCALES, Kind.SOFTENS)
INEXACT_NAMES = frozenset(
    (*TABLE[EXPONENTS].split(), *["sum", "mean", "var", "std", "norm", "add", "sub", "mul", "div"])
)
"""The names of operators whose results depend on rounding; all others only move, compare or select elements."""

ASSERTS = frozenset({torch.ops.aten._assert_tensor_metadata.default})
"""Operators that only check dtypes and strides; they are skipped, since dtypes and strides differ in these runs."""


class EagerRun:
    """An interpreter of a program's graph, which releases values after their last use.

    program: the captured program. parameters: the model's tensors, by name. device: where the graph runs. dtype: the
        dtype to which narrower floating-point tensors are cast; None for the model's own dtypes. noise: the largest
        relative random error (from ``seed``) to add to results of operators that round, or a function from dtype to
        this error. observe: called with each node and its value.
    """

    def __init__(
        self,
        program: Program,
        parameters: Mapping[str, torch.Tensor],
        device: torch.device,
        dtype: torch.dtype | None = None,
        *,
        noise: float | Callable[[torch.dtype], float] = 0.0,
        seed: int = 0,
        observe: Callable[[torch.fx.Node, object], object] = lambda node, value: None,
    ) -> None:
        self.program, self.parameters, self.device, self.dtype = program, parameters, device, dtype
        self.noise, self.observe = noise, observe
        self.generator = torch.Generator(device).manual_seed(seed) if noise else None
        self.env: dict[torch.fx.Node, Argument] = {}
        self.bound = CallLimit.from_file(parameters, program, 1 if dtype is None else WIDENED)

    def __call__(self, inputs: Sequence[object]) -> tuple[object, ...]:
        """Run the program on these inputs; return its outputs, including the new values of mutated buffers and inputs.
        The inputs themselves are not changed."""
        check_files(self.program.parameters)
        by_name = dict(zip((port.name for port in self.program.inputs), inputs, strict=True))
        return self.run(by_name) if self.bound is None else self.bound(self.run, by_name)

    def run(self, inputs: Mapping[str, object]) -> tuple[object, ...]:
        """Run the graph on inputs given by placeholder name; each value is freed after its last use."""
        unused, self.env = values_freed_after(self.program.graph), {}
        with torch.no_grad():
            for node in self.program.graph.nodes:
                if node.op == "output":
                    break
                value = self.compute_value(node, inputs)
                self.env[node] = value
                self.observe(node, value)
                for done in unused[node]:
                    del self.env[done]
            env, self.env = self.env, {}
        return tuple(env[x] if isinstance(x, torch.fx.Node) else x for x in results_of(self.program.graph))

    def compute_value(self, node: torch.fx.Node, inputs: Mapping[str, object]) -> Argument:
        """Return the value of a node, computed from the values of earlier nodes."""
        if node.op == "call_function":
            return self.call_operator(node)
        name = node.name
        if node.op == "placeholder":
            return self.move_to_device(inputs[name] if name in inputs else self.load_weight(name))
        value = get_attribute(self.program.graph_module, str(node.target))
        if not isinstance(value, torch.fx.GraphModule):
            return self.move_to_device(value)
        return interpreter_of(
            value, lambda held: held.to(self.device, widen_dtype(held.dtype, self.dtype)), self.convert_constant
        )

    def load_weight(self, placeholder: str) -> torch.Tensor:
        """Return a parameter, a buffer, or a constant computed from these; the model's own tensor, if possible."""
        if placeholder in self.program.buffers:
            return self.parameters[self.program.buffers[placeholder]].detach().clone()
        recipe = self.program.constants[placeholder]
        return recipe.evaluate(self.parameters) if recipe.steps else self.parameters[recipe.result.name].detach()

    def move_to_device(self, value: object) -> Argument:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value

    def call_operator(self, node: torch.fx.Node) -> Argument:
        """Call the operator of a node on the values of its arguments, and return the result."""
        target = node.target
        if target in ASSERTS:
            return None
        args, kwargs = map_aggregate((node.args, dict(node.kwargs)), self.convert_argument)
        if kwargs and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.device}
        result = safe_function(target)(*args, **kwargs)
        if self.generator is None:
            return result
        inexact = op_kind(target) in INEXACT or op_name(target) in INEXACT_NAMES
        return tree_map(partial(self.add_rounding_noise, node), result) if inexact else result

    def convert_argument(self, value: object) -> Argument:
        """Return the value of a node's argument; dtypes are widened to ``dtype``, devices replaced by ``device``."""
        if isinstance(value, torch.fx.Node):
            value = self.env[value]
        if isinstance(value, torch.Tensor):
            return value.to(widen_dtype(value.dtype, self.dtype))
        return self.convert_constant(value)

    def convert_constant(self, value: object) -> Argument:
        """Return an argument that is no tensor; dtypes are widened, and devices replaced by ``device``."""
        if isinstance(value, torch.dtype):
            return widen_dtype(value, self.dtype)
        return self.device if isinstance(value, torch.device) else value

    def add_rounding_noise(self, node: torch.fx.Node, value: object) -> Argument:
        """Return a node's result ``value``: if it is a floating-point tensor, with random rounding errors added."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        dtype = next((v.dtype for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)), value.dtype)
        noise = self.noise(dtype) if callable(self.noise) else self.noise
        draw = torch.rand(value.shape, generator=self.generator, device=self.device, dtype=value.dtype)
        return value * (1 + noise * (2 * draw - 1))


def values_freed_after(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """Return, for each node, the nodes whose values can be freed after it, since no later node reads them."""
    read = set(graph.output_node().all_input_nodes)
    released = dict[torch.fx.Node, list[torch.fx.Node]]()
    for node in reversed(graph.nodes):
        released[node] = [n for n in (node, *node.all_input_nodes) if n not in read]
        read.update(released[node])
    return released


def widen_dtype(dtype: torch.dtype, min_dtype: torch.dtype | None) -> torch.dtype:
    """Widen a floating-point or complex dtype to at least ``min_dtype``; return other dtypes unchanged."""
    if min_dtype is None or not (dtype.is_floating_point or dtype.is_complex):
        return dtype
    return torch.promote_types(dtype, min_dtype) if dtype.itemsize > 1 else min_dtype


@contextmanager
def use_tf32(enabled: bool) -> Iterator[None]:
    """Return a context in which PyTorch's float32 matmuls on a GPU use TF32 (``enabled``) or float32."""
    cudnn, cublas = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cublas.allow_tf32
    cudnn.allow_tf32 = cublas.allow_tf32 = enabled
    try:
        yield
    finally:
        cudnn.allow_tf32, cublas.allow_tf32 = before


def output_ancestors(program: Program) -> list[frozenset[torch.fx.Node]]:
    """Return, for each output of a program, the nodes on which it depends; an empty set for a constant."""
    return [
        _ancestors(value) if isinstance(value, torch.fx.Node) else frozenset() for value in results_of(program.graph)
    ]


def _ancestors(node: torch.fx.Node) -> frozenset[torch.fx.Node]:
    seen, waiting = {node}, [node]
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n not in seen]
        seen.update(new)
        waiting += new
    return frozenset(seen)


def measure_ranges(
    program: Program, node_names: Iterable[str], percentile: float | None, batches: Iterable[Sequence[object]]
) -> Mapping[str, float]:
    """Run a program on batches of inputs; return, by node name, the largest range of the node's value in any batch: its
    largest magnitude, or a ``percentile`` of its magnitudes."""
    wanted, ranges = frozenset(node_names), dict[str, float]()

    def observe(node: torch.fx.Node, value: object) -> None:
        if node.name in wanted and isinstance(value, Tensor):
            found = _magnitude(value, percentile)
            if not math.isfinite(found):
                why = f"the activation {node.name} reaches {found} on inputs in calibration, and a range must be finite"
                raise CalibrationError(why, "leave these inputs out, or exclude the operators that read it")
            ranges[node.name] = max(ranges.get(node.name, 0.0), found)

    run = EagerRun(program, program.parameters, torch.device("cpu"), observe=observe)
    for batch in batches:
        run(batch)
    return ranges


def _magnitude(x: Tensor, percentile: float | None) -> float:
    """Return the largest magnitude of an activation's elements in one batch, or a percentile of them."""
    sizes = x.detach().float().abs().reshape(-1)
    if percentile is None or not sizes.numel() or sizes.isnan().any():
        return largest_magnitude(sizes)
    rank = max(1, round(percentile / 100 * sizes.numel()))
    return float(sizes.kthvalue(min(rank, sizes.numel())).values)
