"""Capture as on another device: trace a copy of the model whose tensors are fakes there.

The graph that torch traces depends on the device of the tensors, and fake tensors can claim to be on a GPU that the
machine does not have. They have no values and take no memory; the program gets the user's own tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, transform_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.errors import CaptureError
from pipeline.frontend.copied import copied
from pipeline.frontend.device_guard import ensure_cuda_guard

Shown: TypeAlias = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def is_elsewhere(device: str, model: torch.nn.Module, inputs: object) -> bool:
    """Whether a tensor of the model or among the inputs is on another type of device."""
    tensors = chain(model.parameters(), model.buffers(), tree_leaves(inputs))
    return any(isinstance(t, torch.Tensor) and t.device.type != device for t in tensors)


def shown_on(device: str, model: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> Shown:
    """A copy of the model, and of its inputs, with fake tensors on the device; tensors that are neither parameters nor
    buffers stay where they are, as under ``model.to(device)``.

    Raises:
        CaptureError: the module cannot be copied, or this torch knows no such device.
    """
    if device == "cuda":
        ensure_cuda_guard()
    fakes = _Fakes(FakeTensorMode(allow_non_fake_inputs=True), device)
    memo = {id(t): fakes.of(t) for t in (*model.parameters(), *model.buffers())}
    try:
        shown = copied(model, memo)
    except Exception as error:
        why = f"{type(model).__name__} cannot be captured as on {device}: it cannot be copied: {error}"
        raise CaptureError(
            why, "copy.deepcopy(model) alone shows the same; what it fails on needs __deepcopy__"
        ) from error
    positional, named = tree_map_only(torch.Tensor, fakes.of, (tuple(args), dict(kwargs)))
    return shown, positional, named


class _Fakes:
    """Fake tensors on a device: of the same shape, strides and dtype as the given ones, and without gradients."""

    def __init__(self, mode: FakeTensorMode, device: str) -> None:
        self.mode, self.device = mode, device

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of a tensor."""
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
