"""Rewrite complex numbers as pairs of real numbers: the real and the imaginary part.

TensorRT has no complex dtype. A rule in ``RULES`` computes an operator on pairs, in torch, and ``decompose`` replaces
the node by the rule's trace, as it does for a decomposition. Rules are a part of ``decompose`` and not a separate
stage, since each needs the other: decomposing reveals the parts of a composite operator (``outer`` of complex tensors
is a multiplication), and the operators of a rule may be decomposed further.

Before: ``mul(view_as_complex(x), freqs)``. After: ``complex(re, im)``, where re and im are sums of products of real
nodes. Operators with a rule read re and im, so ``complex`` is unread and dropped, unless an operator without a rule or
the program's output reads it: PyTorch joins such values (``complex``) and splits them (``view_as_real``). The recipe of
a constant splits the constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from pipeline.aten.types import Argument, Target, aten
from pipeline.capture.fake_tensors import fake_result
from pipeline.decomposition.complex_functions import Pair
from pipeline.decomposition.complex_rules import leaf_values
from pipeline.decomposition.templates import Call

_BORDER = (aten.complex.default, aten.resolve_conj.default, aten.view_as_real.default)


def joins_or_splits_complex(target: object) -> bool:
    """Return whether an operator splits a complex tensor into real ones, or joins real ones (``aten.complex``)."""
    return target in _BORDER


def contains_complex(*values: object) -> bool:
    """Return whether any of these values, nodes, or sequences of them is a complex tensor or number."""
    found = leaf_values(values)
    return any(v.dtype.is_complex if isinstance(v, torch.Tensor) else isinstance(v, complex) for v in found)


class ComplexValues:
    """The complex nodes of a graph under construction, each with a `Pair` of nodes: its real and its imaginary part.
    ``emit`` appends an operator call to the graph, and returns its result."""

    def __init__(self, graph: torch.fx.Graph, mode: FakeTensorMode, emit: Callable[[Call], Argument]) -> None:
        self.graph, self.mode, self.emit = graph, mode, emit
        self.parts: dict[torch.fx.Node, Pair] = {}

    def split_arguments(self, arguments: object, meta: Mapping[str, object]) -> Argument:
        """Return arguments with a `Pair` for each complex node or number; new nodes get the metadata ``meta``."""

        def one(value: object) -> Argument:
            if isinstance(value, complex):
                return Pair(value.real, value.imag)
            return self.pair_of(value, meta) if isinstance(value, torch.fx.Node) and contains_complex(value) else value

        return tree_map(one, arguments)

    def pair_of(self, value: torch.fx.Node, meta: Mapping[str, object]) -> Pair:
        """Return the real and imaginary part of a complex node: the nodes that it joins, or new nodes that split it."""
        if value not in self.parts:
            resolved = self.insert_node(aten.resolve_conj.default, (value,), meta)
            shown = self.insert_node(aten.view_as_real.default, (resolved,), meta)

            def part(index: int, name: str) -> Argument:
                args = (shown, -1, index)
                val = fake_result(self.mode, aten.select.int, args, {})
                return self.emit(Call(aten.select.int, args, {}, {**meta, "val": val}, f"{value.name}_{name}"))

            self.parts[value] = Pair(part(0, "real"), part(1, "imag"))
        return self.parts[value]

    def join_results(self, results: object, meta: Mapping[str, object]) -> Argument:
        """Return the results of a function of pairs, with each pair joined into a node of complex numbers."""
        if isinstance(results, list):
            return [self.join_results(r, meta) for r in results]
        if not isinstance(results, tuple):
            return results
        made = self.graph.call_function(aten.complex.default, results)
        # the kernel of ``complex`` would fix dynamic sizes if a part is strided
        dtype = results[0].meta["val"].dtype.to_complex()
        made.meta = {**meta, "val": fake_result(self.mode, aten._to_copy.default, results[:1], {"dtype": dtype})}
        self.parts[made] = Pair(*results)
        return made

    def insert_node(self, target: Target, args: tuple[Argument, ...], meta: Mapping[str, object]) -> torch.fx.Node:
        """Add a node, with its fake tensor, for an operator that converts between complex and real values."""
        node = self.graph.call_function(target, tuple(args))
        node.meta = {**meta, "val": fake_result(self.mode, target, node.args, {})}
        return node
