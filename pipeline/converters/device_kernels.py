"""Decompose operators of one device's kernel to the operator for all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from pipeline.aten.preserved_composites import STAND_INS
from pipeline.converters.decompositions import register_torch_trt_decomposition
from pipeline.converters.normalization import native_batch_norm

aten = torch.ops.aten
Tensor = torch.Tensor
Ints = list[int]


def _declared(name: str, function: Callable[..., Any], overload: str = "default") -> Callable[..., Any]:
    """Return a decomposition of the operator of this name, with its schema as docstring."""
    op = getattr(getattr(aten, name), overload)

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
        return function(**{a.name: given.get(a.name, a.default_value) for a in op._schema.arguments})

    decomposition.__name__, decomposition.__doc__ = name.lstrip("_"), str(op._schema)
    return register_torch_trt_decomposition(op)(decomposition)


def _convolution(
    self: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int = 1,
    bias: Tensor | None = None,
    output_padding: Ints | None = None,
    transposed: bool = False,
    **of_the_kernel: Any,
) -> Tensor:
    """Compute a convolution: the kernel's other arguments do not affect the result."""
    output_padding = output_padding or [0] * (weight.dim() - 2)
    rest = (bias, stride, padding, dilation, transposed, output_padding, groups)
    result: Tensor = aten.convolution(self, weight, *rest)
    return result


def _transposed(**given: Any) -> Tensor:
    return _convolution(**given, transposed=True)


def _depthwise(self: Tensor, **given: Any) -> Tensor:
    return _convolution(self, **given, groups=self.shape[1])


def _undilated(**given: Any) -> Tensor:
    return _convolution(**given, dilation=[1] * len(given["stride"]))


def _with_relu(**given: Any) -> Tensor:
    return torch.relu(_convolution(**given))


def _added_with_relu(z: Tensor, alpha: float | None, **given: Any) -> Tensor:
    return torch.relu(_convolution(**given) + z * (1 if alpha is None else alpha))


CONVOLUTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_convolution": lambda input, **given: _convolution(input, **given),
    "cudnn_convolution": _convolution,
    "mkldnn_convolution": _convolution,
    "cudnn_convolution_relu": _with_relu,
    "cudnn_convolution_add_relu": _added_with_relu,
    "cudnn_convolution_transpose": _transposed,
    "_conv_depthwise2d": _depthwise,
    "conv_depthwise3d": _depthwise,
    "slow_conv_dilated2d": _convolution,
    "slow_conv_dilated3d": _convolution,
    "slow_conv_transpose2d": _transposed,
    "slow_conv_transpose3d": _transposed,
    "_slow_conv2d_forward": _undilated,
}


def _not_updated(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Any:
    training = running_mean is None or running_var is None
    return *native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps), None


CELLS: Final = (aten.rnn_relu.input, aten.rnn_tanh.input, aten.lstm.input, aten.gru.input)
"""The recurrent layers, indexed by cuDNN's mode number."""


def _recurrent(
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
    **of_the_kernel: Any,
) -> Any:
    """Compute a recurrent layer; packed sequences of several lengths are not supported."""
    if batch_sizes:
        return NotImplemented
    biased = weight_stride0 - bool(proj_size) == 4
    state: Any = hx if cx is None else [hx, cx]
    rest = (weight, biased, num_layers, dropout, train, bidirectional, batch_first)
    output, hy, *cy = STAND_INS[CELLS[mode]](input, state, *rest)
    return output, hy, cy[0] if cy else input.new_zeros((0,), dtype=torch.float32), None, None


def _summed(*gates: Tensor | None) -> Tensor:
    first, *rest = (gate for gate in gates if gate is not None)
    return sum(rest, first)


def _lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> Any:
    i, f, g, o = _summed(input_gates, input_bias, hidden_gates, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> Any:
    r, z, n = _summed(input_gates, input_bias).chunk(3, 1)
    hr, hz, hn = _summed(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return (hx - n) * z + n, None


def _packed_bytes(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    return torch.mm(self, mat2.to(self.dtype).t()) * scales


def _affine_grid(theta: Tensor, **size: int) -> Tensor:
    grid: Tensor = aten.affine_grid_generator(theta, list(size.values()), True)
    return grid


def _lstm_step(
    input: Tensor, hx: list[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> Any:
    linear = torch.nn.functional.linear
    return _lstm_cell(linear(input, w_ih, b_ih), linear(hx[0], w_hh, b_hh), hx[1], None, None)[:2]


def _gru_step(input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> Any:
    linear = torch.nn.functional.linear
    return _gru_cell(linear(input, w_ih, b_ih), linear(hx, w_hh, b_hh), hx, None, None)[0]


OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "lstm_cell": _lstm_step,
    "gru_cell": _gru_step,
    "_batch_norm_no_update": _not_updated,
    "_cudnn_rnn": _recurrent,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_gru_cell": _gru_cell,
    "_weight_int8pack_mm": _packed_bytes,
    "cudnn_grid_sampler": lambda self, grid: aten.grid_sampler(self, grid, 0, 0, True),
    "cudnn_affine_grid_generator": _affine_grid,
}

DECOMPOSITIONS: Final = [_declared(name, function) for name, function in {**CONVOLUTIONS, **OTHERS}.items()]
