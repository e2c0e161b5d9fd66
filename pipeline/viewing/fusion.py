"""Find whether a plan fuses a quantizing or dequantizing node with others into one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.viewing.records import KernelView, NodeView

_LAYERS = frozenset({"QUANTIZE", "DEQUANTIZE", "DYNAMIC_QUANTIZE"})


def fusion(node: NodeView, kernels: Sequence[KernelView], known: bool) -> str:
    """Describe in words whether a node that quantizes or dequantizes is fused; empty for other nodes.

    Args:
        node: the node with its layers.
        kernels: those that compute it, according to the plan.
        known: whether the plan shows any kernels.
    """
    if not _LAYERS & {layer.kind for layer in node.layers}:
        return ""
    if not known:
        return "not known: the plan has no kernels in words"
    if not kernels:
        return "folded away when the engine was built"
    shared = [kernel for kernel in kernels if len(kernel.nodes) > 1]
    if not shared:
        return f"not fused: a kernel of its own, {kernels[0].name}"
    others = ", ".join(name for name in dict.fromkeys(n for k in shared for n in k.nodes) if name != node.name)
    return f"fused with {others} in {shared[0].name}"
