"""Decompose operators of one backend (cuDNN, CPU, flash attention) to the equal backend-independent operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Final

import torch
from torch import Tensor

from pipeline.aten.preserved_composites import STAND_INS
from pipeline.aten.types import aten
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.normalization import Opt, native_batch_norm
from pipeline.shapes.environment import shape_of

Ints = list[int]


def _declare_decomposition(operator_name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Register ``compute`` as the decomposition of this operator; attention with dropout is not decomposed."""
    op = getattr(aten, operator_name).default

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
        given = {a.name: given.get(a.name, a.default_value) for a in op._schema.arguments}
        return NotImplemented if given.pop("dropout_p", 0) else compute(**given)

    decomposition.__name__, decomposition.__doc__ = operator_name.lstrip("_"), str(op._schema)
    return register_torch_trt_decomposition(op)(decomposition)


def _convolve_by_aten(
    self: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints | None = None,
    groups: int = 1,
    bias: Tensor | None = None,
    output_padding: Ints | None = None,
    transposed: bool = False,
    **backend_options: Any,
) -> Tensor:
    """Compute a backend's convolution as ``aten.convolution``; ``backend_options`` do not change the result."""
    dilation, output_padding = dilation or [1] * len(stride), output_padding or [0] * (weight.dim() - 2)
    rest = (bias, stride, padding, dilation, transposed, output_padding, groups)
    result: Tensor = aten.convolution(self, weight, *rest)
    return result


CONVOLUTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_convolution": lambda input, **given: _convolve_by_aten(input, **given),
    "cudnn_convolution": _convolve_by_aten,
    "mkldnn_convolution": _convolve_by_aten,
    "cudnn_convolution_relu": lambda **given: torch.relu(_convolve_by_aten(**given)),
    "cudnn_convolution_add_relu": lambda z, alpha, **given: torch.relu(
        _convolve_by_aten(**given) + z * (1 if alpha is None else alpha)
    ),
    "cudnn_convolution_transpose": partial(_convolve_by_aten, transposed=True),
    **dict.fromkeys(
        ("_conv_depthwise2d", "conv_depthwise3d"),
        lambda self, **given: _convolve_by_aten(self, **given, groups=self.shape[1]),
    ),
    "slow_conv_dilated2d": _convolve_by_aten,
    "slow_conv_dilated3d": _convolve_by_aten,
    "slow_conv_transpose2d": partial(_convolve_by_aten, transposed=True),
    "slow_conv_transpose3d": partial(_convolve_by_aten, transposed=True),
    "_slow_conv2d_forward": _convolve_by_aten,
}


CELLS: Final = (aten.rnn_relu.input, aten.rnn_tanh.input, aten.lstm.input, aten.gru.input)
"""The operators of recurrent layers, indexed by cuDNN's mode number."""


def _cudnn_recurrent_layer(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Ints,
    **backend_options: Any,
) -> Any:
    """Compute cuDNN's recurrent layer as an ATen operator; packed sequences of different lengths are not supported."""
    if batch_sizes:
        return NotImplemented
    biased = weight_stride0 - bool(proj_size) == 4
    state: Any = hx if cx is None else [hx, cx]
    rest = (weight, biased, num_layers, dropout, train, bidirectional, batch_first)
    output, hy, *cy = STAND_INS[CELLS[mode]](input, state, *rest)
    return output, hy, cy[0] if cy else input.new_zeros((0,), dtype=torch.float32), None, None


def _sum_without_none(*gates: Tensor | None) -> Tensor:
    first, *rest = (gate for gate in gates if gate is not None)
    return sum(rest, first)


def _decompose_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose a fused LSTM cell: return its next hidden state, its next cell state, and the activated gates."""
    i, f, g, o = _sum_without_none(input_gates, input_bias, hidden_gates, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _decompose_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, None]:
    """Decompose a fused GRU cell: return its next hidden state, and None for what only a backward pass reads."""
    r, z, n = _sum_without_none(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _sum_without_none(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return (hx - n) * z + n, None


def _lstm_step(
    input: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Opt, b_hh: Opt
) -> tuple[Tensor, Tensor]:
    linear = torch.nn.functional.linear
    return _decompose_lstm_cell(linear(input, w_ih, b_ih), linear(hx[0], w_hh, b_hh), hx[1], None, None)[:2]


def _gru_step(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Opt, b_hh: Opt) -> Tensor:
    linear = torch.nn.functional.linear
    return _decompose_gru_cell(linear(input, w_ih, b_ih), linear(hx, w_hh, b_hh), hx, None, None)[0]


OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "lstm_cell": _lstm_step,
    "gru_cell": _gru_step,
    "_batch_norm_no_update": lambda input, **given: (*native_batch_norm(input, **given, training=False), None),
    "_cudnn_rnn": _cudnn_recurrent_layer,
    "_thnn_fused_lstm_cell": _decompose_lstm_cell,
    "_thnn_fused_gru_cell": _decompose_gru_cell,
    "_weight_int8pack_mm": lambda self, mat2, scales: torch.mm(self, mat2.to(self.dtype).t()) * scales,
    "cudnn_grid_sampler": lambda self, grid: aten.grid_sampler(self, grid, 0, 0, True),
    "cudnn_affine_grid_generator": lambda theta, **size: aten.affine_grid_generator(theta, list(size.values()), True),
}


def _attention_and_logsumexp(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return an attention and the float32 log-sum-exp of its scores. ``causal``: keys after the query are masked."""
    if causal and bias is not None:
        bias, causal = _apply_window_to_bias(query, bias, _window_mask(query, key, 0, None, 0)), False
    gqa = query.dim() == 4 and query.shape[1] != key.shape[1]
    attend = STAND_INS[aten.scaled_dot_product_attention.default]
    result = attend(query, key, value, bias, 0.0, causal, scale=scale, enable_gqa=gqa)
    hidden = _window_mask(query, key, 0, None, 0) if causal else None
    return result, _log_sum_exp(query, key, _apply_window_to_bias(query, bias, hidden), scale)


def _log_sum_exp(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Return the log-sum-exp of the attention scores of each query over all keys, in float32."""
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if query.shape[1] != key.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query.float() * factor) @ key.float().transpose(-1, -2)
    if bias is not None:
        scores = scores + (torch.where(bias, 0.0, -math.inf) if bias.dtype == torch.bool else bias)
    return torch.logsumexp(scores, -1)


def _window_mask(query: Tensor, key: Tensor, query_offset: Any, left: int | None, right: int | None) -> Tensor:
    """Return a mask: query i sees keys i + query_offset - left to i + query_offset + right (None: no limit)."""
    at = torch.arange(query.shape[-2], device=query.device)[:, None] + query_offset
    of = torch.arange(key.shape[-2], device=query.device)[None, :]
    bounds = [] if right is None else [of <= at + right]
    window: Tensor = reduce(torch.logical_and, bounds if left is None else [*bounds, of >= at - left])
    return window


def _apply_window_to_bias(query: Tensor, bias: Tensor | None, window: Tensor | None) -> Tensor | None:
    """Return ``bias``, -inf or False where ``window`` is False (in the query's dtype); if one is None, the other."""
    if bias is None or window is None:
        return window if bias is None else bias
    return bias & window if bias.dtype == torch.bool else torch.where(window, bias, -math.inf).to(query.dtype)


def _window_mask_to_last_key(query: Tensor, key: Tensor, left: int | None, right: int | None) -> Tensor:
    """Return a mask: a query sees ``left`` keys before and ``right`` after it; the last query is at the last key."""
    return _window_mask(query, key, key.shape[-2] - query.shape[-2], left, right)


def _like_flash_kernel(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention and log-sum-exp like the flash kernel, whose causal mask aligns the last query and last key."""
    square = shape_of(query)[-2] == shape_of(key)[-2]
    window = _window_mask_to_last_key(query, key, None, 0) if causal and not square else None
    return _attention_and_logsumexp(query, key, value, window, causal and square, scale)


def _decompose_flash(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None, **_: Any) -> Any:
    result, sums = _like_flash_kernel(query, key, value, is_causal, scale)
    return result, sums, *(None,) * 2, query.shape[2], key.shape[2], *(None,) * 3


def _like_efficient_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    compute_log_sumexp: bool,
) -> tuple[Tensor, Tensor]:
    """Return attention, and log-sum-exp padded (as by the kernel) with inf to a multiple of 32 queries, or empty."""
    result, sums = _attention_and_logsumexp(query, key, value, bias, causal, scale)
    if not compute_log_sumexp:
        return result, sums[..., :0]
    length = query.shape[-2]
    return result, torch.nn.functional.pad(sums, (0, -length % 32), value=math.inf)


def _decompose_overrideable_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, is_causal: bool, scale: float | None, **_: Any
) -> Any:
    if query.dim() != 4:
        return NotImplemented
    result, sums = _attention_and_logsumexp(query, key, value, attn_bias, is_causal, scale)
    return result, sums, *(None,) * 2, query.shape[2], key.shape[2], *(None,) * 3


def _decompose_cudnn_attention(**arguments: Any) -> Any:
    """Decompose ``aten._scaled_dot_product_cudnn_attention``, whose log-sum-exp has a last dim of size 1."""
    result, sums, *sizes = _decompose_overrideable_attention(**arguments)
    return result, sums[..., None], *sizes


def _decompose_flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    window_size_left: int | None,
    window_size_right: int | None,
    **other_arguments: Any,
) -> Any:
    if any(other_arguments[name] is not None for name in other_arguments.keys() - IGNORED):
        return NotImplemented
    query, key, value = _move_heads_first(query, key, value)
    left, right = (None if size is None or size < 0 else size for size in (window_size_left, window_size_right))
    if left is None and right is None:
        result, sums = _like_flash_kernel(query, key, value, is_causal, scale)
    else:
        window = _window_mask_to_last_key(query, key, left, 0 if is_causal else right)
        result, sums = _attention_and_logsumexp(query, key, value, window, False, scale)
    return result.transpose(1, 2), sums, None, None, None


def _decompose_efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    custom_mask_type: int,
    compute_log_sumexp: bool,
    scale: float | None,
    **other_arguments: Any,
) -> Any:
    """Decompose ``aten._efficient_attention_forward``; return NotImplemented if it has arguments outside `IGNORED`."""
    if any(other_arguments[name] is not None for name in other_arguments.keys() - IGNORED):
        return NotImplemented
    query, key, value = _move_heads_first(query, key, value)
    if custom_mask_type == LOWER_RIGHT:
        bias = _apply_window_to_bias(query, bias, _window_mask_to_last_key(query, key, None, 0))
    causal = custom_mask_type == UPPER_LEFT
    result, sums = _like_efficient_kernel(query, key, value, bias, causal, scale, compute_log_sumexp)
    return result.transpose(1, 2), sums, None, None, query.shape[2], key.shape[2]


def _move_heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Transpose ``[batch, length, heads, size]`` to ``[batch, heads, length, size]``."""
    return tuple(x.transpose(1, 2) for x in tensors)


NO_MASK, UPPER_LEFT, LOWER_RIGHT = range(3)
"""The values of the memory-efficient kernel's argument ``custom_mask_type``."""
IGNORED: Final = {"max_q", "max_k", "max_seqlen_q", "max_seqlen_k", "return_debug_mask", "num_splits"}
"""Arguments without effect on the result. A call that sets others (for batched lengths) is not decomposed."""

ATTENTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_scaled_dot_product_flash_attention": _decompose_flash,
    "_scaled_dot_product_flash_attention_for_cpu": lambda attn_mask, is_causal, **given: _attention_and_logsumexp(
        bias=attn_mask, causal=is_causal, **given
    ),
    "_scaled_dot_product_efficient_attention": lambda attn_bias, is_causal, **given: (
        *_like_efficient_kernel(bias=attn_bias, causal=is_causal, **given),
        *(None, None),  # there is no random seed or offset
    ),
    "_scaled_dot_product_cudnn_attention": _decompose_cudnn_attention,
    "_scaled_dot_product_fused_attention_overrideable": _decompose_overrideable_attention,
    "_flash_attention_forward": _decompose_flash_forward,
    "_efficient_attention_forward": _decompose_efficient_forward,
}
"""For each backend's attention operator, a function that computes it as scaled dot product attention, with the
log-sum-exp; results that only a backward pass reads are None."""

DECOMPOSITIONS: Final = [_declare_decomposition(*row) for row in (CONVOLUTIONS | OTHERS | ATTENTIONS).items()]
