"""Evaluate TorchScript operators that convert between tensors and Python values: sizes, dtypes, devices, numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import torch
from torch.nn import functional

from pipeline.aten.packed_rnn_ops import LAYERS
from pipeline.aten.types import aten
from pipeline.export_fixes import packed_sequence
from pipeline.export_fixes.branches import is_selectable_condition
from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.registry import Call, Evaluator, evaluator_of_inputs_only
from pipeline.frozen import FrozenDict


def _dtype_codes() -> Mapping[torch.dtype, int]:
    found = dict[torch.dtype, int]()
    with warnings.catch_warnings():  # some dtypes are experimental, or deprecated
        warnings.simplefilter("ignore")
        for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
            with suppress(RuntimeError, NotImplementedError):  # it has no memory of its own: quantized, or bits
                found[dtype] = int(torch.ops.prim.dtype.default(torch.empty(0, dtype=dtype)))
    return found


DTYPE_CODES: Final = FrozenDict(_dtype_codes())
"""TorchScript's integer code for each dtype, which a torch operator returned when this module was imported."""


def to_dtype(code: int | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype for TorchScript's integer code; None for None (no dtype requested)."""
    if code is None or isinstance(code, torch.dtype):
        return code
    return next(dtype for dtype, number in DTYPE_CODES.items() if number == code)


def _number_in_tensor(value: Value) -> Value:
    """Return the number in a one-element tensor; return a Python number unchanged."""
    return value.item() if isinstance(value, torch.Tensor) else value


def to_int(call: Call, value: Value) -> Value:
    """Evaluate aten::Int: convert a tensor, number or string to an int."""
    number = _number_in_tensor(value)
    if isinstance(number, torch.SymFloat):
        return torch.sym_int(number)
    if isinstance(number, torch.SymBool):
        return torch.sym_ite(number, 1, 0)
    return number if isinstance(number, torch.SymInt) else int(number)


def to_float(call: Call, value: Value) -> Value:
    """Evaluate aten::Float: convert a tensor, number or string to a float."""
    number = _number_in_tensor(value)
    return float(number) if isinstance(number, bool | str) else torch.sym_float(number)


def to_bool(call: Call, value: Value) -> Value:
    """Evaluate aten::Bool, the condition of a branch: return a bool, or a 0-d tensor if it is data-dependent."""
    if is_selectable_condition(value):
        return value.reshape(()) != 0
    number = _number_in_tensor(value)
    return number if isinstance(number, bool | torch.SymBool) else number != 0


def to_tensor(call: Call, value: Value) -> torch.Tensor:
    """Evaluate prim::NumToTensor: convert a number to a tensor, as in traces of models that compute with sizes."""
    whole = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
    dtype = torch.int64 if whole else torch.bool if isinstance(value, bool) else torch.float64
    return torch.scalar_tensor(value, dtype=dtype)


def _to_device(
    call: Call, x: Value, device: Value = None, dtype: Value = None, blocks: bool = False, copy: bool = False
) -> Value:
    return x.to(device=x.device if device is None else device, dtype=to_dtype(dtype) or x.dtype, copy=copy)


def _layout_code(call: Call, x: Value) -> int:
    return int(torch.ops.prim.layout.default(torch.empty(0).to(x.device) if x.layout == torch.strided else x))


def _tensor_attribute_evaluator(name: str) -> Evaluator:
    return lambda call, x: getattr(x, name)


_ATTRIBUTES: Final = (
    *("device", "is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse"),
    *("is_sparse_csr", "is_vulkan", "is_xla", "is_xpu", "itemsize", "nbytes", "requires_grad"),
)
"""The names of tensor attributes that a script reads by a node of kind prim::NAME."""

_METHODS: Final = (
    *("cpu", "cuda", "dim", "element_size", "get_device", "is_complex", "is_floating_point", "is_signed", "item"),
    *("numel", "storage_offset"),
)
"""The names of tensor methods, aten::NAME in a script, that return a Python value or move the tensor."""

TENSORS: Final[Mapping[str, Evaluator]] = {
    **{f"prim::{name}": _tensor_attribute_evaluator(name) for name in _ATTRIBUTES},
    **{f"aten::{name}": evaluator_of_inputs_only(getattr(torch.Tensor, name)) for name in _METHODS},
    "prim::requires_grad": lambda call, x: x.is_floating_point(),
    "prim::dtype": lambda call, x: DTYPE_CODES[x.dtype],
    "prim::layout": _layout_code,
    "prim::data": evaluator_of_inputs_only(torch.Tensor.detach),
    "prim::type": lambda call, device: device.type,
    "prim::index": lambda call, device: device.index,
    "prim::NumToTensor": to_tensor,
    "prim::tolist": lambda call, x, *_: x.tolist(),
    "aten::size.default": lambda call, x: list(x.shape),
    "aten::sym_size.default": lambda call, x: list(x.shape),
    "aten::sym_size.int": lambda call, x, dim: x.shape[dim],
    "aten::stride.default": lambda call, x: list(x.stride()),
    "aten::stride.int": lambda call, x, dim: x.stride(dim),
    "aten::is_contiguous": lambda call, x, *_: x.is_contiguous(),
    "aten::len.Tensor": lambda call, x: x.shape[0],
    "aten::Int": to_int,
    "aten::IntImplicit": to_int,
    "aten::Float": to_float,
    "aten::FloatImplicit": to_float,
    "aten::Bool": to_bool,
    "aten::ScalarImplicit": lambda call, x: x.item(),
    "aten::tensor": lambda call, data, dtype=None, device=None, requires_grad=False: torch.tensor(
        data, dtype=to_dtype(dtype), device=device
    ),
    "aten::as_tensor": lambda call, x, dtype=None, device=None: torch.as_tensor(
        x, dtype=to_dtype(dtype), device=device
    ),
    "aten::to.prim_Device": _to_device,
    "aten::to.prim_dtype": lambda call, x, dtype=None, _=False, copy=False: x.to(to_dtype(dtype) or x.dtype, copy=copy),
    "aten::to.prim_other": lambda call, x, blocks=False, copy=False: x.to(x.dtype, copy=copy),
    "aten::device": evaluator_of_inputs_only(torch.device),
    "aten::split.default": lambda call, x, sizes, dim=0: list(x.split(sizes, dim)),
    "aten::unbind": lambda call, x, dim=0: list(x.unbind(dim)),
    "aten::_convolution": lambda call, *given: aten.convolution.default(*given[:9]),  # else torch 2.11 counts elements
    "aten::numpy_T": lambda call, x: x.permute(*reversed(range(x.dim()))),
    "aten::mT": _tensor_attribute_evaluator("mT"),
    "aten::mH": _tensor_attribute_evaluator("mH"),
    "aten::matrix_H": _tensor_attribute_evaluator("mH"),
    "aten::__interpolate": evaluator_of_inputs_only(functional.interpolate),
    "aten::requires_grad_": lambda call, x, *_: x,
}
"""The evaluators of nodes that convert between tensors and Python values; other tensor nodes are torch operators."""


def _if_packed(packed_version: Callable[..., Value], operator: Callable[..., Value]) -> Evaluator:
    """Return an evaluator: ``packed_version(*inputs)`` or, if that is None (not packed), ``operator(*inputs)``."""

    def evaluate(call: Call, *given: Value) -> Value:
        found = packed_version(*given)
        return operator(*given) if found is None else found

    return evaluate


PACKED: Final[Mapping[str, Evaluator]] = {
    "aten::_pack_padded_sequence": evaluator_of_inputs_only(packed_sequence.pack_padded_rows),
    "aten::_pad_packed_sequence": _if_packed(packed_sequence.pad_rows, aten._pad_packed_sequence.default),
    "aten::select.int": _if_packed(lambda x, dim, index: packed_sequence.first_batch_size(x, index), aten.select.int),
    "aten::size.int": _if_packed(lambda x, dim: packed_sequence.longest_length(x), lambda x, dim: x.shape[dim]),
    **{
        f"aten::{target._schema.name.removeprefix('aten::')}.data": _if_packed(
            packed_sequence.recurrent_layer_on_padded_rows(target), target
        )
        for target in LAYERS
    },
}
