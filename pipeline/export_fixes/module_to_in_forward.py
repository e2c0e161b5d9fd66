"""Let a model move its modules while it is traced: ``self.router = self.router.to(torch.float32)`` in its ``forward``.

torch then swaps the contents of tensors, which fails on those of a trace. Here a module gets the results in their
place, and `untouched` puts back what it held.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch

from pipeline.aten.types import Argument
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.patching import Kernel

Function = Callable[[torch.Tensor], torch.Tensor]

_stay: ContextVar[bool] = ContextVar("weights stay", default=False)


def unmoved_weights() -> AbstractContextManager[bool]:
    """Return a context in which only what modules hold beside parameters, buffers and other modules moves."""
    return set_to(_stay, True)


def applied(_: Kernel) -> Kernel:
    """Apply a function to all tensors of a module, in torch's place."""

    def apply(module: torch.nn.Module, fn: Function, recurse: bool = True) -> torch.nn.Module:
        if _stay.get():
            return module
        for child in module.children() if recurse else ():
            child._apply(fn)
        held: Argument
        for held in (module._parameters, module._buffers):
            with torch.no_grad():
                held.update({name: fn(tensor) for name, tensor in held.items() if tensor is not None})
        return module

    return apply
