"""round_before_views: cast to bfloat16 before views and permutations, so that TensorRT rounds in a matmul's kernel."""

from __future__ import annotations

import torch

from pipeline.aten.traits import Kind, op_kind
from pipeline.improvements.rewriting import (
    NewCalls,
    Node,
    Rewriting,
    dtype_of,
    improvement,
    is_output,
    only_reader,
    source_of,
)
from pipeline.quirks import is_avoided

VIEWS = (Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES)


@improvement(after="split_products")
def round_before_views(rewriting: Rewriting) -> None:
    """Move a cast from float32 to bfloat16 before views, directly after the operator that computes; results are equal.

    RTX 1.4 rounds in the kernel of the matmul or convolution, and moves elements afterwards. The layer that makes such
    a kernel correct must follow the cast directly (`impl.base.cast`), or it would be in the next kernel.
    """
    if not is_avoided("halves-behind-matmuls"):
        return
    for node in list(rewriting.graph.nodes):
        if node._erased or op_kind(node.target) is not Kind.CASTS or dtype_of(node) != torch.bfloat16:
            continue
        views = _view_chain(source_of(node)) if dtype_of(source_of(node)) == torch.float32 else []
        if views:
            _cast_before_views(rewriting.before(node), views)


def _view_chain(node: Node) -> list[Node]:
    """Return the chain of views before a cast, in order. Only the next node in the chain reads each view."""
    found: list[Node] = []
    while op_kind(node.target) in VIEWS and only_reader(node) is not None and not is_output(node):
        found.insert(0, node)
        node = source_of(node)
    return found if node.op == "call_function" else []


def _cast_before_views(create: NewCalls, views: list[Node]) -> None:
    new = source_of(views[0])
    for moved in (create.node, *views):
        new = create(moved.target, new, *moved.args[1:], **moved.kwargs)
    create.replace(new)
