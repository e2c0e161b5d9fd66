"""Decompose ``torch.nn.attention.flex_attention`` into operators that engines support.

torch.export keeps the call as one operator with two subgraphs: one modifies a score, one computes the mask, each for a
single query and key. Below autograd, `torch.vmap` extends the subgraphs to all queries and keys. If the scores are not
modified, the call becomes ``scaled_dot_product_attention`` with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import math_attention
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import _vmap_for_bhqkv
from torch.nn.functional import scaled_dot_product_attention

from pipeline.aten.types import Argument, Target

OPERATOR = type(torch.ops.higher_order.flex_attention)

_KERNELS: Final = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""The kernels that return 0 for a fully masked query, as ``flex_attention`` does. cuDNN's kernel, which torch prefers
for float16 on an H100, returns other values."""

Results: TypeAlias = tuple[torch.Tensor, ...]
"""The attention's result; and for each query the log-sum-exp of its scores, to base 2, and its largest score."""


def decompose_flex_attention(
    call_operator: Callable[..., Results],
    operator: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score: Target,
    block_mask: Sequence[Argument],
    scale: float,
    kernel_options: Mapping[str, object],
    score_buffers: Sequence[Argument] = (),
    mask_buffers: Sequence[Argument] = (),
) -> Results:
    """Replace ``flex_attention``: return its decomposition while torch traces a graph; at other times, when only the
    results' shapes are needed, the results of ``call_operator``. ``score`` and ``block_mask[-1]``: functions that
    modify a score and compute the mask; ``score_buffers`` and ``mask_buffers``: their further arguments."""
    rest: Argument = (score, block_mask, scale, kernel_options, score_buffers, mask_buffers)
    if get_proxy_mode() is None:
        return call_operator(operator, query, key, value, *rest)
    inputs, scored = _placeholders_and_result(score)
    is_plain = bool(inputs) and scored is inputs[0]  # the scores are not modified
    result, others = query, [query.new_empty(0), query.new_empty(0)]
    if not is_plain or kernel_options.get("OUTPUT_LOGSUMEXP") or kernel_options.get("OUTPUT_MAX"):
        result, *others = math_attention(query, key, value, *rest)
    if is_plain:
        mask = _full_mask(query, key, block_mask[-1], mask_buffers)
        grouped = bool(query.shape[1] != key.shape[1])
        with sdpa_kernel(_KERNELS):
            result = scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=grouped)
    return result, *others


def _full_mask(
    query: torch.Tensor, key: torch.Tensor, mask_function: Target, buffers: Sequence[Argument]
) -> torch.Tensor | None:
    """Return the mask of all query-key pairs, with size 1 in dims that the mask function ignores; None if none is
    masked."""
    inputs, result = _placeholders_and_result(mask_function)
    if getattr(result, "target", None) in ("new_ones", torch.ops.aten.new_ones.default):
        return None
    rows, heads = (query.shape[i] if not inputs or inputs[i].users else 1 for i in (0, 1))
    sizes = (rows, heads, query.shape[2], key.shape[2])
    places = (torch.arange(size, device=query.device) for size in sizes)
    with TransformGetItemToIndex():
        mask: torch.Tensor = _vmap_for_bhqkv(mask_function, prefix=(), suffix=(None,) * len(buffers))(*places, *buffers)
    return mask


def _placeholders_and_result(function: object) -> tuple[list[torch.fx.Node], Argument]:
    """Return the placeholders and the results in the graph of a function that torch has traced."""
    if not isinstance(function, torch.fx.GraphModule):
        return [], None
    nodes = list(function.graph.nodes)
    [result] = torch.utils._pytree.tree_leaves(nodes[-1].args) or [None]
    return [node for node in nodes if node.op == "placeholder"], result
