"""Rewrite complex numbers as pairs of reals: the real and the imaginary part.

TensorRT has no complex dtype. A rule of ``RULES`` expresses an operator on pairs, in torch, and ``decompose`` replaces
the node by the rule's trace, as with a decomposition. This is part of ``decompose`` and not a stage before it, because
each needs the other: only decomposing shows the parts of a composite operator (``outer`` of complex tensors is a
multiplication), and the parts of rules may be decomposed further.

Before: ``mul(view_as_complex(x), freqs)``. After: ``complex(re, im)``, where re and im are sums of products of real
nodes. Operators with a rule read re and im, so ``complex`` is dead and dropped, unless an operator without a rule or
the program's output reads it: such values are joined (``complex``) and split (``view_as_real``) in PyTorch. A constant
is split by its recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from pipeline.aten.types import Argument, Target, aten
from pipeline.capture.fake_tensors import fake_result
from pipeline.decomposition.complex_functions import Pair
from pipeline.decomposition.complex_rules import leaves
from pipeline.decomposition.templates import Call

_BORDER = (aten.complex.default, aten.resolve_conj.default, aten.view_as_real.default)


def is_border(target: object) -> bool:
    """Return whether an operator splits complex values into parts or joins the parts."""
    return target in _BORDER


def has_complex(*values: object) -> bool:
    """Return whether there is a complex tensor or number among values, nodes, and sequences of them."""
    return any(v.dtype.is_complex if isinstance(v, torch.Tensor) else isinstance(v, complex) for v in leaves(values))


class ComplexValues:
    """The complex values of a graph under construction, each with its parts. ``emit`` appends a call to the graph."""

    def __init__(self, graph: torch.fx.Graph, mode: FakeTensorMode, emit: Callable[[Call], Argument]) -> None:
        self.graph, self.mode, self.emit = graph, mode, emit
        self.parts: dict[torch.fx.Node, Pair] = {}

    def apart(self, values: object, meta: Mapping[str, object]) -> Argument:
        """Return arguments with a pair in place of each complex node or number."""

        def one(value: object) -> Argument:
            if isinstance(value, complex):
                return Pair(value.real, value.imag)
            return self.pair(value, meta) if isinstance(value, torch.fx.Node) and has_complex(value) else value

        return tree_map(one, values)

    def pair(self, value: torch.fx.Node, meta: Mapping[str, object]) -> Pair:
        """Return the parts of a complex node: those that it was joined from, or those that ``view_as_real`` returns."""
        if value not in self.parts:
            resolved = self.call(aten.resolve_conj.default, (value,), meta)
            shown = self.call(aten.view_as_real.default, (resolved,), meta)

            def part(index: int, name: str) -> Argument:
                args = (shown, -1, index)
                val = fake_result(self.mode, aten.select.int, args, {})
                return self.emit(Call(aten.select.int, args, {}, {**meta, "val": val}, f"{value.name}_{name}"))

            self.parts[value] = Pair(part(0, "real"), part(1, "imag"))
        return self.parts[value]

    def together(self, results: object, meta: Mapping[str, object]) -> Argument:
        """Return the results of a settled rule, with a complex node in place of each tuple of parts."""
        if isinstance(results, list):
            return [self.together(r, meta) for r in results]
        if not isinstance(results, tuple):
            return results
        made = self.graph.call_function(aten.complex.default, results)
        # the kernel of ``complex`` would fix dynamic sizes if a part is strided
        dtype = results[0].meta["val"].dtype.to_complex()
        made.meta = {**meta, "val": fake_result(self.mode, aten._to_copy.default, results[:1], {"dtype": dtype})}
        self.parts[made] = Pair(*results)
        return made

    def call(self, target: Target, args: tuple[Argument, ...], meta: Mapping[str, object]) -> torch.fx.Node:
        """Add a node, with its fake tensor, for an operator between complex and real values."""
        node = self.graph.call_function(target, tuple(args))
        node.meta = {**meta, "val": fake_result(self.mode, target, node.args, {})}
        return node
