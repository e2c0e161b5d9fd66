"""autocast: ``Program`` → ``Program``. Run matmuls in half precision, and operators that need a wide range in float32.

Before: a model in float32, or partly in float32. After: the same model in mixed precision, by the rules of
``pipeline.improvements.precision``, with the same inputs, outputs and mutated buffers. Recipes cast the weights once,
so that engines hold half-precision weights and can be refitted from the model's original parameters. Insert the stage
before ``decompose``, where norms and attention are still single operators.
"""

from __future__ import annotations

import logging
from functools import reduce
from typing import Any

import torch
from attrs import field, frozen
from torch.fx.node import map_arg

from pipeline.aten.dtypes import short_name
from pipeline.aten.graphs import copy_node
from pipeline.aten.naming import module_path, origin_of
from pipeline.aten.types import Argument, Node, Target, aten
from pipeline.capture.fake_tensors import fake_mode, fake_result
from pipeline.improvements.precision import (
    STATISTICS,
    Excluded,
    Rule,
    check_exclude,
    excludes,
    op_name,
    rule_for,
    warn_of_unmatched,
)
from pipeline.program import Program, is_operator, rename_outputs
from pipeline.recipes import qualified_name

log = logging.getLogger(__name__)

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)
CASTS = (aten._to_copy.default, aten.to.dtype)
EXCLUDED = "exclude matches it, so it keeps its dtype"
FAILED = "PyTorch supports it only in the dtype that the model gives it"


def _check_half_dtype(_instance: object, _field: object, value: object) -> None:
    if not isinstance(value, torch.dtype):
        raise TypeError(f"autocast takes a dtype, torch.float16 or torch.bfloat16, got {value!r}")
    if value not in HALVES:
        raise ValueError(f"autocast takes torch.float16 or torch.bfloat16, got {value}")


@frozen
class Decision:
    """The mixed-precision decision about one operator: the dtype of its result, the rule, and the reason."""

    node: str
    target: str
    dtype: str
    rule: Rule

    def __str__(self) -> str:
        return f"{self.node}: {self.target}: {self.dtype}: {self.rule.reason}"


@frozen
class Autocast:
    """The mixed-precision stage. ``dtype``: the dtype of matmuls. ``exclude``: operators that keep their dtype."""

    dtype: torch.dtype = field(default=torch.float16, validator=_check_half_dtype)
    exclude: tuple[Excluded, ...] = field(default=(), converter=check_exclude)
    name: str = "autocast"

    def __call__(self, program: Program) -> Program:
        """Return the program in mixed precision; the argument is not changed."""
        warn_of_unmatched(self.exclude, program.graph, self.name, log)
        return _Caster(program, self).cast()

    def decisions(self, program: Program) -> tuple[Decision, ...]:
        """Return the decision about each operator, in the order of the program."""
        caster = _Caster(program, self)
        caster.cast()
        return tuple(caster.decisions)

    def explain(self, program: Program) -> str:
        """Return the decisions as text, one per line, and how many operators have each result dtype."""
        made = self.decisions(program)
        counts = {d.dtype: sum(e.dtype == d.dtype for e in made) for d in made}
        total = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(counts.items()))
        return "\n".join([*map(str, made), f"{len(made)} operators: {total}"])

    def rule(self, node: Node) -> Rule:
        """Return the rule that decides to which dtypes a node's inputs are cast. If ``exclude`` names the node, its
        inputs keep their original dtypes."""
        path = module_path(node)
        if any(excludes(entry, node.target, path) for entry in self.exclude):
            return Rule("float32", EXCLUDED)
        return rule_for(node)


def autocast(dtype: torch.dtype = torch.float16, *, exclude: object = ()) -> Autocast:
    """Return a stage that puts a model into mixed precision: ``default().insert(autocast(), before="decompose")``.

    Args:
        dtype: the dtype in which matmuls and convolutions run: ``torch.float16`` or ``torch.bfloat16``.
        exclude: nodes that keep their original dtype: operators (``aten.gelu.default``, or ``aten.gelu`` for all its
            overloads), `fnmatch` patterns for names of operators (``"aten.conv*"``) or for paths of modules, including
            everything inside them (``"*.classifier"``), and predicates on the module path.

    Raises:
        TypeError: ``dtype`` is not a dtype, or an entry of ``exclude`` has another type.
        ValueError: ``dtype`` is neither float16 nor bfloat16.
    """
    return Autocast(dtype, exclude)


class _Caster:
    """Copy a program's graph node by node, and insert casts where an operator's rule requires another dtype."""

    def __init__(self, program: Program, options: Autocast) -> None:
        self.program, self.options = program, options
        self.graph = torch.fx.Graph()
        self.mode = fake_mode(program.graph)
        self.copies: dict[Node, Node] = {}
        self.casts: dict[tuple[Node, torch.dtype], Node] = {}
        self.weights: set[Node] = set()
        self.decisions: list[Decision] = []

    def cast(self) -> Program:
        """Return the program with casts, without nodes that no node reads any longer."""
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self.copy_call(node)
            elif node.op == "output":
                returned = [self.as_dtype(n, _dtype(n)) if isinstance(n, Node) else n for n in node.args[0]]
                self.graph.output(tuple(returned)).meta = dict(node.meta)
            else:
                self.copies[node] = copy_node(node, self.graph, self.copies.__getitem__)
                if self.is_computed_from_parameters(node):
                    self.weights.add(node)
        copies = {copy: node for node, copy in self.copies.items()}
        for copy in reversed(list(self.graph.nodes)):  # what inserted casts left without a reader
            if copy.op == "call_function" and not copy.users and (copy not in copies or copies[copy].users):
                self.graph.erase_node(copy)
        return self.program.with_graph(self.graph, outputs=rename_outputs(self.program.outputs, self.graph))

    def is_computed_from_parameters(self, node: Node) -> bool:
        """Return whether a placeholder is a constant whose recipe reads parameters only. Only such constants count as
        weights, which are rounded to half precision: in a buffer, a mask of -1e9 would become infinite in float16."""
        recipe = self.program.constants.get(node.name)
        made_of = [self.program.parameters[name] for name in recipe.parameters] if recipe is not None else []
        return bool(made_of) and all(isinstance(p, torch.nn.Parameter) for p in made_of)

    def copy_call(self, node: Node) -> None:
        """Copy an operator's call to the new graph, with inputs cast to the dtypes that its rule requires."""
        rule = self.options.rule(node)
        args, kwargs = self.cast_arguments(node, self.required_dtypes(node, rule))
        if node.target is aten._assert_tensor_metadata.default and self.dtypes_differ(node, args):
            return
        try:
            copy = self.emit(node, args, kwargs)
        except (RuntimeError, TypeError):
            rule = Rule("float32", FAILED)
            copy = self.emit(node, *self.cast_arguments(node, {n: _dtype(n) for n in node.all_input_nodes}))
        self.copies[node] = copy
        if is_operator(node):
            dtypes = ", ".join(dict.fromkeys(map(short_name, _result_dtypes(copy))))
            self.decisions.append(Decision(node.name, qualified_name(node.target), dtypes, rule))

    def required_dtypes(self, node: Node, rule: Rule) -> dict[Node, torch.dtype | None]:
        """Return the dtype that a node's rule requires for each input."""
        inputs = node.all_input_nodes
        if rule.mode == "said":
            return {}
        if rule.mode == "half":
            return {n: self.options.dtype if _dtype(n) == torch.float32 else _dtype(n) for n in inputs}
        if rule.mode == "float32" or any(_dtype(n) == torch.float64 for n in inputs):
            return {n: _dtype(n) for n in inputs}
        if op_name(node.target) in STATISTICS:
            return {n: _dtype(self.copies[n]) if n is node.args[0] else _dtype(n) for n in inputs}
        widest = self.widest_input_dtype(node)
        return {n: widest if _dtype(n) in FLOATS else _dtype(n) for n in inputs}

    def widest_input_dtype(self, node: Node) -> torch.dtype | None:
        """Return the widest float dtype of a node's inputs other than weights. If all float inputs are weights (as in a
        transpose of one), return None, and add the node to ``weights``: the nodes that read it decide its dtype."""
        floats = [n for n in node.all_input_nodes if _dtype(n) in FLOATS]
        computed: list[Any] = [_dtype(self.copies[n]) for n in floats if n not in self.weights]
        if floats and not computed and _dtype(node) is not None:
            self.weights.add(node)
        return reduce(torch.promote_types, computed) if computed else None

    def cast_arguments(self, node: Node, dtypes: dict[Node, torch.dtype | None]) -> Any:
        """Return a node's (args, kwargs) in the new graph, cast to ``dtypes``; inputs without an entry keep theirs."""
        return map_arg((node.args, dict(node.kwargs)), lambda n: self.as_dtype(n, dtypes.get(n)))

    def as_dtype(self, node: Node, dtype: torch.dtype | None) -> Node:
        """Return the new graph's copy of a node, cast to a dtype; None leaves the dtype unchanged."""
        copy = self.copies[node]
        if dtype is None or _dtype(copy) in (dtype, None):
            return copy
        if (node, dtype) not in self.casts:
            self.casts[node, dtype] = self.cast_to(node, copy, dtype)
        return self.casts[node, dtype]

    def cast_to(self, node: Node, copy: Node, dtype: torch.dtype) -> Node:
        """Cast the copy of a node to a dtype. If the node is a view of a weight, cast the weight and view it again. If
        the copy is itself a cast from this dtype, return the value before that cast."""
        if node in self.weights and node.op == "call_function":
            wishes: dict[Node, torch.dtype | None] = {n: dtype for n in node.all_input_nodes if _dtype(n) in FLOATS}
            args, kwargs = self.cast_arguments(node, wishes)
            return self.create(node.target, args, kwargs, node, f"{node.name}_{short_name(dtype)}")
        source = copy.args[0] if copy.target in CASTS else None
        if isinstance(source, Node) and _dtype(source) == dtype and dtype in HALVES and _dtype(copy) == torch.float32:
            return source
        recipe = self.program.constants.get(node.name)
        name = recipe.name.replace(".", "_") if recipe is not None else node.name
        return self.create(aten._to_copy.default, (copy,), {"dtype": dtype}, node, f"{name}_{short_name(dtype)}")

    def emit(self, node: Node, args: Argument, kwargs: Argument) -> Node:
        """Add the node's call with new arguments to the new graph; compute a new fake result only if dtypes differ."""
        if self.dtypes_differ(node, args, kwargs):
            return self.create(node.target, args, kwargs, node, node.name)
        copy = self.graph.create_node("call_function", node.target, args, kwargs, node.name)
        copy.meta = dict(node.meta)
        return copy

    def dtypes_differ(self, node: Node, *arguments: Any) -> bool:
        """Return whether new ``arguments`` (args, then kwargs) have other dtypes than the node's old arguments."""
        given: list[Node] = []
        map_arg(arguments, given.append)
        own: list[Node] = []
        map_arg((node.args, dict(node.kwargs))[: len(arguments)], own.append)
        return any(_result_dtypes(a) != _result_dtypes(b) for a, b in zip(given, own, strict=True))

    def create(self, target: Target, args: Argument, kwargs: Argument, original: Node, name: str) -> Node:
        """Add a call to the new graph, with its computed fake result and with the source line of ``original``."""
        if torch.Tag.dynamic_output_shape in getattr(target, "tags", ()):  # tried again, its sizes would be new symbols
            value = original.meta["val"].to(_dtype(args[0]))
        else:
            value = fake_result(self.mode, target, args, kwargs)
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        node.meta = {**origin_of(original.meta), "val": value}
        return node


def _dtype(node: object) -> torch.dtype | None:
    """Return the dtype of a node that is a floating-point tensor; None for other nodes."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def _result_dtypes(node: Node) -> list[object]:
    """Return the dtype of each of a node's results; None for a result that is no tensor."""
    value = node.meta.get("val")
    return [getattr(v, "dtype", None) for v in (value if isinstance(value, (tuple, list)) else [value])]
