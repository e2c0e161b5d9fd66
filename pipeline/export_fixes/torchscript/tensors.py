"""Evaluators between tensors and Python: sizes, dtypes, devices, and numbers read or made into tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn import functional

from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import aten
from pipeline.export_fixes import packed_sequence
from pipeline.export_fixes.branches import is_open
from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.registry import Call, Evaluator
from pipeline.frozen import FrozenDict


def _codes() -> Mapping[torch.dtype, int]:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    with warnings.catch_warnings():  # some dtypes are experimental, or deprecated
        warnings.simplefilter("ignore")
        return {dtype: code for dtype in dtypes if (code := _code(dtype)) is not None}


def _code(dtype: torch.dtype) -> int | None:
    try:
        return int(torch.ops.prim.dtype.default(torch.empty(0, dtype=dtype)))
    except (RuntimeError, NotImplementedError):  # a dtype without memory of its own: quantized, or bits
        return None


CODES: Final = FrozenDict(_codes())
"""TorchScript's integers for dtypes, found by asking torch, which has no other answer while it traces."""


def dtype_of(code: int | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that an integer stands for; None for None (no dtype requested)."""
    if code is None or isinstance(code, torch.dtype):
        return code
    return next(dtype for dtype, number in CODES.items() if number == code)


def _item(value: Value) -> Value:
    """Return the number in a tensor; a number is itself."""
    return value.item() if isinstance(value, torch.Tensor) else value


def to_int(call: Call, value: Value) -> Value:
    """aten::Int, of a tensor, a number or a string."""
    number = _item(value)
    if isinstance(number, torch.SymFloat):
        return torch.sym_int(number)
    return number if isinstance(number, torch.SymInt) else _choice(number) if _is_truth(number) else int(number)


def to_float(call: Call, value: Value) -> Value:
    """aten::Float, of a tensor, a number or a string."""
    number = _item(value)
    return float(number) if isinstance(number, bool | str) else torch.sym_float(number)


def to_bool(call: Call, value: Value) -> Value:
    """aten::Bool: the condition of a branch; for data, a tensor of shape []."""
    if is_open(value):
        return value.reshape(()) != 0
    number = _item(value)
    return number if isinstance(number, bool | torch.SymBool) else number != 0


def _is_truth(number: Value) -> bool:
    return isinstance(number, torch.SymBool)


def _choice(truth: Value) -> Value:
    return torch.sym_ite(truth, 1, 0)


def to_tensor(call: Call, value: Value) -> torch.Tensor:
    """prim::NumToTensor, which traces have where the model computes with sizes."""
    whole = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
    dtype = torch.int64 if whole else torch.bool if isinstance(value, bool) else torch.float64
    return torch.scalar_tensor(value, dtype=dtype)


def make_tensor(
    call: Call, data: Value, dtype: Value = None, device: Value = None, requires_grad: bool = False
) -> Value:
    """aten::tensor of numbers, and of lists of them."""
    return torch.tensor(data, dtype=dtype_of(dtype), device=device)


def as_tensor(call: Call, data: Value, dtype: Value = None, device: Value = None) -> Value:
    """aten::as_tensor."""
    return torch.as_tensor(data, dtype=dtype_of(dtype), device=device)


def _to_device(
    call: Call, x: Value, device: Value = None, dtype: Value = None, blocks: bool = False, copy: bool = False
) -> Value:
    return x.to(device=x.device if device is None else device, dtype=dtype_of(dtype) or x.dtype, copy=copy)


def _to_dtype(call: Call, x: Value, dtype: Value = None, blocks: bool = False, copy: bool = False) -> Value:
    return x.to(dtype=dtype_of(dtype) or x.dtype, copy=copy)


def _layout(call: Call, x: Value) -> int:
    return int(torch.ops.prim.layout.default(torch.empty(0).to(x.device) if x.layout == torch.strided else x))


def _interpolate(
    call: Call, x: Value, size: Value = None, scale: Value = None, mode: str = "nearest", *rest: Value
) -> Value:
    return functional.interpolate(x, size, scale, mode, *rest)


def _attribute(name: str) -> Evaluator:
    return lambda call, x: getattr(x, name)


def _of(function: Callable[..., Value]) -> Evaluator:
    return lambda call, *values: function(*values)


_ATTRIBUTES: Final = (
    *("device", "is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse"),
    *("is_sparse_csr", "is_vulkan", "is_xla", "is_xpu", "itemsize", "nbytes", "requires_grad"),
)
"""Attributes of tensors, prim::NAME in a script."""

TENSORS: Final[Mapping[str, Evaluator]] = {
    **{f"prim::{name}": _attribute(name) for name in _ATTRIBUTES},
    "prim::requires_grad": lambda call, x: x.is_floating_point(),
    "prim::dtype": lambda call, x: CODES[x.dtype],
    "prim::layout": _layout,
    "prim::data": _of(torch.Tensor.detach),
    "prim::type": lambda call, device: device.type,
    "prim::index": lambda call, device: device.index,
    "prim::NumToTensor": to_tensor,
    "prim::tolist": lambda call, x, *_: x.tolist(),
    "aten::size.default": lambda call, x: list(x.shape),
    "aten::sym_size.default": lambda call, x: list(x.shape),
    "aten::sym_size.int": lambda call, x, dim: x.shape[dim],
    "aten::stride.default": lambda call, x: list(x.stride()),
    "aten::stride.int": lambda call, x, dim: x.stride(dim),
    "aten::storage_offset": lambda call, x: x.storage_offset(),
    "aten::dim": lambda call, x: x.dim(),
    "aten::numel": lambda call, x: x.numel(),
    "aten::element_size": lambda call, x: x.element_size(),
    "aten::get_device": lambda call, x: x.get_device(),
    "aten::is_floating_point": lambda call, x: x.is_floating_point(),
    "aten::is_complex": lambda call, x: x.is_complex(),
    "aten::is_signed": lambda call, x: x.is_signed(),
    "aten::is_contiguous": lambda call, x, *_: x.is_contiguous(),
    "aten::len.Tensor": lambda call, x: x.shape[0],
    "aten::Int": to_int,
    "aten::IntImplicit": to_int,
    "aten::Float": to_float,
    "aten::FloatImplicit": to_float,
    "aten::Bool": to_bool,
    "aten::ScalarImplicit": lambda call, x: x.item(),
    "aten::item": lambda call, x: x.item(),
    "aten::tensor": make_tensor,
    "aten::as_tensor": as_tensor,
    "aten::to.prim_Device": _to_device,
    "aten::to.prim_dtype": _to_dtype,
    "aten::to.prim_other": lambda call, x, blocks=False, copy=False: x.to(x.dtype, copy=copy),
    "aten::cpu": lambda call, x: x.cpu(),
    "aten::cuda": lambda call, x: x.cuda(),
    "aten::device": lambda call, *parts: torch.device(*parts),
    "aten::split.default": lambda call, x, sizes, dim=0: list(x.split(sizes, dim)),
    "aten::unbind": lambda call, x, dim=0: list(x.unbind(dim)),
    "aten::_convolution": lambda call, *given: aten.convolution.default(*given[:9]),  # else torch 2.11 counts elements
    "aten::numpy_T": lambda call, x: x.permute(*reversed(range(x.dim()))),
    "aten::mT": _attribute("mT"),
    "aten::mH": _attribute("mH"),
    "aten::matrix_H": _attribute("mH"),
    "aten::__interpolate": _interpolate,
    "aten::requires_grad_": lambda call, x, *_: x,
}
"""Evaluators of nodes between tensors and Python; what computes with tensors alone is an operator of torch's."""


def _pad(call: Call, data: Value, sizes: Value, batch_first: bool, padding: float, length: Value) -> Value:
    found = packed_sequence.of_sizes(sizes)
    if found is None:
        return aten._pad_packed_sequence.default(data, sizes, batch_first, padding, length)
    return packed_sequence.pad(data, found, batch_first, padding, length)


def _select(call: Call, x: Value, dim: int, index: int) -> Value:
    found = packed_sequence.of_sizes(x) if index == 0 else None
    return aten.select.int(x, dim, index) if found is None else packed_sequence.first(found)


def _size(call: Call, x: Value, dim: int) -> Value:
    found = packed_sequence.of_sizes(x) if x.dim() == 1 else None
    return x.shape[dim] if found is None else packed_sequence.longest(found)


def _layer(target: Value) -> Evaluator:
    run = packed_sequence.layer(target)

    def evaluate(call: Call, *given: Value) -> Value:
        found = run(*given)
        return target(*given) if found is None else found

    return evaluate


PACKED: Final[Mapping[str, Evaluator]] = {
    "aten::_pack_padded_sequence": lambda call, *given: packed_sequence.pack(*given),
    "aten::_pad_packed_sequence": _pad,
    "aten::select.int": _select,
    "aten::size.int": _size,
    **{f"aten::{target._schema.name.removeprefix('aten::')}.data": _layer(target) for target in LAYERS},
}
