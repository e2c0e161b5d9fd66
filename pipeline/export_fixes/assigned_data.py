"""Follow ``tensor.data = value`` while a model is traced: torch sees no operator in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.fx.experimental.proxy_tensor import _ProxyTensor, get_proxy_mode, get_proxy_slot, set_proxy_slot

from pipeline.export_fixes.interrupts import set_to

_assigned: ContextVar[list[torch.Tensor] | None] = ContextVar("tensors whose data was assigned", default=None)


@contextmanager
def assignments() -> Iterator[list[torch.Tensor]]:
    """Return a context for one call, which records the tensors to whose ``.data`` the model assigns."""
    with set_to(_assigned, list[torch.Tensor]()) as found:
        yield found


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Assign ``tensor.data = value``: the trace goes on with the new value."""
    mode = get_proxy_mode()
    new = value if mode is None or get_proxy_slot(value, mode.tracer, None) is not None else torch.clone(value)
    torch.Tensor.data.__set__(tensor, new)  # type: ignore[attr-defined]
    slot = None if mode is None else get_proxy_slot(new, mode.tracer, None)
    if mode is not None and slot is not None:
        set_proxy_slot(tensor, mode.tracer, _ProxyTensor(slot.proxy, None))
    assigned = _assigned.get()
    if assigned is not None:
        assigned.append(tensor)
