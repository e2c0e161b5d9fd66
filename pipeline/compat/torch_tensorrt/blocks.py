"""Create the building blocks of converters (`impl`): functions that each add the layers of an ATen call.

Their first four parameters are the same as in Torch-TensorRT. The calls are nested records (`Call`); they are
decomposed, validated and converted like the calls in a model, while a converter runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

import numpy as np
import torch
from attrs import field, frozen

from pipeline.aten.graphs import graph_module, results_of
from pipeline.aten.types import Argument as Argument
from pipeline.aten.types import Function, Operator, Target
from pipeline.aten.types import aten as aten
from pipeline.capture.fake_tensors import fake_result
from pipeline.compat.torch_tensorrt.values import NetworkFakes, as_context, transpose_constant
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.errors import PipelineError, error_text
from pipeline.frozen import FrozenDict
from pipeline.impl import barriers, base
from pipeline.network.context import ConversionContext, NetworkError, SymbolicInt
from pipeline.network.marks import Marks
from pipeline.program import Output, Program, Validated
from pipeline.quirks.applied import find_marks
from pipeline.recipes import qualified_name
from pipeline.shapes.environment import ShapeEnvironment, expression
from pipeline.stages import Decompose, Validate
from pipeline.trt import trt

DECOMPOSE: Final = Decompose(DYNAMO_CONVERTERS, DECOMPOSITIONS)
VALIDATE: Final = Validate(DYNAMO_CONVERTERS)


@frozen(eq=False)
class Call:
    """An ATen call to add to the network; its arguments are tensors, numbers, sizes, or results of other `Call`s."""

    target: Target
    args: tuple[Argument, ...]
    kwargs: FrozenDict[str, Argument]

    def __getitem__(self, index: int) -> Call:
        """Return result number ``index`` of an operator that returns several results, as a `Call`."""
        return call(operator.getitem, self, index)


Expression: TypeAlias = Call | list[Call | None]
"""What a building block's function returns: an ATen call, or a list of calls (None for a missing result)."""


def call(target: Target, *args: Argument, **kwargs: Argument) -> Call:
    """Create a `Call`, which describes a call of an ATen operator (``target``); nothing is added to the network yet."""
    return Call(target, args, FrozenDict(kwargs))


def add_layers_of(ctx: ConversionContext, name: str, calls: Argument) -> Argument:
    """Add the layers of ``calls``, a `Call` or a list of `Call` and None, to the network; return an ``ITensor`` or a
    list. Raise a `NetworkError` if torch or every converter rejects a call."""
    graph = _CallGraph(NetworkFakes.of(ctx))
    several = isinstance(calls, list | tuple)
    graph.graph.output(tuple(map(graph.add_argument, calls)) if several else (graph.add_argument(calls),))
    validated = VALIDATE(DECOMPOSE(graph.create_program()))
    env = _convert_nodes(ctx, name, validated, graph.env)

    def tensors(result: Argument) -> Argument:
        """Convert a result to a tensor of the network, or to a list of tensors; None for a missing result."""
        result = env[result.name] if isinstance(result, torch.fx.Node) else result
        if isinstance(result, list | tuple):
            return list(map(tensors, result))
        return None if result is None else base.tensor(ctx, name, result)

    found = [tensors(each) for each in results_of(validated.program.graph)]
    return found if several else found[0]


def _convert_nodes(
    ctx: ConversionContext, name: str, validated: Validated, inputs: dict[str, Argument]
) -> dict[str, Argument]:
    """Add the layers of ``validated.program`` for these ``inputs``; return the values of its nodes, by node name."""
    program, env, around = validated.program, dict(inputs), (ctx.node, ctx.marks)
    marks = find_marks([node for node in program.graph.nodes if node.op == "call_function"], ctx.ranges)
    ctx.marks = Marks([*ctx.marks.of_whole_segment(), *marks])
    try:
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name not in env:
                env[node.name] = program.constants[node.name].evaluate({})
            elif node.op == "call_function":
                ctx.node = node
                env[node.name] = _convert_node(ctx, name, node, validated, env)
                ctx.record_result_shapes(env[node.name], node.meta.get("val"))
    finally:
        ctx.node, ctx.marks = around
    return env


def _convert_node(
    ctx: ConversionContext, name: str, node: torch.fx.Node, validated: Validated, env: dict[str, Argument]
) -> Argument:
    """Add a node's layers by its converter in ``validated``; return the result. ``env``: results of earlier nodes."""
    verdict = validated.verdicts[node.name]
    if verdict.choice is None:
        reasons = "; ".join(map(str, verdict.reasons))
        raise NetworkError(f"{name}: no converter supports this call of {verdict.target}: {reasons}")
    args, kwargs = barriers.converted_arguments(ctx, name, node, lambda each: env[each.name])
    made = verdict.choice.support.converter_implementation(ctx, node.target, args, kwargs, name)
    return barriers.separate_result_if_marked(ctx, name, node, made)


@frozen(eq=False)
class _CallGraph:
    """An FX graph of `Call`s. Its placeholders stand for tensors and sizes of the network: ``env``, by name."""

    stand_ins: NetworkFakes
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    env: dict[str, Argument] = field(factory=dict)

    def add_argument(self, argument: Argument, schema_type: str = "Tensor") -> Argument:
        """Return the node of a tensor or run-time size, or a plain value; ``schema_type``: such as ``Tensor?``."""
        if isinstance(argument, Call):
            return self.add_call(argument)
        if isinstance(argument, list | tuple | trt.Dims):
            return [self.add_argument(each, schema_type) for each in argument]
        if argument is None or isinstance(argument, torch.fx.Node | str | torch.dtype):
            return argument
        return self.add_tensor(argument) if "Tensor" in schema_type else self.add_number(argument)

    def add_tensor(self, value: Argument) -> torch.fx.Node:
        """Return the graph's node for a tensor argument: an ``ITensor``, a constant, or a number."""
        if isinstance(value, SymbolicInt):
            value = base.size_as_scalar(self.stand_ins.ctx, "size", value)
        if not isinstance(value, trt.ITensor | torch.Tensor):
            value = torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.tensor(value)
        if isinstance(value, torch.Tensor):
            value = transpose_constant(self.stand_ins.ctx, "constant", value)
        return self.add_placeholder(value, self.stand_ins.fake_tensor(value))

    def add_number(self, value: Argument) -> Argument:
        """Return a number argument unchanged, or the graph's node for a size that is known only at run time."""
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, trt.ITensor):
            size = self.stand_ins.size_or_element(value, None)
            return size if isinstance(size, int) else self.add_placeholder(SymbolicInt(expression(size)), size)
        return self.add_placeholder(value, self.stand_ins.to_symint(value)) if isinstance(value, SymbolicInt) else value

    def add_placeholder(self, network_value: Argument, fake_value: Argument) -> torch.fx.Node:
        """Add a placeholder for a tensor or size of the network, with its fake value as ``meta["val"]``; return it."""
        node = self.graph.placeholder("given")
        node.meta["val"], self.env[node.name] = fake_value, network_value
        return node

    def add_call(self, call: Call) -> torch.fx.Node:
        if call.target is operator.getitem:
            return self.add_node(call.target, (self.add_call(call.args[0]), call.args[1]), {})
        schema = {a.name: str(a.type) for a in call.target._schema.arguments}
        args = [self.add_argument(given, kind) for given, kind in zip(call.args, schema.values(), strict=False)]
        kwargs = {k: self.add_argument(v, schema[k]) for k, v in call.kwargs.items()}
        return self.add_node(call.target, tuple(args), kwargs)

    def add_node(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> torch.fx.Node:
        """Add a call of ``target`` whose arguments are nodes or plain values; raise an error if torch rejects them."""
        try:
            fake = fake_result(self.stand_ins.mode, target, args, kwargs)
        except Exception as error:
            raise NetworkError(f"torch rejects this call of {qualified_name(target)}: {error_text(error)}") from error
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = fake
        return node

    def create_program(self) -> Program:
        """Return the graph as a program. ``inputs`` is empty: the placeholders' values are in ``env``, not passed."""
        ctx = self.stand_ins.ctx
        return Program(
            graph_module=graph_module(torch.nn.Module(), self.graph),
            inputs=(),
            outputs=tuple(Output(getattr(r, "name", r)) for r in results_of(self.graph)),
            constants=FrozenDict(),
            buffers=FrozenDict(),
            parameters=FrozenDict(),
            shapes=ShapeEnvironment.from_ranges(ctx.ranges),
            in_spec=None,
            out_spec=None,
            settings=ctx.compilation_settings.evolve(torch_executed_ops=frozenset()),
        )


FIRST: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("ctx", "target", "source_ir", "name")
)


class BlockError(PipelineError, NotImplementedError):
    """A building block (a helper such as ``impl.conv.convNd``) does not exist here, or does not accept these arguments;
    the message has the reason and an alternative."""


def block(function: Callable[..., Expression], description: str = "") -> Function:
    """Create a building block, which adds layers for a converter, from a function that returns ATen calls (`Call`).
    ``description`` is the block's docstring if the function has none.

    The block is called `(ctx, target, source_ir, name, …)` and returns the results of the ATen calls: an ``ITensor``,
    or a list. ``ctx`` is the converter's first argument: a context or, in the LEGACY calling convention, a network.
    Layers are called ``name``; ``target`` and ``source_ir`` have no effect.
    """
    own = tuple(inspect.signature(function).parameters.values())
    whole = inspect.Signature((*FIRST, *own))

    @functools.wraps(function)
    def layers(*args: Argument, **kwargs: Argument) -> Argument:
        bound = whole.bind(*args, **kwargs)
        bound.apply_defaults()
        ctx, _, _, name = (bound.arguments.pop(each.name) for each in FIRST)
        given = inspect.BoundArguments(inspect.Signature(own), bound.arguments)
        return add_layers_of(as_context(ctx), name, function(*given.args, **given.kwargs))

    layers.__signature__, layers.__doc__ = whole, function.__doc__ or description  # type: ignore[attr-defined]
    return layers


def op_block(operator: Operator, *parameter_names: str, **defaults: Argument) -> Function:
    """Create a building block (see `block`) that adds the layers of one ATen operator. Its own parameters are, in the
    order of the operator's: ``parameter_names``, then the names in ``defaults`` with these default values."""

    def convert(*args: Argument) -> Expression:
        return call(operator, *args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    rows = [inspect.Parameter(name, kind) for name in parameter_names]
    rows += (inspect.Parameter(name, kind, default=value) for name, value in defaults.items())
    convert.__signature__ = inspect.Signature(rows)  # type: ignore[attr-defined]
    convert.__doc__ = f"{operator}"
    return block(convert)


def unsupported(block_name: str, reason: str, instead: str) -> Function:
    """Create a building block that always raises `BlockError`, with the reason and what to use instead."""

    def raise_error(*args: Argument, **kwargs: Argument) -> NoReturn:
        raise BlockError(f"{block_name} is not supported here: {reason}; {instead}")

    raise_error.__name__, raise_error.__doc__ = block_name.rpartition(".")[2], f"Refused: {reason}; {instead}."
    return raise_error


def require(allowed: bool, block_name: str, reason: str, instead: str) -> None:
    """Raise a `BlockError` if ``allowed`` is False, with the reason and what to use instead."""
    if not allowed:
        raise BlockError(f"{block_name} does not accept these arguments: {reason}; {instead}")
