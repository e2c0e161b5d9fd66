"""Capture a model for a device that it is not on: trace a copy of the model with fake tensors on that device.

The graph that torch traces depends on the device of the tensors. Fake tensors may be on a GPU that the machine does not
have; they have no values and need no memory. The captured program holds the user's original tensors.

For ``x[0]``, ``x.to("cuda")`` and gradients, torch asks the device guard for the current device. In CUDA builds on a
machine without a GPU, ``FakeTensorMode`` installs a guard that returns 0. CPU-only builds have no guard, and raise "not
linked with support for cuda devices" (torch 2.11 to 2.13). There `ensure_cuda_device_guard` installs torch's own base
class for guards written in Python. Real tensors on ``cuda`` remain impossible.
"""

from __future__ import annotations

import ctypes
import threading
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.errors import CaptureError
from pipeline.export_fixes.error_attribution import Inputs
from pipeline.export_fixes.module_copy import copy_module
from pipeline.export_fixes.patch_contexts import keep_weights_in_place
from pipeline.export_fixes.value_hooks import attach_small_value


def is_on_other_device(device: str | None, model: torch.nn.Module, inputs: object) -> bool:
    """Return whether a tensor of the model or of the inputs is on a type of device other than ``device``, if given."""
    tensors = chain(model.parameters(), model.buffers(), tree_leaves(inputs))
    return device is not None and any(isinstance(t, torch.Tensor) and t.device.type != device for t in tensors)


def make_fake_copy(device: str, model: torch.nn.Module, inputs: Inputs) -> tuple[torch.nn.Module, Inputs]:
    """Return a copy of the model and of its inputs with fake tensors on the device. A tensor that is neither a
    parameter nor a buffer (a grid stored by an earlier call) stays on its device, unless its module overrides
    ``_apply`` so that ``model.to(device)`` moves it. Tensors of few elements, such as strides, keep their values.
    Raise a `CaptureError` if a module cannot be copied, or if its ``_apply`` fails."""
    if device == "cuda":
        ensure_cuda_device_guard()
    fake_of = partial(_fake_of, mode=FakeTensorMode(allow_non_fake_inputs=True), device=device)
    memo = {id(t): fake_of(t) for t in (*model.parameters(), *model.buffers())}
    for buffer in model.buffers():
        attach_small_value(memo[id(buffer)], buffer)
    try:
        shown = copy_module(model, memo)
    except Exception as error:
        why = f"{type(model).__name__} cannot be captured for {device}, since copying it fails: {error}"
        raise CaptureError(
            why, "copy.deepcopy(model) fails in the same way: define __deepcopy__ for the object that cannot be copied"
        ) from error
    with torch.no_grad(), keep_weights_in_place():
        for module in shown.modules():
            owner = next(cls for cls in type(module).__mro__ if "_apply" in vars(cls))
            if owner.__module__.startswith("torch.nn."):  # that of recurrent layers moves no more than tensors
                continue
            try:
                module._apply(lambda tensor: attach_small_value(fake_of(tensor), tensor))
            except Exception as error:
                kind = type(module).__name__
                why = f"{kind} cannot be captured for {device}, since its _apply fails on fake tensors: {error}"
                raise CaptureError(why, f"{kind}._apply(function) must only apply the function to tensors") from error
    return shown, tree_map_only(torch.Tensor, fake_of, inputs)


def attribute_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that modules hold as plain attributes (neither parameters nor buffers), by attribute path."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules(remove_duplicate=False)
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def _fake_of(tensor: torch.Tensor, mode: FakeTensorMode, device: str) -> torch.Tensor:
    """Return a fake tensor on a device, with the tensor's shape, strides and dtype, and without gradients."""
    if is_traceable_wrapper_subclass(tensor):
        fake: torch.Tensor = transform_subclass(tensor, lambda _, part: _fake_of(part, mode, device))
    elif tensor.layout != torch.strided:
        return tensor
    else:
        with mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if isinstance(tensor, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, requires_grad=False)
    vars(fake).update({k: v for k, v in vars(tensor).items() if k.startswith("_dynamo_")})  # marks of dynamic dims
    return fake


GUARD_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""The symbol of ``c10::impl::device_guard_impl_registry``: a pointer to a guard for each type of device, by number."""

_lock = threading.Lock()


def ensure_cuda_device_guard() -> None:
    """Install a permanent device guard for CUDA if torch has none; raise `CaptureError` if torch rejects it."""
    if torch.backends.cuda.is_built():
        return
    with _lock:
        try:
            _register_cuda_guard()
        except (OSError, ValueError, AttributeError) as error:
            raise CaptureError(
                f"this build of torch has no CUDA devices, and pipeline could not simulate one: {error}",
                "install a build of torch with CUDA; capturing a model for a GPU then works without a GPU",
            ) from error


def _register_cuda_guard() -> None:
    """Install a Python device guard for CUDA, by which torch finds out the current device. torch registers such guards
    for the device type PrivateUse1 only; so register it there, then move it to CUDA's slot of the registry."""
    types: Any = torch._C._autograd.DeviceType
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * (max(map(int, types.__members__.values())) + 1)).in_dll(library, GUARD_REGISTRY)
    acc: Any = torch._C._acc
    cuda, free = int(types.CUDA), int(types.PrivateUse1)
    if registry[cuda]:
        return

    class Guard(acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> object:
            return types.CUDA

    theirs, registry[free] = registry[free], None
    try:
        acc.register_python_privateuseone_device_guard(Guard())
        registry[cuda] = registry[free]
    finally:
        registry[free] = theirs
