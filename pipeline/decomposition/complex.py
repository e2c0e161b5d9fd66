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

_BORDER = (aten.complex.default, aten.resolve_conj.default, aten.view_as_real.default)


def is_border(target: object) -> bool:
    """Return whether an operator splits complex values into parts or joins the parts."""
    return target in _BORDER


def has_complex(*values: object) -> bool:
    """Return whether there is a complex tensor or number among values, nodes, and sequences of them."""
    return any(map(_is_complex, leaves(values)))


def _is_complex(value: object) -> bool:
    return value.dtype.is_complex if isinstance(value, torch.Tensor) else isinstance(value, complex)


class ComplexValues:
    """The complex values of a graph under construction, each with its parts.

    emit: appends a call of an operator to the graph, given its target, args, kwargs, meta and name.
    """

    def __init__(self, graph: torch.fx.Graph, mode: FakeTensorMode, emit: Callable[..., object]) -> None:
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
            names = (f"{value.name}_real", f"{value.name}_imag")
            self.parts[value] = Pair(*(self.part(shown, i, meta, name) for i, name in enumerate(names)))
        return self.parts[value]

    def part(self, shown: torch.fx.Node, index: int, meta: Mapping[str, object], name: str) -> Argument:
        """Return a part of a complex value, through ``view_as_real``."""
        args = (shown, -1, index)
        val = fake_result(self.mode, aten.select.int, args, {})
        return self.emit(aten.select.int, args, {}, {**meta, "val": val}, name)

    def together(self, results: object, meta: Mapping[str, object]) -> Argument:
        """Return the results of a settled rule, with a complex node in place of each tuple of parts."""
        if isinstance(results, list):
            return [self.together(r, meta) for r in results]
        if not isinstance(results, tuple):
            return results
        made = self.graph.call_function(aten.complex.default, results)
        made.meta = {**meta, "val": self.complex_like(results[0])}
        self.parts[made] = Pair(*results)
        return made

    def complex_like(self, part: torch.fx.Node) -> object:
        """Return the fake tensor of a joined value: the kernel of ``complex`` would fix dynamic sizes if a part is
        strided."""
        dtype = part.meta["val"].dtype.to_complex()
        return fake_result(self.mode, aten._to_copy.default, (part,), {"dtype": dtype})

    def call(self, target: Target, args: tuple[Argument, ...], meta: Mapping[str, object]) -> torch.fx.Node:
        """Add a node, with its fake tensor, for an operator between complex and real values."""
        node = self.graph.call_function(target, tuple(args))
        node.meta = {**meta, "val": fake_result(self.mode, target, node.args, {})}
        return node
