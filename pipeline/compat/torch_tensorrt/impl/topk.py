"""Building blocks for the largest or smallest elements (``topk``), and for sorting."""

from __future__ import annotations

from pipeline.compat.torch_tensorrt.blocks import Argument, Call, Expression, aten, block, call, op_block

argmax = op_block(aten.argmax.default, "input", "dim", keep_dim=False)
argmin = op_block(aten.argmin.default, "input", "dim", keep_dim=False)
argmax_argmin = block(
    lambda input, topk_option, dim, keep_dim=False: call(
        aten.argmax.default if topk_option.name == "MAX" else aten.argmin.default, input, dim, keep_dim
    ),
    "aten.argmax.default for ``trt.TopKOperation.MAX``, else aten.argmin.default",
)


@block
def sort(input: Argument, dim: int, descending: bool, return_indices: bool = True) -> Expression:
    """Add aten.sort.default; return [values, indices], or only the values."""
    return _values_and_optional_indices(call(aten.sort.default, input, dim, descending), return_indices)


@block
def topk(input: Argument, k: int, dim: int, largest: bool, sorted: bool, return_indices: bool = True) -> Expression:
    """Add aten.topk.default; return [values, indices], or only the values."""
    return _values_and_optional_indices(call(aten.topk.default, input, k, dim, largest, sorted), return_indices)


def _values_and_optional_indices(call_of_two_results: Call, return_indices: bool) -> Expression:
    """Return [values, indices], the results of a call such as aten.sort, or only the values."""
    return [call_of_two_results[0], call_of_two_results[1]] if return_indices else call_of_two_results[0]
