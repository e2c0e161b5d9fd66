"""Kernels that replace torch's kernels which lose a symbolic size, or specialize it to a constant.

torch 2.13 expresses the size of ``x[: n // 2]`` in terms of ``n``. Earlier versions created a symbol without a
definition, and specialized a dynamic exponent (``x ** (n / 2)``) to its value in the example. torch 2.11 to 2.13 divide
by the size of a resized dim minus 1, which may be 0. torch 2.11 sums the weights of ``bincount`` as integers.
``create_unbacked_symint``, which fake implementations call for a data-dependent size (``torchvision.ops.nms``), assumes
a size of at least 2. ``torch_patches.py`` lists which versions need which kernel. Other cases are left to torch.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from pipeline.aten.types import Argument, Target
from pipeline.export_fixes.patching import Kernel, is_patch_active


def compare_as_example(orig: Kernel, condition: Argument, default: bool) -> bool:
    """Replace torch's ``_guard_or`` (``orig``), which returns ``default`` for a comparison of sizes that it cannot
    decide. If the example input's sizes decide it otherwise (``b // c == 1`` for equal batch sizes), return their
    answer, and make it a condition on the sizes of each call."""
    answer: bool = orig(condition, default)
    if answer != default or not isinstance(condition, torch.SymBool) or not condition.node.has_hint():
        return answer
    decides = bool(condition.node.hint) != default and len(condition.node.expr.free_symbols) > 1
    return bool(condition.node.guard_bool("", 0)) if decides else answer


def slice_tensor(
    orig: Kernel,
    mode: object,
    func: Target,
    self: Argument,
    dim: int = 0,
    start: Argument = None,
    end: Argument = None,
    step: int = 1,
) -> Argument:
    """Slice a tensor, with the result's size as an expression of the slice's bounds.

    slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
    """
    varies = isinstance(self, torch.Tensor) and -self.dim() <= dim < self.dim() and not self.is_quantized
    if not varies or not isinstance(step, int) or step <= 0:
        return orig(mode, func, self, dim, start, end, step)
    size = self.shape[dim]
    first = 0 if start is None else _clamped_position(start, size)
    last = size if end is None or (isinstance(end, int) and end == sys.maxsize) else _clamped_position(end, size)
    if first is None or last is None or all(isinstance(i, int) for i in (size, first, last)):
        return orig(mode, func, self, dim, start, end, step)
    sizes, strides = list(self.shape), list(self.stride())
    if guard_or_false(last >= first):
        length = (last - first + step - 1) // step
    else:
        length = 0 if guard_or_false(first >= last) else (torch.sym_max(last - first, 0) + step - 1) // step
    sizes[dim], strides[dim] = length, strides[dim] * step
    return self.as_strided(sizes, strides, self.storage_offset() + first * self.stride(dim))


def _clamped_position(index: Argument, size: Argument) -> Argument:
    """Return a slice's start or end as a position in 0..size (-1: ``size - 1``); None if a symbol's sign is unknown."""
    if guard_or_false(index >= 0):
        if guard_or_false(index <= size):
            return index
        return size if guard_or_false(index > size) else torch.sym_min(index, size)
    if guard_or_false(index < 0):
        if guard_or_false(index >= -size):
            return index + size
        return 0 if guard_or_false(index < -size) else torch.sym_max(index + size, 0)
    return None


def power_as_tensor(orig: Kernel, self: object, exponent: object) -> Argument:
    """Compute a power with a symbolic base or exponent as a tensor.

    pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor; pow.Scalar(Scalar self, Tensor exponent)
    """
    if isinstance(self, torch.Tensor) and isinstance(exponent, torch.SymInt | torch.SymFloat):
        return self ** _scalar_tensor(exponent)
    if isinstance(exponent, torch.Tensor) and isinstance(self, torch.SymInt | torch.SymFloat):
        return _scalar_tensor(self) ** exponent
    return orig(self, exponent)


def _scalar_tensor(number: torch.SymInt | torch.SymFloat) -> torch.Tensor:
    """Return a symbolic number as a 0-d tensor that takes part in type promotion as a Python number does."""
    dtype = torch.int64 if isinstance(number, torch.SymInt) else torch.get_default_dtype()
    return torch.scalar_tensor(number, dtype=dtype)  # type: ignore[arg-type]


def resize_step(orig: Kernel, in_size: Any, out_size: Any, align_corners: bool, scale: object = None) -> object:
    """Replace ``_compute_scale``: the input positions per output position of a resize; a size of 1 divides by 1."""
    if align_corners and isinstance(out_size, torch.SymInt):
        return (in_size - 1) / torch.sym_max(out_size - 1, 1)
    return orig(in_size, out_size, align_corners, scale)


def weighted_bincount(
    orig: Kernel, mode: object, func: object, self: object, weights: Any = None, minlength: object = 0
) -> object:
    """Sum the weights of ``bincount`` in their own dtype.

    bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor
    """
    counts = orig(mode, func, self, weights, minlength)
    if weights is None:
        return counts
    return counts.to(torch.float32 if weights.dtype == torch.float32 else torch.float64)


def sqrt(orig: Kernel, x: object, /) -> object:
    """Replace ``math.sqrt``: return the square root of a dynamic size as an expression. Dynamo traces this function."""
    varies = isinstance(x, torch.SymInt | torch.SymFloat) and is_patch_active("trace")
    return torch.sym_sqrt(x) if varies else orig(x)


def one_hot(orig: Kernel, self: torch.Tensor, num_classes: Any = -1) -> object:
    """Compute ``one_hot``; without ``num_classes``, the number of classes is a data-dependent size.

    one_hot(Tensor self, SymInt num_classes=-1) -> Tensor
    """
    if isinstance(num_classes, torch.SymInt) or num_classes != -1 or not isinstance(self, FakeTensor):
        return orig(self, num_classes)
    env: Any = self.fake_mode.shape_env
    classes = env.create_unbacked_symint()
    torch._check(classes >= 1)
    return self.new_empty((*self.shape, classes), dtype=torch.int64)


KEY: Final = DispatchKey.CompositeImplicitAutograd


def shape_only_kernel(infer_shapes: Kernel) -> Kernel:
    """Return a kernel for a recurrent layer that computes only the result's shapes, by ``infer_shapes``. torch.export
    would unroll the time steps of ``aten.lstm`` and similar operators, which is slow and makes the length static."""
    return lambda own, *args, **kwargs: infer_shapes(*args, **kwargs)
