"""select_parts: select equal parts of a projection from one reshaped view, if several profiles share the weights."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.improvements.merge_head_views import SPLITS, last_dim_slices_with_starts
from pipeline.improvements.rewriting import Node, Rewriting, aten, improvement, is_item, is_output, rank_of


@improvement(after="transpose_weights")
def select_parts(rewriting: Rewriting) -> None:
    """Replace slices that cut a projection's last dim into equal parts (for example gates) by selections from one view.

    For slices TensorRT-RTX 1.4 cuts or transposes the weights, differently for each profile, and the engine stores both
    versions: 1.5 times a layer's weights for a Llama-like decoder with a profile for single tokens and another for
    prompts.
    """
    for node in rewriting.nodes(aten.linear.default) if len(rewriting.program.profiles) > 1 else ():
        parts = sorted(last_dim_slices_with_starts(node), key=lambda part: part[1])
        if len(parts) > 1 and _is_cut_into_equal_parts(node, parts):
            last, width = rank_of(node) - 1, parts[0][0].meta["val"].shape[-1]
            view = rewriting.create(aten.unflatten.int, (node, last, [len(parts), width]), {}, node.next)
            for index, (part, _) in enumerate(parts) if rewriting.accepted(view) else ():
                rewriting.offer(part, aten.select.int, (view, last, index))


def _is_cut_into_equal_parts(node: Node, slices: Sequence[tuple[Node, int]]) -> bool:
    """Return whether parts of the same width, in order, cover a node's last dim, and nothing else reads the node."""
    width = slices[0][0].meta["val"].shape[-1]
    alike = all(part.meta["val"].shape[-1] == width for part, _ in slices)
    starts = [*(start for _, start in slices), node.meta["val"].shape[-1]]
    read = {user for user in node.users if user.target not in SPLITS}
    read |= {item for user in node.users if user.target in SPLITS for item in user.users if is_item(item)}
    in_order = alike and starts == [width * i for i in range(len(starts))]
    return in_order and not is_output(node) and read == {part for part, _ in slices}
