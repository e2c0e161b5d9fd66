"""Capture for another device: trace a copy of the model whose tensors are fakes on that device.

The graph that torch traces depends on the device of the tensors, and fake tensors can claim to be on a GPU that the
machine does not have. They have no values and take no memory; the program gets the user's own tensors.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.errors import CaptureError
from pipeline.export_fixes.device_guard import ensure_cuda_guard
from pipeline.export_fixes.error_attribution import Inputs
from pipeline.export_fixes.module_copy import copied
from pipeline.export_fixes.patch_contexts import moving
from pipeline.export_fixes.value_hooks import with_numbers


def is_elsewhere(device: str, model: torch.nn.Module, inputs: object) -> bool:
    """Return whether a tensor of the model or among the inputs is on another type of device."""
    tensors = chain(model.parameters(), model.buffers(), tree_leaves(inputs))
    return any(isinstance(t, torch.Tensor) and t.device.type != device for t in tensors)


def fake_copy_on(device: str, model: torch.nn.Module, inputs: Inputs) -> tuple[torch.nn.Module, Inputs]:
    """Return a copy of the model, and of its inputs, with fake tensors on the device. A tensor that is neither a
    parameter nor a buffer stays on its device, unless ``model.to(device)`` would move it because its module
    overrides ``_apply``: a grid stored by an earlier call. Tensors of few elements, such as strides, keep their values.
    A module that cannot be copied, and one whose ``_apply`` fails, is a `CaptureError`."""
    if device == "cuda":
        ensure_cuda_guard()
    fakes = _Fakes(FakeTensorMode(allow_non_fake_inputs=True), device)
    memo = {id(t): fakes.of(t) for t in (*model.parameters(), *model.buffers())}
    for buffer in model.buffers():
        with_numbers(memo[id(buffer)], buffer)
    try:
        shown = copied(model, memo)
    except Exception as error:
        why = f"{type(model).__name__} cannot be captured as on {device}: it cannot be copied: {error}"
        raise CaptureError(
            why, "copy.deepcopy(model) alone shows the same; what it fails on needs __deepcopy__"
        ) from error
    with torch.no_grad(), moving():
        for module in shown.modules():
            owner = next(cls for cls in type(module).__mro__ if "_apply" in vars(cls))
            if owner.__module__.startswith("torch.nn."):  # that of recurrent layers moves no more than tensors
                continue
            try:
                module._apply(fakes.with_numbers)
            except Exception as error:
                kind = type(module).__name__
                why = f"{kind} cannot be captured as on {device}: its own _apply fails on fake tensors: {error}"
                raise CaptureError(why, f"{kind}._apply(function) is to give each tensor to the function") from error
    return shown, tree_map_only(torch.Tensor, fakes.of, inputs)


def attributes(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that modules hold as plain attributes, by name."""
    return {
        f"{path}.{name}" if path else name: value
        for path, module in model.named_modules(remove_duplicate=False)
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


class _Fakes:
    """Fake tensors on a device: of the same shape, strides and dtype as the given ones, and without gradients."""

    def __init__(self, mode: FakeTensorMode, device: str) -> None:
        self.mode, self.device = mode, device

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_traceable_wrapper_subclass(tensor):
            fake: torch.Tensor = transform_subclass(tensor, lambda _, part: self.of(part))
        elif tensor.layout != torch.strided:
            return tensor
        else:
            with self.mode:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=False)
        vars(fake).update({k: v for k, v in vars(tensor).items() if k.startswith("_dynamo_")})  # marks of dynamic dims
        return fake

    def with_numbers(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a tensor in the model; small tensors keep their values."""
        fake = self.of(tensor)
        with_numbers(fake, tensor)
        return fake
