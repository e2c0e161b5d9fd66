"""Find the functions that can decompose a call: registered decompositions, torch's, and torch's composite operators.

Also find those that lead to a user's operator, and compare a decomposition's results with the operator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from attrs import field, frozen
from torch._decomp import decomposition_table

from pipeline.aten.types import Argument, Function, Node
from pipeline.converters.decompositions import (
    DecompositionTable,
    Op,
    torch_enabled_decompositions,
    torch_whole_decompositions,
)
from pipeline.converters.matmul import equivalent_operator
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Call, Template, Templates, argument_nodes
from pipeline.program import Program
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of


@frozen
class Decompositions:
    """The decompositions of operators, registered ones and torch's, except for the operators in ``disabled``."""

    registered: DecompositionTable
    disabled: frozenset[Op] = frozenset()

    def registered_for(self, target: object) -> Function | None:
        """Return the registered decomposition of an operator; None if there is none."""
        return None if target in self.disabled else self.registered.get(equivalent_operator(target))

    def torch_decomposition(self, target: object) -> Function | None:
        """Return the torch function that decomposes an operator (for a composite, the operator itself); None if the
        compiler uses no decomposition of torch's for it."""
        if not isinstance(target, torch._ops.OpOverload) or target in self.disabled:
            return None
        if target in torch_enabled_decompositions:
            return decomposition_table[target]
        name, key = target.name(), "CompositeImplicitAutograd"
        has_kernel = torch._C._dispatch_has_kernel(name)
        return target if has_kernel and torch._C._dispatch_has_kernel_for_dispatch_key(name, key) else None

    def all_decompositions(self, target: object) -> Iterator[Function]:
        """Yield all functions that decompose an operator, the registered one first, then torch's; none for an operator
        that torch tags as core ATen."""
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.core not in target.tags:
            whole = target in torch_whole_decompositions and target not in self.disabled
            torchs = (decomposition_table[target] if whole else None, self.torch_decomposition(target))
            yield from filter(None, (self.registered_for(target), *torchs))


@frozen(eq=False)
class CallSearch:
    """A search through decompositions for certain calls. Each decomposition is traced once for each distinct signature.

    ``is_wanted`` decides whether a call is a target of the search. Calls that depend only on constants do not count:
    they are folded, and no converter is called for them.
    """

    program: Program
    templates: Templates
    choices: Decompositions
    is_wanted: Callable[[Call], bool]
    known: dict[Argument, bool] = field(factory=dict)

    def find_decomposition(self, call: Call, is_constant_node: Mapping[Node, bool]) -> Function | None:
        """Return the first decomposition of a call's operator that contains a call that ``is_wanted`` (see the class),
        directly or after further decompositions; else None. ``is_constant_node``: which argument nodes are constant."""
        given = tuple(is_constant_node[node] for node in argument_nodes(call.args, call.kwargs))
        for function in self.choices.all_decompositions(call.target):
            try:
                template = self.templates.find(function, call.target, call.args, call.kwargs, call.value)
            except Exception:
                continue  # torch's may fail for a call; the error of a registered one is reported where it is used
            if template is not None and self._leads_to_wanted_call(template, given):
                return function
        return None

    def _leads_to_wanted_call(self, template: Template, is_constant_argument: tuple[bool, ...]) -> bool:
        """Return whether ``template`` contains a call that ``is_wanted``, directly or after further decompositions.
        ``is_constant_argument``: for each placeholder of the template, whether its argument is constant."""
        key = (template.key, is_constant_argument)
        if key not in self.known:
            self.known[key] = False  # during its own search: a recursive operator adds nothing new
            self.known[key] = self.find_wanted(template.graph, iter(is_constant_argument)) is not None
        return self.known[key]

    def find_wanted(self, graph: torch.fx.Graph, constant_inputs: Iterator[bool] | None = None) -> Node | None:
        """Return the first call in ``graph`` that ``is_wanted``, or that decomposes to such a call; else None.
        ``constant_inputs``: for a `Template`'s graph, whether each placeholder is constant; None for a program's."""
        constant: dict[Node, bool] = {}
        nodes: list[Node] = list(graph.nodes)
        for node in nodes:
            inner = constant_inputs is not None and node.op == "placeholder"
            constant[node] = next(constant_inputs) if inner else is_constant(node, constant, self.program)  # type: ignore[arg-type]
            if node.op == "call_function" and not constant[node]:
                call = Call.of_node(node)
                if self.is_wanted(call) or self.find_decomposition(call, constant) is not None:
                    return node
        return None


def check_decomposition_results(result: Argument, expected: Argument) -> None:
    """Raise `RuntimeError` if a decomposition's results differ from the operator's in number, dtype, rank or size."""
    several = isinstance(expected, tuple | list)
    given, wanted = (result if isinstance(result, tuple | list) else [result]), (expected if several else [expected])
    if isinstance(result, tuple | list) != several or len(given) != len(wanted):
        raise RuntimeError(
            f"the decomposition returned {_as_text(result)}, but must return {_as_text(expected)} like its operator"
        )
    for a, b in zip(given, wanted, strict=True):
        value = a.meta.get("val") if isinstance(a, torch.fx.Node) else a
        unused = value is None and several
        if isinstance(b, torch.Tensor) and not unused and not _has_same_type_as(value, b):
            raise RuntimeError(
                f"the decomposition returned {_as_text(value)}, but must return {_as_text(b)} like its operator"
            )


def _has_same_type_as(value: object, expected: torch.Tensor) -> bool:
    """Return whether a result is a tensor with the dtype, rank and static sizes of ``expected``."""
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    sizes = zip(shape_of(value), shape_of(expected), strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def _as_text(value: object) -> str:
    """Describe a result in an error message: ``2 results``, ``float32[2, 4]`` for a tensor, ``None``, ``a float``."""
    if isinstance(value, tuple | list):
        return f"{len(value)} results"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return kind_of(value)
