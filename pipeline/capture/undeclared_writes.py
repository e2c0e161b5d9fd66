"""Refuse norms that write running statistics which torch.export loses: their schemas do not declare the write."""

from __future__ import annotations

import torch

from pipeline.errors import CaptureError, line_of


def without_undeclared_writes(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the module as it is; raise a `CaptureError` if a norm in it updates running statistics in training."""
    norms = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.instance_norm.default)
    for node in (node for node in module.graph.nodes if node.target in norms):
        if node.args[5] and node.args[3] is not None:  # training, with running statistics
            why = f"{node.target} at {line_of(node.meta) or node.name} updates its running statistics"
            raise CaptureError(f"{why}, which torch.export loses", "call model.eval() first")
    return module
