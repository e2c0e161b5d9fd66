"""Normalize quantized graphs: rewrite quantization operators as plain operators and those of `pipeline.aten.quantized`.

`FORMS` lists these operators. This runs before decompositions, which would hide quantize/dequantize pairs.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

import torch
from torch.fx.node import map_arg

from pipeline.aten.arguments import argument_names, bind
from pipeline.aten.graphs import copy_graph, copy_node
from pipeline.aten.op_predicates import has_randomness
from pipeline.aten.quantized import operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument, Node
from pipeline.capture.fake_tensors import fake_mode
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.quantized_activations import replace_float8_casts_by_pairs
from pipeline.decomposition.quantized_arithmetic import Facts, can_use_form, schema_name
from pipeline.decomposition.quantized_forms import FORMS, PAIR, QUANTIZER_OF
from pipeline.decomposition.templates import Templates, argument_nodes, copy_calls
from pipeline.program import Program, is_operator, rename_outputs
from pipeline.records.library_support import warn_if_untested

BoundForm: TypeAlias = tuple[Argument, Argument]
"""A function that expresses a call in plain operators, and the arguments to call it with."""
CODE_DTYPES: Final = frozenset({torch.int8, torch.float8_e4m3fn})
"""The dtypes of quantized weights: if a graph casts such a weight to floats, it stays quantized in the program."""

NUMERIC_ARGUMENTS: Final = ("quant_min", "quant_max", "fake_quant_enabled")
"""Names of arguments whose values must be known, since they decide the rewritten graph."""

MIN_WEIGHT_SIZE: Final = 1024
"""The minimum number of elements of a constant that counts as a weight, and stays quantized when cast to floats."""
LIBRARIES: Final = {"torchao": "torchao", "tensorrt": "nvidia-modelopt"}
"""For each namespace of quantization operators, the Python package that defines them."""


def normalize_quantization(program: Program) -> Program:
    """Return the program with plain operators in place of the quantization operators in `FORMS`, if it has any."""
    if not any(schema_name(node.target) in FORMS or _is_quantized_tensor(node) for node in program.graph.nodes):
        return program
    for namespace in {schema_name(node.target).partition("::")[0] for node in program.graph.nodes} & LIBRARIES.keys():
        warn_if_untested(LIBRARIES[namespace])
    return replace_float8_casts_by_pairs(_Normalizer(program).normalize())


def eager_source(program: Program, normalized: Program) -> Program:
    """Return the program that eager PyTorch runs in place of engines: the captured ``program``, or ``normalized`` (by
    `normalize_quantization`) if ``program`` calls ModelOpt's own operators (``tensorrt::``). Calls whose results
    nothing reads are dropped: if one reads a number from a tensor (``item``), the CPU would wait for the GPU, which a
    CUDA graph cannot record."""
    if any(schema_name(node.target).startswith("tensorrt::") for node in program.graph.nodes):
        program = normalized
    if any(map(_is_unread_call, program.graph.nodes)):
        graph = copy_graph(program.graph)
        for node in reversed(list(graph.nodes)):
            if _is_unread_call(node):
                graph.erase_node(node)
        program = program.with_graph(graph)
    return program.without_weights()


def _is_unread_call(node: Node) -> bool:
    """Return whether a node is an operator call without random numbers, or part of its result, that no node reads."""
    computes = node.target is operator.getitem or (node.op == "call_function" and is_operator(node))
    return computes and not node.users and not has_randomness(node)


def _is_quantized_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in CODE_DTYPES


class _Normalizer:
    """Copies a program's graph, with plain operators in place of quantization operators. For each node of the program's
    graph, ``constant``: whether it is constant; ``env``: its value in the copy."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, torch.fx.Graph()
        self.templates = Templates(fake_mode(program.graph))
        self.constant: dict[Node, bool] = {}
        self.env: dict[Node, Argument] = {}

    def normalize(self) -> Program:
        for node in self.program.graph.nodes:
            self.constant[node] = is_constant(node, self.constant, self.program)
            self.env[node] = self.rewrite_node(node)
        outputs = rename_outputs(self.program.outputs, self.graph)
        return self.program.with_graph(self.graph, outputs=outputs)

    def rewrite_node(self, node: Node) -> Argument:
        """Return the copy of a node in the new graph, or the results of the plain operators that replace it."""
        found = self.node_form(node) if node.op == "call_function" else None
        if found is not None:
            function, args = found
            values = map_arg(args, self.env.__getitem__)
            template = self.templates.find(function, node.target, values, {}, node.meta["val"])
            if template is not None:
                return copy_calls(template.graph, argument_nodes(values, {}), self.graph, node)
        if node.op != "call_function":
            return copy_node(node, self.graph, self.env.__getitem__)
        if node.target is operator.getitem:
            source, place = node.args
            parts: Argument = self.env[source]  # type: ignore[index]
            if isinstance(parts, tuple):
                return parts[place]  # type: ignore[index]
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self.env.__getitem__)
        copy = self.graph.create_node("call_function", node.target, args, kwargs, node.name)
        copy.meta = dict(node.meta)
        return copy

    def node_form(self, node: Node) -> BoundForm | None:
        """Return a function that expresses a node in plain operators, and its arguments; None if the node stays."""
        name = schema_name(node.target)
        if name in FORMS and can_use_form(node, name, FORMS):
            given = dict(zip(argument_names(node.target), self.bind_arguments(node), strict=True))
            return self.pair_form(node, name, given) or self.bind_form(FORMS[name], given)
        source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if source is None or op_kind(node.target) is not Kind.CASTS or not _is_quantized_tensor(source):
            return None
        value, wanted = source.meta["val"], node.meta["val"].dtype
        is_float = wanted.is_floating_point and wanted not in CODE_DTYPES
        is_weight = self.constant[source] and value.numel() >= MIN_WEIGHT_SIZE and is_float
        return (_set_name(partial(_dequantize_instead_of_cast, wanted), f"{wanted}"), (source,)) if is_weight else None

    def bind_arguments(self, node: Node) -> list[Argument]:
        """Return a node's arguments by position; a constant tensor in `NUMERIC_ARGUMENTS` becomes an int."""
        values = bind(node.target, node.args, dict(node.kwargs))
        rows = zip(argument_names(node.target), values, strict=True)
        return [int(self.evaluate(v)) if name in NUMERIC_ARGUMENTS and self.constant.get(v) else v for name, v in rows]

    def pair_form(self, node: Node, name: str, arguments: Mapping[str, Argument]) -> BoundForm | None:
        """Match a dequantizing node that reads a quantizing node with the same scale and other arguments: return a
        function that computes both in plain operators, and its arguments. Return None for other nodes."""
        first = next(iter(arguments.values()))
        if name not in QUANTIZER_OF or not isinstance(first, Node) or schema_name(first.target) != QUANTIZER_OF[name]:
            return None
        other = dict(zip(argument_names(first.target), self.bind_arguments(first), strict=True))
        theirs, ours = list(other.values())[1:], list(arguments.values())[1:]
        numbers = other[next(iter(other))]
        if numbers.meta["val"].dtype != node.meta["val"].dtype or "float8" in name:
            return None
        if not all(map(self.is_same_argument, theirs, ours)):
            return None
        return self.bind_form(FORMS[name], {**arguments, next(iter(arguments)): numbers}, (PAIR,), len(other))

    def is_same_argument(self, a: Argument, b: Argument) -> bool:
        """Return whether two arguments are the same node, equal Python values or constant nodes of one equal number: an
        export may have a separate constant for each use of a number."""
        if isinstance(a, Node) and isinstance(b, Node) and a is not b:
            small = all(self.constant.get(each) and each.meta["val"].numel() == 1 for each in (a, b))
            return small and torch.equal(self.evaluate(a), self.evaluate(b))
        return a is b or (type(a) is type(b) and not isinstance(a, Node) and a == b)

    def bind_form(
        self, form: Argument, values: Mapping[str, Argument], extra: tuple[Argument, ...] = (), count: int | None = None
    ) -> BoundForm:
        """Return a function that computes a quantization operator by plain operators, and its arguments.

        ``values``: the operator's arguments, by name. The function's arguments are the first ``count`` of them (None:
        all). It returns ``form(known, *arguments, *extra)``, where ``known`` are the call's `Facts`.
        """
        tensors = {name: value for name, value in values.items() if isinstance(value, Node)}
        constant = {name for name, value in values.items() if not isinstance(value, Node) or self.constant[value]}
        constant |= {"scale"} if "scales" in constant else set()
        zero = next((value for name, value in values.items() if name.startswith("zero_point")), 0)
        known = Facts(frozenset(constant & {*tensors, "scale"}), self.shared_zero_point(zero))
        args = tuple(values.values())[:count]
        names = sorted(known.constant)
        return _set_name(lambda *a: form(known, *a, *extra), f"{form.__name__}{names}{known.zero}{bool(extra)}"), args

    def shared_zero_point(self, zero: Argument) -> int | None:
        """Return the zero point that all elements share; None if zero points differ or are not constant."""
        if zero is None or isinstance(zero, int):
            return zero or 0
        if not self.constant.get(zero):
            return None
        value = self.evaluate(zero)
        if value.numel() == 0:
            return 0
        first = value.reshape(-1)[0]
        return int(first) if bool((value == first).all()) and float(first).is_integer() else None

    def evaluate(self, node: Node) -> torch.Tensor:
        """Compute the value of a constant node, such as a zero point on which the rewritten graph depends."""
        if node.op == "placeholder":
            return self.program.constants[node.name].evaluate(self.program.parameters)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self.evaluate)
        result: torch.Tensor = node.target(*args, **kwargs)  # type: ignore[operator]
        return result


def _set_name(function: Argument, name: str) -> Argument:
    """Give a function a name that is unique, since `Templates` distinguishes functions by name."""
    function.__name__ = name
    return function


def _dequantize_instead_of_cast(dtype: torch.dtype, weight: torch.Tensor) -> Argument:
    """Return a quantized weight as floats of ``dtype``. A dequantization of scale 1 replaces the graph's cast: it is
    never folded, so the program keeps the quantized weight."""
    one = torch.ones((), dtype=torch.float32, device=weight.device)
    type = "int8" if weight.dtype == torch.int8 else "fp8"
    return operators.dequantize(weight, one, type, [-1] * weight.dim(), dtype)
