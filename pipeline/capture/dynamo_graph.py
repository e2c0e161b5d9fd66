"""Wrap a Dynamo graph in a module, which is captured with the size ranges that Dynamo knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import torch
from torch._C import _functorch
from torch.export import Dim
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as provenance

from pipeline.aten.types import Argument
from pipeline.capture.capture import capture
from pipeline.errors import PipelineError, source_line
from pipeline.program import Program
from pipeline.settings import CompilationSettings
from pipeline.shapes.from_export import UNBOUNDED_FACTOR


class NotCapturedError(PipelineError):
    """Raised if a Dynamo graph cannot be captured; the message contains the reason and the user's line."""


class DynamoGraph(torch.nn.Module):
    """Dynamo's graph as a module that contains the weights and constant numbers; other tensors and ints are its inputs.
    ``values``: the arguments in the call that triggered the compilation."""

    def __init__(self, graph_module: GraphModule, values: Mapping[Node, Argument], weights: Sequence[Node]) -> None:
        super().__init__()
        self.training = False
        self.values, self.weights = values, weights
        self.run_graph = partial(_run_dynamo_graph, graph_module)
        for node in weights:
            self.register_buffer(node.name, values[node])
        self.numbers: dict[Node, Argument] = {n: number for n in values if (number := _wrapped_number(n)) is not None}
        rest = [node for node in values if node not in weights and node not in self.numbers]
        self.size_sources = {
            str(size): (node, dim)
            for node in rest
            if isinstance(values[node], torch.Tensor)
            for dim, size in enumerate(_symbolic_sizes(node))
        }
        self.numbers |= {node: _int_if_number(values[node]) for node in rest if not _is_dynamic_argument(values[node])}
        self.inputs = [node for node in rest if node not in self.numbers and str(values[node]) not in self.size_sources]

    def forward(self, *inputs: object) -> Argument:
        """Compute the results of Dynamo's graph."""
        weights = {node: getattr(self, node.name) for node in self.weights}
        known: dict[Node, Argument] = {**self.numbers, **weights, **dict(zip(self.inputs, inputs, strict=True))}
        for node in (node for node in self.values if node not in known):
            tensor, dim = self.size_sources[str(self.values[node])]
            known[node] = known[tensor].shape[dim]
        return self.run_graph(*(known[node] for node in self.values))

    def capture_program(self, settings: CompilationSettings) -> Program:
        """Capture Dynamo's graph as a program, with Dynamo's ranges of its sizes."""
        dims: dict[str, Argument] = {}
        shapes = tuple(_dynamic_shapes_entry(node, dims) for node in self.inputs)
        examples = [_example_if_symbol(self.values[node]) for node in self.inputs]
        try:
            return capture(self, examples, dynamic_shapes=(shapes,) if shapes else None, settings=settings)
        except PipelineError as error:
            if settings.require_full_compilation:
                raise
            cause: BaseException | None = error
            while cause is not None and not hasattr(cause, _FAILED_LINE):
                cause = cause.__cause__
            reason, place = error.message.partition("\n")[0], getattr(cause, _FAILED_LINE, "")
            raise NotCapturedError(f"{reason} ({place})" if place else reason) from error

    def add_size_guards(self, program: Program) -> None:
        """Evaluate the program's size conditions on Dynamo's symbolic sizes, so that Dynamo adds them to its guards."""
        known: dict[str, Argument] = {}
        for port, node in zip(program.inputs, self.inputs, strict=True):
            exprs = port.shape if port.kind == "tensor" else (port.value,)
            for expr, size, ends in zip(exprs, _symbolic_sizes(node), port.ranges, strict=True):
                known[str(expr)] = size
                bool(size >= ends.min)
                bool(size <= ends.max)
        for relation in program.shapes.relations:
            if relation.symbols <= known.keys():
                relation.holds(known)


def _run_dynamo_graph(module: GraphModule, *args: Argument) -> Argument:
    """Run Dynamo's graph and return its results. If the graph itself computes derivatives (``torch.func.grad``), enable
    gradients, and detach the weights: otherwise results would be wrappers of ``torch.func`` and not plain tensors."""
    derivatives = (_functorch._grad_increment_nesting, _functorch._jvp_increment_nesting)
    has_derivatives = any(node.target in derivatives for node in module.graph.nodes)
    if has_derivatives:
        args = tuple(arg.detach() if isinstance(arg, torch.Tensor) and arg.requires_grad else arg for arg in args)
    with provenance.preserve_node_meta(), torch.enable_grad() if has_derivatives else nullcontext():
        return _GraphInterpreter(module).run(*args)


class _GraphInterpreter(Interpreter):
    """An interpreter of Dynamo's graph that gives each traced node the user's source line."""

    def run_node(self, n: Node) -> Argument:
        """Run a node of Dynamo's graph; if it fails, store the user's source line in the exception."""
        provenance.get_current_meta().update({"stack_trace": n.stack_trace} if n.stack_trace else {})
        try:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            setattr(error, _FAILED_LINE, source_line(n))
            raise

    def call_function(self, target: Argument, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> Argument:
        """Call a function; replace Dynamo's functions for ``x.data`` and ``x.data = y`` by the original operations."""
        name = getattr(target, "__name__", "")
        if name == "_get_data_attr":
            return args[0].data
        if target is torch.Tensor.set_ and len(args) == 2:
            args[0].data = args[1]
            return args[0]
        return args[0] if name == "_lower_version_count_by_1" else super().call_function(target, args, kwargs)


_FAILED_LINE: Final = "_pipeline_place"
"""The attribute of an exception that stores the user's source line of the node that raised it."""


class _FloatWithItem(float):
    """A float with an ``item`` method, which replaces the 0-d tensor that Dynamo passes for a float."""

    def item(self) -> float:
        return float(self)


class _IntWithItem(int):
    """An int with an ``item`` method, which replaces the 0-d tensor that Dynamo passes for an int."""

    def item(self) -> int:
        return int(self)


def _wrapped_number(node: Node) -> float | int | None:
    """Return the number that an input's 0-d tensor stands for in Dynamo's graph; None for an ordinary tensor."""
    if node.meta.get("tensor_dict") is not None:  # only what was no tensor has none
        return None
    items: list[Argument] = [user.meta.get("example_value") for user in node.users if user.target == "item"]
    if items:
        return _IntWithItem(items[0]) if isinstance(items[0], torch.SymInt | int) else _FloatWithItem(items[0])
    size: Argument = getattr(node.meta["example_value"], "item_memo", None)  # a whole number of numpy's
    is_read = isinstance(size, torch.SymInt) and all(_is_combined_with_tensor(node, user) for user in node.users)
    return int(size) if is_read and size.node.has_hint() else None


def _is_combined_with_tensor(number: Node, user: Node) -> bool:
    """Return whether ``user``, a node that reads the 0-d tensor ``number``, also reads a tensor with dims. Such a node
    accepts a Python number in place of the 0-d tensor."""
    tensors = (n for n in user.all_input_nodes if isinstance(n.meta.get("example_value"), torch.Tensor))
    return any(n is not number and n.meta["example_value"].ndim for n in tensors)


def _symbolic_sizes(placeholder: Node) -> Sequence[Argument]:
    """Return the symbolic sizes that Dynamo has for a tensor input, or the symbolic number of a number input."""
    value = placeholder.meta["example_value"]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _is_dynamic_argument(value: object) -> bool:
    """Return whether a value is a tensor or a symbolic int above 1; torch treats 0 and 1 as constants."""
    return isinstance(value, torch.Tensor) or (isinstance(value, torch.SymInt) and _example_if_symbol(value) > 1)


def _int_if_number(value: Argument) -> Argument:
    """Return a symbolic int or 0-d tensor as a Python int; any other object, such as a device mesh, unchanged."""
    return int(value) if isinstance(value, int | torch.SymInt | torch.Tensor) else value


def _example_if_symbol(value: object) -> Argument:
    """Return the value of a symbolic int in the example call; any other object unchanged."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


def _dynamic_shapes_entry(placeholder: Node, dims: dict[str, Argument]) -> object:
    """Return an input's ``dynamic_shapes`` entry. ``dims``: the ``Dim`` of each Dynamo symbol, to which it adds."""
    if not isinstance(placeholder.meta["example_value"], torch.Tensor):
        return Dim.DYNAMIC
    sizes = {dim: size for dim, size in enumerate(_symbolic_sizes(placeholder)) if isinstance(size, torch.SymInt)}
    return {dim: dims.setdefault(str(size), _make_dim(size)) for dim, size in sizes.items() if size.node.expr.is_Symbol}


def _make_dim(size: torch.SymInt) -> Dim:
    """Return a ``Dim`` with Dynamo's range of a size, or with a default maximum if the range has no upper bound."""
    ends = size.node.shape_env.bound_sympy(size.node.expr)
    high = int(ends.upper) if ends.upper.is_Integer else max(UNBOUNDED_FACTOR * _example_if_symbol(size), 16)
    return Dim(str(size), min=int(ends.lower), max=high)
