"""Export a sharded module as its rank's: over local tensors, with collectives between."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import frozen
from torch import nn

from pipeline.export_fixes.interrupts import undoing


@contextmanager
def as_local(model: object) -> Iterator[None]:
    """Return a context for exporting a module: parameters that are DTensors are its rank's local tensors outside of
    calls, and collectives are operators. Nothing changes where torch.distributed is not in use."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        yield
        return
    from pipeline.distributed.collectives import traced

    with traced(), ExitStack() as stack:
        if isinstance(model, nn.Module) and (places := _places(model)):
            stack.enter_context(_over_local_tensors(model, places))
        yield


@frozen(eq=False)
class Place:
    """A parameter or buffer that is a DTensor, and the dict of its module that has it."""

    registered: MutableMapping[str, Any]
    name: str
    whole: Any

    def put(self, value: object) -> None:
        """Register another tensor in its place."""
        self.registered[self.name] = value


def _places(model: nn.Module) -> list[Place]:
    from torch.distributed.tensor import DTensor

    spaces = (space for each in model.modules() for space in (each._parameters, each._buffers))
    return [Place(space, *item) for space in spaces for item in space.items() if isinstance(item[1], DTensor)]


@contextmanager
def _over_local_tensors(model: nn.Module, places: list[Place]) -> Iterator[None]:
    local: dict[int, Any] = {}
    for each in places:
        if id(each.whole) not in local:
            tensor, kept = each.whole.detach().to_local(), isinstance(each.whole, nn.Parameter)
            local[id(each.whole)] = nn.Parameter(tensor, requires_grad=False) if kept else tensor
    space, before, forward = vars(model), vars(model).get("forward"), model.forward

    @functools.wraps(forward, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        from pipeline.distributed.functions import LocalFunctions, sharded_like

        held = [each.registered[each.name] for each in places]
        whole = {id(value): sharded_like(each.whole, value) for each, value in zip(places, held, strict=True)}
        try:
            for each, value in zip(places, held, strict=True):
                each.put(whole[id(value)])
            with LocalFunctions():
                return forward(*args, **kwargs)
        finally:
            for each, value in zip(places, held, strict=True):
                each.put(value)

    def restore() -> None:
        space.pop("forward", None)
        space.update({} if before is None else {"forward": before})
        for each in places:
            each.put(each.whole)

    with undoing(restore):
        space["forward"] = called
        for each in places:
            each.put(local[id(each.whole)])
        yield
