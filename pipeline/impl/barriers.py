"""Add barriers: layers that change no value, but prevent TensorRT from fusing the layers before and after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

from pipeline.impl import base
from pipeline.impl.base import ITensor, Net, SymbolicInt, Value, block, network_query
from pipeline.impl.reduce import cumulative_sum
from pipeline.quirks import is_avoided
from pipeline.quirks.reduction_fusion import sizes_for_expand
from pipeline.shapes.environment import shape_of
from pipeline.trt import trt


@block
def converted_arguments(net: Net, node: torch.fx.Node, convert: Callable[[torch.fx.Node], Value]) -> tuple[Any, Any]:
    """Return a node's converted args and kwargs; inputs in "expanded" `Mark`s get the shape of the node's result."""
    names = {name for mark in net.ctx.marks.of_node(node.name, "expanded") for name in mark.names}
    wide: dict[torch.fx.Node, Value] = {}
    for x in node.all_input_nodes:
        if x.name in names and isinstance(value := convert(x), trt.ITensor):  # constants stay as they are
            sizes = sizes_for_expand(shape_of(x.meta["val"]), shape_of(node.meta["val"]))
            wide[x] = base.expand(net, value, [s if isinstance(s, int) else SymbolicInt(s) for s in sizes])
    found: tuple[Any, Any] = map_arg((node.args, dict(node.kwargs)), lambda x: wide[x] if x in wide else convert(x))
    return found


@block
def separate_result_if_marked(net: Net, node: torch.fx.Node, result: Value) -> Value:
    """Return the result; if the node has an "apart" `Mark`, pass it through a layer that TensorRT never fuses."""
    if not isinstance(result, trt.ITensor) or not net.ctx.marks.of_node(node.name, "apart"):
        return result
    row = base.unsqueeze(net, result, [0])  # a running sum along a dim of size 1 is never fused
    return base.squeeze(net, cumulative_sum(net, row, 0, base.dtype_of(result)), [0])


@block
def flat_barrier(net: Net, x: ITensor, quirk: str) -> ITensor:
    """Return ``x``; if TensorRT has the bug ``quirk``, pass it, flattened, through a layer that is never fused."""
    if not is_avoided(quirk):
        return x
    sizes = base.sizes(net, x)
    return base.reshape(net, base.barrier(net, base.reshape(net, x, [-1]), quirk), sizes)


@network_query
def is_marked(net: Net, quirk: str, input_name: str = "") -> bool:
    """Return whether a `Mark` tells the current node's converter to avoid ``quirk`` (at ``input_name``, if given)."""
    marks = net.ctx.marks.of_node(net.ctx.node.name, "converter") if net.ctx.node is not None else []
    return any(mark.quirk == quirk and (not input_name or input_name in mark.names) for mark in marks)
