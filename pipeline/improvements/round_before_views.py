"""round_before_views: move casts to bfloat16 before views, so that TensorRT rounds in the preceding matmul's kernel."""

from __future__ import annotations

import torch

from pipeline.aten.traits import Kind, op_kind
from pipeline.improvements.rewriting import Node, Rewriting, dtype_of, improvement, is_output, only_reader, source_of
from pipeline.quirks import is_avoided

VIEWS = (Kind.RESHAPES, Kind.SQUEEZES, Kind.TRANSPOSES)


@improvement(after="split_products")
def round_before_views(rewriting: Rewriting) -> None:
    """Move a cast from float32 to bfloat16 before the views that precede it. The results are equal.

    RTX 1.4 rounds in the kernel of the matmul or convolution, and moves elements afterwards. To avoid a bug in this
    rounding, `impl.base.cast` adds a layer directly after the cast, and so before the views.
    """
    if not is_avoided("halves-behind-matmuls"):
        return
    for node in list(rewriting.graph.nodes):
        if node._erased or op_kind(node.target) is not Kind.CASTS or dtype_of(node) != torch.bfloat16:
            continue
        views = _views_ending_at(source_of(node)) if dtype_of(source_of(node)) == torch.float32 else []
        if views:
            create, new = rewriting.before(node), source_of(views[0])
            for moved in (node, *views):
                new = create(moved.target, new, *moved.args[1:], **moved.kwargs)
            create.replace(new)


def _views_ending_at(node: Node) -> list[Node]:
    """Return the chain of views that ends at a cast's input, in order, if only the next node reads each view."""
    found: list[Node] = []
    while op_kind(node.target) in VIEWS and only_reader(node) is not None and not is_output(node):
        found.insert(0, node)
        node = source_of(node)
    return found if node.op == "call_function" else []
