"""``SourceIR``: the origin of a converter's operator, an argument of Torch-TensorRT's building blocks."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class SourceIR(Enum):
    """The kind of graph that a converted node was in. Building blocks accept it and ignore it."""

    NN = auto()
    ACC = auto()
    ATEN = auto()
    PRIM = auto()
    TORCHTRT_LOWERED = auto()
    UNKNOWN = auto()

    def __str__(self) -> str:
        return _PRINTED.get(self.name, self.name.lower())


_PRINTED: Final = {"UNKNOWN": "unknown_ir"}
