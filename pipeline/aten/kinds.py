"""What kinds of operators there are: those that move elements, cheap ones, those that TensorRT fuses, random ones."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
"""Operators that state each size of their result, whose elements are those of their input."""

RESHAPES = (*VIEWS, aten.flatten.using_ints, aten.unflatten.int)
"""Operators whose result has the elements of their input."""

MOVES = frozenset(
    {
        *RESHAPES,
        *(aten.permute.default, aten.transpose.int, aten.t.default, aten.expand.default, aten.unsqueeze.default),
        *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int),
        *(aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default),
        *(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int),
    }
)
"""Operators that only say how the same elements are looked at, or copy them."""

CASTS = frozenset({aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout})

SOURCES = frozenset(
    {
        *(
            aten.arange.default,
            aten.arange.start,
            aten.arange.start_step,
            aten.full.default,
            aten.scalar_tensor.default,
        ),
        *(aten.zeros.default, aten.ones.default, aten.full_like.default, aten.zeros_like.default),
        *(aten.ones_like.default, aten.eye.default, aten.eye.m, aten.lift_fresh_copy.default),
    }
)
"""Operators that make a tensor out of sizes and numbers."""

CONVOLUTIONS = frozenset(
    {
        *(aten.convolution.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
        *(aten.conv2d.padding, aten.conv1d.padding, aten.conv3d.padding, aten.conv_transpose2d.input),
    }
)

MATMULS = frozenset({aten.mm.default, aten.bmm.default, aten.matmul.default, aten.baddbmm.default})
"""The products of an attention: a linear layer after a softmax is none."""

PRODUCTS = MATMULS | {aten.linear.default, aten.addmm.default}

NORMS = frozenset(
    {
        *(aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default, aten.group_norm.default),
        *(aten.native_group_norm.default, aten.instance_norm.default),
    }
)

SOFTMAX = frozenset({aten.softmax.int, aten._softmax.default, aten._safe_softmax.default})


def is_pointwise(node: torch.fx.Node) -> bool:
    """Whether each element of the result comes from one element of each input."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) and not draws_random(node)


def moves(node: torch.fx.Node) -> bool:
    """Whether an operator computes nothing: a view, a copy, a cast."""
    return node.target in MOVES or node.target in CASTS


def is_cheap(node: torch.fx.Node, *, sources: bool = False) -> bool:
    """Whether it costs next to nothing wherever it runs; ``sources``: also those that make tensors of sizes."""
    return moves(node) or is_pointwise(node) or (sources and node.target in SOURCES)


def draws_random(node: torch.fx.Node) -> bool:
    """Whether an operator, or one in a branch of control flow, draws random numbers."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return any(draws_random(inner) for branch in branches(node) for inner in branch.graph.nodes)
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def branches(node: torch.fx.Node) -> list[torch.fx.GraphModule]:
    """The graphs that an operator of control flow chooses from, or repeats."""
    owner = node.graph.owning_module
    names = [n.target for n in node.all_input_nodes if n.op == "get_attr"]
    found: list[Any] = [owner.get_submodule(str(name)) for name in names] if owner is not None else []
    return [module for module in found if isinstance(module, torch.fx.GraphModule)]
