"""Fold constants, for ``decompose``: each becomes a recipe, the operator calls that compute it from parameters.

A node is constant if it is deterministic, has a static shape and reads only constants. Constants that other nodes read
become placeholders, each with the recipe that computes it. A result much larger than its inputs (an expanded mask, say)
is not folded: the engine computes it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from attrs import evolve
from torch.fx.node import map_arg

from pipeline.aten.naming import layer_name, make_unique
from pipeline.aten.quantized import operators
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument
from pipeline.decomposition.quantized_arithmetic import schema_name
from pipeline.decomposition.quantized_forms import FORMS
from pipeline.decomposition.sizes import replace_size_reads
from pipeline.frozen import FrozenDict
from pipeline.program import Program, rename_outputs
from pipeline.recipes import Recipe, Ref, Step, qualified_name

MAX_GROWN_ELEMENTS = 1 << 20
"""The maximum number of elements of a folded constant that is larger than its inputs: an engine would compute it at
every call, and write as much memory as it would read."""

MAX_REPEATED_ELEMENTS = 1 << 16
"""The maximum number of elements of a folded constant that repeats elements; kernels need not store these."""

_NONDETERMINISTIC = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("rand", "randn", "randint", "randperm", "bernoulli", "multinomial", "normal"),
)

NEVER_FOLDED: Final = frozenset({operators.dequantize.default, operators.fake_quantize.default})
"""Operators that are not folded even if all inputs are constant, so that weights stay quantized. Quantization operators
that are not decomposed are not folded either."""


def fold_constants(program: Program) -> Program:
    """Return the program without unread nodes, and with each constant subgraph replaced by a placeholder and a
    `Recipe`: the operator calls that compute it from parameters. The graph is changed in place, so it must be a copy
    that belongs to the caller."""
    graph = program.graph
    constant: dict[torch.fx.Node, bool] = {}
    for node in graph.nodes:
        # folding a quantized form that nothing decomposed would dequantize its weights
        constant[node] = is_constant(node, constant, program) and schema_name(node.target) not in FORMS
    recipes = _Recipes(program)
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if n.op == "call_function" and constant[n]]:
        if isinstance(node.meta.get("val"), torch.Tensor) and any(not constant[user] for user in node.users):
            with graph.inserting_before(first):
                placeholder = graph.placeholder(f"folded_{node.name}")
            placeholder.target, placeholder.meta = placeholder.name, node.meta
            constant[placeholder] = True
            recipes.add(placeholder.name, node)
            node.replace_all_uses_with(placeholder, delete_user_cb=lambda user: not constant[user])
    inputs = {port.name for port in program.inputs} | set(program.buffers)
    replace_size_reads([node for node in graph.nodes if node.name in inputs], graph)
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op != "output" and node.name not in inputs:
            graph.erase_node(node)  # the graph is functional, so it has no other effect
    alive = {n.name for n in graph.nodes}
    constants = FrozenDict({n: r for n, r in recipes.known.items() if n in alive})
    return evolve(program, constants=constants, outputs=rename_outputs(program.outputs, graph))


class _Recipes:
    """A `Recipe` for each constant of a program, by placeholder: the operator calls (steps) that compute the constant.
    `add` adds the recipe of a folded node. Each recipe's name is unique. Each node's step has a name that no other step
    and no parameter has, since a recipe may contain the steps of others."""

    def __init__(self, program: Program) -> None:
        self.known = dict(program.constants)
        self._names = {recipe.name for recipe in self.known.values()}
        self._taken = {*program.parameters, *(step.name for recipe in self.known.values() for step in recipe.steps)}
        self._steps: dict[torch.fx.Node, str] = {}

    def add(self, placeholder: str, node: torch.fx.Node) -> None:
        """Add a recipe, the operator calls that compute a constant node; ``placeholder`` is the node's replacement."""
        steps: dict[str, Step] = {}
        results: dict[torch.fx.Node, Ref] = {}
        for each in _dependencies_first(node):
            if each.op == "placeholder":
                inner = self.known[each.name]
                steps |= {step.name: step for step in inner.steps}
                results[each] = inner.result
            else:
                if each not in self._steps:
                    self._steps[each] = make_unique(each.name, self._taken)
                args, kwargs = map_arg((each.args, dict(each.kwargs)), results.__getitem__)  # type: ignore[arg-type]
                options = tuple((name, _hashable_value(value)) for name, value in kwargs.items())
                made = Step(self._steps[each], qualified_name(each.target), _hashable_value(args), options)
                steps[made.name], results[each] = made, Ref(made.name)
        name = make_unique(layer_name(node), self._names)
        self.known[placeholder] = Recipe(name, results[node], tuple(steps.values()), node.meta["val"].dtype)


def is_constant(node: torch.fx.Node, is_constant_node: Mapping[torch.fx.Node, bool], program: Program) -> bool:
    """Return whether a node's value is constant, given whether each of its inputs is constant."""
    if node.op == "placeholder":
        return node.name in program.constants
    if node.op != "call_function" or not all(is_constant_node[n] for n in node.all_input_nodes):
        return False
    if node.target in NEVER_FOLDED:
        return False
    codes = op_kind(node.target) is Kind.QUANTIZES  # smaller than what they are computed from
    return node.target is operator.getitem or (is_pure(node.target) and (codes or _is_small_enough_to_fold(node)))


def is_pure(target: object) -> bool:
    """Return whether an operator is deterministic and mutates none of its arguments."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    name = target._schema.name.split("::")[1]
    return torch.Tag.nondeterministic_seeded not in target.tags and name not in _NONDETERMINISTIC


def _is_small_enough_to_fold(node: torch.fx.Node) -> bool:
    made = _element_count(node.meta.get("val"))
    read = sum(_element_count(n.meta.get("val")) or 0 for n in node.all_input_nodes)
    limit = MAX_REPEATED_ELEMENTS if op_kind(node.target) is Kind.REPEATS else MAX_GROWN_ELEMENTS
    return made is not None and made <= max(limit, read)


def _element_count(value: object) -> int | None:
    """Return the number of elements in tensors of static shape (complex ones count twice); None for other values."""
    if isinstance(value, (tuple, list)):
        parts = [_element_count(v) for v in value if v is not None]
        return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)
    if not isinstance(value, torch.Tensor) or any(not isinstance(d, int) for d in value.shape):
        return None
    return value.numel() * (2 if value.is_complex() else 1)


def _dependencies_first(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield a node's dependencies, then the node. Not recursive, since graphs are deep."""
    stack, seen = [(node, iter(node.all_input_nodes))], {node}
    while stack:
        current, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            yield current
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(following.all_input_nodes)))


def _hashable_value(value: object) -> Argument:
    """Return an argument of a recipe's operator call in a hashable form: tuples for lists, and "cpu" for devices."""
    if isinstance(value, torch.device):
        return "cpu"
    if isinstance(value, (tuple, list)):
        return tuple(_hashable_value(v) for v in value)
    return value
