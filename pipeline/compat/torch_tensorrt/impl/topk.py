"""The largest, the smallest, and the order of elements."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Call, Expression, aten, block, call, of_one

argmax = of_one(aten.argmax.default, "input", "dim", keep_dim=False)
argmin = of_one(aten.argmin.default, "input", "dim", keep_dim=False)
argmax_argmin = block(
    lambda input, topk_option, dim, keep_dim=False: call(
        aten.argmax.default if topk_option.name == "MAX" else aten.argmin.default, input, dim, keep_dim
    ),
    "aten.argmax.default for ``trt.TopKOperation.MAX``, else aten.argmin.default",
)


@block
def sort(input: Argument, dim: int, descending: bool, return_indices: bool = True) -> Expression:
    """aten.sort.default -> [values, indices], or values"""
    return _both(call(aten.sort.default, input, dim, descending), return_indices)


@block
def topk(input: Argument, k: int, dim: int, largest: bool, sorted: bool, return_indices: bool = True) -> Expression:
    """aten.topk.default -> [values, indices], or values"""
    return _both(call(aten.topk.default, input, k, dim, largest, sorted), return_indices)


def _both(made: Call, return_indices: bool) -> Expression:
    return [made[0], made[1]] if return_indices else made[0]
