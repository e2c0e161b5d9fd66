"""round_before_views: cast to bfloat16 before views and permutations, where TensorRT rounds in a matmul's kernel."""

from __future__ import annotations

import torch

from pipeline.aten.traits import Does, does
from pipeline.improvements.rewriting import Node, Rewriting, improvement, is_output, only_reader, source_of
from pipeline.quirks import applies

VIEWS = (Does.RESHAPES, Does.SQUEEZES, Does.TRANSPOSES)


@improvement(after="split_products")
def round_before_views(rewriting: Rewriting) -> None:
    """Move a cast from float32 to bfloat16 directly after the operator that computes, and views after the cast, which
    does not change values.

    RTX 1.4 rounds in the kernel of the matmul or convolution and moves elements afterwards. The layer that makes such a
    kernel correct must follow the cast directly (`impl.base.cast`): after a move it would be in the next kernel.
    """
    if not applies("halves-behind-matmuls"):
        return
    for node in list(rewriting.graph.nodes):
        views = [] if node._erased or not _rounds(node) else _views(source_of(node))
        if views:
            _moved(rewriting, node, views)


def _rounds(node: Node) -> bool:
    value, given = node.meta.get("val"), node.args[0] if node.args else None
    if does(node.target) is not Does.CASTS or not isinstance(given, Node) or not isinstance(value, torch.Tensor):
        return False
    return (given.meta["val"].dtype, value.dtype) == (torch.float32, torch.bfloat16)


def _views(node: Node) -> list[Node]:
    """Return the chain of views that a cast reads, in order; only the next view reads each."""
    found: list[Node] = []
    while does(node.target) in VIEWS and only_reader(node) is not None and not is_output(node):
        found.insert(0, node)
        node = source_of(node)
    return found if node.op == "call_function" else []


def _moved(rewriting: Rewriting, cast: Node, views: list[Node]) -> None:
    new = rewriting.create(cast.target, (source_of(views[0]), *cast.args[1:]), dict(cast.kwargs), cast)
    made = [new]
    for view in views:
        new = rewriting.create(view.target, (new, *view.args[1:]), dict(view.kwargs), cast)
        made.append(new)
    if not (all(map(rewriting.accepted, made)) and rewriting.replace(cast, new)):
        rewriting.erase(new)
