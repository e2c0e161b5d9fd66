"""Copy a module with some objects replaced; make example tensors distinct from the module's own tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils.dlpack import from_dlpack

from pipeline.aten.types import Argument, Target


def copy_module(model: torch.nn.Module, replacements: Mapping[int, object]) -> torch.nn.Module:
    """Return a copy of a model that shares its tensors; ``replacements``, by the id of the original, replace objects.
    Uncopyable objects, such as locks, raise a `TypeError`, and a custom ``__deepcopy__`` may raise any error."""
    own = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    with _ShareTensors():
        return copy.deepcopy(model, {**own, **replacements})


class _ShareTensors(TorchFunctionMode):
    """A mode in which ``copy.deepcopy`` of a module shares tensors instead of copying them."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        return args[0] if func is torch.Tensor.__deepcopy__ else func(*args, **(kwargs or {}))


def distinct_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that is distinct from all others: torch.export distinguishes inputs and the model's tensors by
    identity, and treats a write to a tensor as a write to every tensor of the same storage object.

    The new tensor shares a plain tensor's memory; sparse, quantized and nested tensors are copied.
    """
    given = tensor.detach()
    is_dense = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        alone = given.new_empty_strided(tensor.size(), tensor.stride())
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not is_dense:
        alone = given.clone()
    elif tensor.is_conj():
        alone = from_dlpack(given.conj()).conj()
    else:
        alone = from_dlpack(given)
    vars(alone).update(vars(tensor))  # torch's marks of dynamic dims
    return alone.requires_grad_(tensor.requires_grad)
