"""List the functions that can decompose a call (registered ones, torch's, and torch's composites), find those that lead
to a user's operator, and compare results with the operator's: number of tensors, dtype, rank and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from attrs import field, frozen
from torch._decomp import decomposition_table

from pipeline.aten.types import Argument, Function, Node, Target
from pipeline.converters.decompositions import (
    DecompositionTable,
    Op,
    torch_enabled_decompositions,
    torch_whole_decompositions,
)
from pipeline.converters.matmul import equivalent_operator
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Call, Template, Templates, nodes_of
from pipeline.program import Program
from pipeline.records.wording import kind_of
from pipeline.shapes.environment import shape_of


@frozen
class Ways:
    """The decompositions of operators: registered and torch's, except for the operators in ``disabled``."""

    registered: DecompositionTable
    disabled: frozenset[Op] = frozenset()

    def own(self, target: object) -> Function | None:
        """Return the registered decomposition of an operator; None if there is none."""
        return None if target in self.disabled else self.registered.get(equivalent_operator(target))

    def torchs(self, target: object) -> Function | None:
        """Return torch's decomposition of an operator, if we enabled it; else None."""
        if not isinstance(target, torch._ops.OpOverload) or target in self.disabled:
            return None
        return decomposition_table[target] if target in torch_enabled_decompositions else _composite(target)

    def apart(self, target: object) -> Iterator[Function]:
        """Yield all decompositions of an operator outside core ATen, to search them for a user's operator."""
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.core not in target.tags:
            whole = target in torch_whole_decompositions and target not in self.disabled
            ways = (self.own(target), decomposition_table[target] if whole else None, self.torchs(target))
            yield from filter(None, ways)


def _composite(target: torch._ops.OpOverload[..., Target]) -> Function | None:
    """Return the operator itself if it is a composite, which torch's dispatcher decomposes; else None."""
    name = target.name()
    kernel, key = torch._C._dispatch_has_kernel, "CompositeImplicitAutograd"
    return target if kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key) else None


@frozen(eq=False)
class Contents:
    """A search through decompositions for certain calls. Each decomposition is traced once for each distinct signature.

    ``wanted`` decides whether a call is a target of the search. Calls that depend only on constants do not count: they
    are folded, and no converter is called for them.
    """

    program: Program
    templates: Templates
    ways: Ways
    wanted: Callable[[Call], bool]
    known: dict[Argument, bool] = field(factory=dict)

    def way(self, call: Call, constant: Mapping[Node, bool]) -> Function | None:
        """Return the first decomposition of a call that leads to a wanted call; None if no decomposition does."""
        given = tuple(constant[node] for node in nodes_of(call.args, call.kwargs))
        for function in self.ways.apart(call.target):
            try:
                template = self.templates.of(function, call.target, call.args, call.kwargs, call.value)
            except Exception:
                if function is not self.ways.own(call.target):
                    raise
                continue  # the error of a registered one is reported where it is used
            if template is not None and self._has(template, given):
                return function
        return None

    def _has(self, template: Template, given: tuple[bool, ...]) -> bool:
        key = (template.key, given)
        if key not in self.known:
            self.known[key] = False  # during its own search: a recursive operator adds nothing new
            self.known[key] = self.first(template.graph, iter(given)) is not None
        return self.known[key]

    def first(self, graph: torch.fx.Graph, given: Iterator[bool] | None = None) -> Node | None:
        """Return the first call in a graph that is wanted or decomposes to a wanted call; None if there is no such
        call. ``given``: whether each placeholder is constant, for a graph other than the program's."""
        constant: dict[Node, bool] = {}
        nodes: list[Node] = list(graph.nodes)
        for node in nodes:
            inner = given is not None and node.op == "placeholder"
            constant[node] = next(given) if inner else is_constant(node, constant, self.program)  # type: ignore[arg-type]
            if node.op == "call_function" and not constant[node]:
                call = Call.of(node)
                if self.wanted(call) or self.way(call, constant) is not None:
                    return node
        return None


def check_results(made: Argument, expected: Argument) -> None:
    """Raise if the results of a decomposition differ from its operator's in number, dtype, rank or size."""
    several = isinstance(expected, tuple | list)
    given, wanted = (made if isinstance(made, tuple | list) else [made]), (expected if several else [expected])
    if isinstance(made, tuple | list) != several or len(given) != len(wanted):
        raise RuntimeError(f"the decomposition returned {_shown(made)}; the operator returns {_shown(expected)}")
    for a, b in zip(given, wanted, strict=True):
        value = a.meta.get("val") if isinstance(a, torch.fx.Node) else a
        unused = value is None and several
        if isinstance(b, torch.Tensor) and not unused and not _alike(value, b):
            raise RuntimeError(f"the decomposition returned {_shown(value)}; the operator returns {_shown(b)}")


def _alike(value: object, expected: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    sizes = zip(shape_of(value), shape_of(expected), strict=True)
    return all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} results"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return kind_of(value)
