"""Keep a buffer's shape and dtype when torch.export traces a copy into it.

For every reader of a copy into a buffer, ``run_decompositions`` replaces the copy's result by its source, even if the
copy casts or expands (torch 2.11 to 2.13).
"""

from __future__ import annotations

from typing import Any

import torch

from pipeline.shapes.environment import shape_of


def without_plain_copies(module: torch.fx.GraphModule, signature: Any) -> tuple[torch.fx.GraphModule, object]:
    """Replace torch's pass that removes copies into buffers: remove only copies without effect."""
    written = signature.buffers_to_mutate.keys() | signature.parameters_to_mutate.keys()
    with module._set_replace_hook(signature.get_replace_hook()):
        for node in [n for n in module.graph.nodes if n.name in written and _is_plain_copy(n)]:
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)
        module.recompile()
    return module, signature


def _is_plain_copy(node: torch.fx.Node) -> bool:
    source = node.args[1] if node.target is torch.ops.aten.copy.default else None
    if not isinstance(source, torch.fx.Node) or any(user.op == "output" for user in source.users):
        return False  # what is returned beside the buffer is another tensor
    made, given = node.meta["val"], source.meta["val"]
    return made.dtype == given.dtype and shape_of(made) == shape_of(given)
