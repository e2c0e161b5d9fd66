"""Trace functions of DTensors as functions of their local tensors.

torch.export traces before autograd, where DTensor has not chosen its collectives yet. So each function that receives a
DTensor is traced separately below autograd. The export records only the traced operators, which work on local tensors
or are collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.types import Argument, Function

TENSORS: Final = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
"""The properties of a tensor that return another tensor, so that an export must trace them."""


class LocalFunctions(TorchFunctionMode):
    """A torch function mode for exports: it replaces functions on DTensors by operators on local tensors."""

    def __torch_function__(
        self,
        function: Function,
        types: Iterable[type],
        args: Argument = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> Argument:
        given, form = tree_flatten((args, dict(kwargs or {})))
        owner = getattr(function, "__self__", None)
        reads = getattr(function, "__name__", "") == "__get__" and getattr(owner, "__name__", "") not in TENSORS
        if reads or not any(isinstance(each, DTensor) for each in given):
            return function(*args, **(kwargs or {}))
        return _replay_on_local_tensors(function, given, form)


def _replay_on_local_tensors(function: Function, arguments: Sequence[Argument], structure: Argument) -> Argument:
    """Trace a function on DTensors, and call the traced operators on their local tensors; return its results.

    arguments, structure: the function's ``(args, kwargs)``, flattened by pytree.
    """
    places = [i for i, each in enumerate(arguments) if isinstance(each, torch.Tensor | torch.SymInt)]
    masks = _embedding_mask_buffers(arguments)
    local = [*map(_to_local, (arguments[place] for place in places)), *(mask.data for mask in masks)]
    made: list[Argument] = []

    def traced(*values: Argument) -> list[Argument]:
        own = list(arguments)
        for mask, value in zip(masks, values[len(places) :], strict=True):
            mask.data = value
        for place, value in zip(places, values, strict=False):
            own[place] = _shard_like(arguments[place], value)
        args, kwargs = tree_unflatten(own, structure)
        results, shape = tree_flatten(function(*args, **kwargs))
        known = {id(own[place]): arguments[place] for place in places}
        made[:] = results, shape, known, _embedding_mask_buffers([*arguments, *results])
        return [*map(_to_local, results), *(mask.data for mask in made[3])]

    with _disable_current_modes(), torch._C.DisableTorchFunction():
        graph = make_fx(traced)(*map(_inner_fake_tensor, local))
    results, shape, known, masks = made
    values = _Replay(graph).run(*local)
    for mask, value in zip(masks, values[len(results) :], strict=True):
        mask.data = value
    whole = [known.get(id(was), _shard_like(was, value)) for was, value in zip(results, values, strict=False)]
    return tree_unflatten(whole, shape)


def _shard_like(dtensor: Argument, local_tensor: Argument) -> Argument:
    """Return a local tensor as a DTensor with the layout of ``dtensor``, or unchanged if ``dtensor`` is no DTensor."""
    return DTensor(local_tensor, dtensor._spec, requires_grad=False) if isinstance(dtensor, DTensor) else local_tensor


def _to_local(value: Argument) -> Argument:
    return value._local_tensor if isinstance(value, DTensor) else value


def _embedding_mask_buffers(tensors: Iterable[Argument]) -> list[Argument]:
    """Return the mask buffers in the placements of those ``tensors`` that are DTensors. A row-sharded embedding marks
    in its mask buffer the indices of rows that other ranks hold."""
    placements = (each for tensor in tensors if isinstance(tensor, DTensor) for each in tensor.placements)
    masks = (getattr(each, "mask_buffer", None) for each in placements)
    return list({id(mask): mask for mask in masks if mask is not None and mask.data is not None}.values())


def _inner_fake_tensor(value: Argument) -> Argument:
    """Return the fake tensor inside a functional tensor of an export."""
    if isinstance(value, FunctionalTensor):
        value = torch._from_functional_tensor(value.elem)
    return value.detach() if isinstance(value, torch.Tensor) else value


class _Replay(torch.fx.Interpreter):
    """Call a traced graph's operators during an export; constant tensors are created anew from their values."""

    def get_attr(self, target: Argument, args: Argument, kwargs: Argument) -> Argument:
        """Return a new tensor with the values of the constant that the graph contains under the name ``target``."""
        value = super().get_attr(target, args, kwargs)
        return torch.tensor(value.tolist(), dtype=value.dtype, device=value.device)

    def call_function(self, target: Argument, args: Argument, kwargs: Argument) -> Argument:
        """Call an operator of the graph. ``lift_fresh_copy``, which copies a constant, returns its operand instead: the
        constant is new already, since `get_attr` creates it at each run."""
        lifts = target is torch.ops.aten.lift_fresh_copy.default
        return args[0] if lifts else super().call_function(target, args, kwargs)
