"""Which faults are avoided: those of the TensorRT in use, but for what an experiment says."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Final

import torch

from pipeline.quirks.table import QUIRKS
from pipeline.trt import CAPABILITIES, has_gpu

_BY_ID: Final = {quirk.id: quirk for quirk in QUIRKS}
_NONE: Final[frozenset[str]] = frozenset()
_assumed: Final = ContextVar("faults that are taken to be there", default=_NONE)
_left_out: Final = ContextVar("faults that are not avoided", default=_NONE)


class Experiment(ContextDecorator):
    """A block, or a decorated function, in which rows of the table are left out or assumed."""

    def __init__(self, variable: ContextVar[frozenset[str]], ids: frozenset[str]) -> None:
        self._variable, self._ids = variable, ids
        self._tokens: list[Token[frozenset[str]]] = []

    def __enter__(self) -> None:
        self._tokens.append(self._variable.set(self._variable.get() | self._ids))

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())


def applies(id: str) -> bool:
    """Return whether a fault is to be avoided: TensorRT has it, and no experiment leaves it out."""
    return is_there(id) and id not in _left_out.get()


def is_there(id: str) -> bool:
    """Return whether the TensorRT in use, on the GPU at hand where that matters, has the fault of this row."""
    quirk = _BY_ID[id]
    here = id in _assumed.get() or quirk.is_in(CAPABILITIES.flavour, CAPABILITIES.version_tuple)
    return here and (not quirk.capabilities or gpu_at_hand() in quirk.capabilities)


def gpu_at_hand() -> str:
    """Return the compute capability of the current GPU ("9.0"), or nothing."""
    return ".".join(map(str, torch.cuda.get_device_capability())) if has_gpu() else ""


def without(*ids: str) -> Experiment:
    """Compile without avoiding these faults: ``with quirks.without("padded-zeros"): compile(model, args)``.

    `build` still warns of kernels that show such a fault.

    Raises:
        ValueError: the table has no such row.
    """
    return Experiment(_left_out, _known(ids))


def assume(*ids: str) -> Experiment:
    """Compile as if the TensorRT in use had these faults: ``with quirks.assume("padded-zeros"): …``.

    Raises:
        ValueError: the table has no such row.
    """
    return Experiment(_assumed, _known(ids))


def _known(ids: tuple[str, ...]) -> frozenset[str]:
    if unknown := sorted(set(ids) - _BY_ID.keys()):
        raise ValueError(f"no fault {', '.join(unknown)}; the faults are {', '.join(_BY_ID)}")
    return frozenset(ids)
