"""Building blocks for the largest or smallest elements (``topk``), and for sorting."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Call, Expression, aten, block, call, of_call

argmax = of_call(aten.argmax.default, "input", "dim", keep_dim=False)
argmin = of_call(aten.argmin.default, "input", "dim", keep_dim=False)
argmax_argmin = block(
    lambda input, topk_option, dim, keep_dim=False: call(
        aten.argmax.default if topk_option.name == "MAX" else aten.argmin.default, input, dim, keep_dim
    ),
    "aten.argmax.default for ``trt.TopKOperation.MAX``, else aten.argmin.default",
)


@block
def sort(input: Argument, dim: int, descending: bool, return_indices: bool = True) -> Expression:
    """aten.sort.default -> [values, indices], or values"""
    return _values_and_indices(call(aten.sort.default, input, dim, descending), return_indices)


@block
def topk(input: Argument, k: int, dim: int, largest: bool, sorted: bool, return_indices: bool = True) -> Expression:
    """aten.topk.default -> [values, indices], or values"""
    return _values_and_indices(call(aten.topk.default, input, k, dim, largest, sorted), return_indices)


def _values_and_indices(pair: Call, return_indices: bool) -> Expression:
    return [pair[0], pair[1]] if return_indices else pair[0]
