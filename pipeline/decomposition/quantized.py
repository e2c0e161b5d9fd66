"""Normalize quantized graphs: rewrite every operator in `FORMS` as plain operators and the operators of
`pipeline.aten.quantized`.

This runs before any decomposition, since quantize/dequantize pairs are recognised by their operators.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Final

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import bind, names_of
from pipeline.aten.graphs import copied, copied_node, pasted
from pipeline.aten.naming import origin
from pipeline.aten.op_predicates import draws_random
from pipeline.aten.quantized import operators
from pipeline.aten.traits import Does, does
from pipeline.aten.types import Argument, Node
from pipeline.capture.fake_tensors import fake_mode
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.quantized_activations import paired_casts
from pipeline.decomposition.quantized_arithmetic import Known
from pipeline.decomposition.quantized_forms import FORMS, PAIR, PAIRS
from pipeline.decomposition.quantized_scales import schema_name, takes_part
from pipeline.decomposition.templates import Templates, nodes_of
from pipeline.program import Program, is_operator, rename_outputs
from pipeline.records.library_support import warn_untested

HELD: Final = frozenset({torch.int8, torch.float8_e4m3fn})
"""The dtypes of weights that stay quantized if a graph casts them to floats."""

NUMBERS: Final = ("quant_min", "quant_max", "fake_quant_enabled")
"""Arguments whose values decide the rewritten graph."""

FEW: Final = 1024
"""The number of elements from which a constant tensor may be a weight, and is not read as numbers."""
LIBRARIES: Final = {"torchao": "torchao", "tensorrt": "nvidia-modelopt"}
"""The library that has the operators of a namespace."""


def normalized(program: Program) -> Program:
    """Return the program with the quantization operators in `FORMS` rewritten; the same program if it has none."""
    if not any(schema_name(node.target) in FORMS or _is_held(node) for node in program.graph.nodes):
        return program
    for namespace in {schema_name(node.target).partition("::")[0] for node in program.graph.nodes} & LIBRARIES.keys():
        warn_untested(LIBRARIES[namespace])
    return paired_casts(_Normalizer(program).run())


def source_of(program: Program, uniform: Program) -> Program:
    """Return the program that eager PyTorch runs in place of engines: the captured program, or the normalized program
    if the captured one runs only on its GPU, like ModelOpt's INT8. Unread nodes are dropped: to read a number from a
    tensor would wait for the GPU, which a CUDA graph must not do."""
    if any(schema_name(node.target).startswith("tensorrt::") for node in program.graph.nodes):
        program = uniform
    if any(map(_is_unused, program.graph.nodes)):
        graph = copied(program.graph)
        for node in reversed(list(graph.nodes)):
            if _is_unused(node):
                graph.erase_node(node)
        program = program.with_graph(graph)
    return program.as_source()


def _is_unused(node: Node) -> bool:
    computes = node.target is operator.getitem or (node.op == "call_function" and is_operator(node))
    return computes and not node.users and not draws_random(node)


def _is_held(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in HELD


class _Normalizer:
    """The rewriting of one graph. ``constant``: whether each node of the program's graph is constant."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, torch.fx.Graph()
        self.templates = Templates(fake_mode(program.graph))
        self.constant: dict[Node, bool] = {}
        self.env: dict[Node, Argument] = {}

    def run(self) -> Program:
        for node in self.program.graph.nodes:
            self.constant[node] = is_constant(node, self.constant, self.program)
            self.env[node] = self.rewritten(node)
        outputs = rename_outputs(self.program.outputs, self.graph)
        return self.program.with_graph(self.graph, outputs=outputs)

    def rewritten(self, node: Node) -> Argument:
        """Return a node's copy, or the plain operators that express it: several nodes for several results."""
        found = self.form(node) if node.op == "call_function" else None
        if found is not None:
            function, args = found
            values = map_arg(args, self.env.__getitem__)
            template = self.templates.of(function, node.target, values, {}, node.meta["val"])

            def emit(call: Node, args: Argument, kwargs: Argument) -> Node:
                made = self.graph.create_node("call_function", call.target, tuple(args), dict(kwargs))
                made.meta = {**origin(node.meta), "val": call.meta.get("val")}
                return made

            if template is not None:
                return pasted(template.graph, nodes_of(values, {}), emit)
        if node.op != "call_function":
            return copied_node(node, self.graph, self.env.__getitem__)
        if node.target is operator.getitem:
            source, place = node.args
            parts: Argument = self.env[source]  # type: ignore[index]
            if isinstance(parts, tuple):
                return parts[place]  # type: ignore[index]
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self.env.__getitem__)
        copy = self.graph.create_node("call_function", node.target, args, kwargs, node.name)
        copy.meta = dict(node.meta)
        return copy

    def form(self, node: Node) -> tuple[Argument, Argument] | None:
        """Return the function that expresses a node in plain operators, and its arguments; None if it has none."""
        name = schema_name(node.target)
        if name in FORMS and takes_part(node, name, FORMS):
            given = dict(zip(names_of(node.target), self.bound(node), strict=True))
            return self.partner(node, name, given) or self.called(FORMS[name], given)
        source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if source is None or does(node.target) is not Does.CASTS or not _is_held(source):
            return None
        value, wanted = source.meta["val"], node.meta["val"].dtype
        is_weight = self.constant[source] and value.numel() >= FEW and wanted.is_floating_point and wanted not in HELD
        return (_named(partial(_cast_weight, wanted), f"{wanted}"), (source,)) if is_weight else None

    def bound(self, node: Node) -> list[Argument]:
        """Return a call's arguments. Range ends and switches that are constant tensors become numbers."""
        values = bind(node.target, node.args, dict(node.kwargs))
        rows = zip(names_of(node.target), values, strict=True)
        return [int(self.value(v)) if name in NUMBERS and self.constant.get(v) else v for name, v in rows]

    def partner(self, node: Node, name: str, given: Mapping[str, Argument]) -> tuple[Argument, Argument] | None:
        """Return the form that fuses a dequantizing step with a quantizing step of equal scales; else None."""
        first = next(iter(given.values()))
        if name not in PAIRS or not isinstance(first, Node) or schema_name(first.target) != PAIRS[name]:
            return None
        other = dict(zip(names_of(first.target), self.bound(first), strict=True))
        theirs, ours = list(other.values())[1:], list(given.values())[1:]
        numbers = other[next(iter(other))]
        if numbers.meta["val"].dtype != node.meta["val"].dtype or "float8" in name:
            return None
        if not all(map(self.same, theirs, ours)):
            return None
        return self.called(FORMS[name], {**given, next(iter(given)): numbers}, (PAIR,), len(other))

    def same(self, a: Argument, b: Argument) -> bool:
        """Return whether two arguments are one node or equal numbers: an export has a separate tensor per use."""
        if isinstance(a, Node) and isinstance(b, Node) and a is not b:
            small = all(self.constant.get(each) and each.meta["val"].numel() == 1 for each in (a, b))
            return small and torch.equal(self.value(a), self.value(b))
        return a is b or (type(a) is type(b) and not isinstance(a, Node) and a == b)

    def called(
        self, form: Argument, given: Mapping[str, Argument], more: tuple[Argument, ...] = (), count: int | None = None
    ) -> tuple[Argument, Argument]:
        """Return a call of a form with the known facts about the arguments: a function, and its arguments."""
        tensors = {name: value for name, value in given.items() if isinstance(value, Node)}
        constant = {name for name, value in given.items() if not isinstance(value, Node) or self.constant[value]}
        constant |= {"scale"} if "scales" in constant else set()
        zero = next((value for name, value in given.items() if name.startswith("zero_point")), 0)
        known = Known(frozenset(constant & {*tensors, "scale"}), self.zero(zero))
        args = tuple(given.values())[:count]
        names = sorted(known.constant)
        return _named(lambda *a: form(known, *a, *more), f"{form.__name__}{names}{known.zero}{bool(more)}"), args

    def zero(self, zero: Argument) -> int | None:
        """Return the zero point that all elements share; None if zero points differ or are not constant."""
        if zero is None or isinstance(zero, int):
            return zero or 0
        if not self.constant.get(zero):
            return None
        value = self.value(zero)
        if value.numel() == 0:
            return 0
        first = value.reshape(-1)[0]
        return int(first) if bool((value == first).all()) and float(first).is_integer() else None

    def value(self, node: Node) -> torch.Tensor:
        """Return a constant's value. Only zero points need their values, which decide the rewritten graph."""
        if node.op == "placeholder":
            return self.program.constants[node.name].evaluate(self.program.parameters)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self.value)
        result: torch.Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
        return result


def _named(function: Argument, name: str) -> Argument:
    """Give a function a unique name, which distinguishes its traces."""
    function.__name__ = name
    return function


def _cast_weight(dtype: torch.dtype, weight: torch.Tensor) -> Argument:
    """Dequantize a weight that the graph casts to floats, so that the weight stays quantized."""
    one = torch.ones((), dtype=torch.float32, device=weight.device)
    type = "int8" if weight.dtype == torch.int8 else "fp8"
    return operators.dequantize(weight, one, type, [-1] * weight.dim(), dtype)
