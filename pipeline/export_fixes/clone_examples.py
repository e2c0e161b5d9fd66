"""Copy example tensors so that torch distinguishes them from each other and from the model's own."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.dlpack import from_dlpack


def unaliased(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor distinct from all others: torch.export identifies inputs and the model's tensors by identity, and a
    write to one reaches every tensor of the same storage object.

    A plain tensor lends its memory to the new one; sparse, quantized and nested ones are copied.
    """
    given = tensor.detach()
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        alone = given.new_empty_strided(tensor.size(), tensor.stride())
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(tensor):
        alone = given.clone()
    elif tensor.is_conj():
        alone = from_dlpack(given.conj()).conj()
    else:
        alone = from_dlpack(given)
    vars(alone).update(vars(tensor))  # torch's marks of dynamic dims
    return alone.requires_grad_(tensor.requires_grad)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a value is a plain dense tensor."""
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)
