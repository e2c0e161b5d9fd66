"""All converters (``DYNAMO_CONVERTERS``) and decompositions (``DECOMPOSITIONS``) of this package.

Each module declares a family of converters with `converts`. A converter is named after its operator, receives a `Net`
and the operator's arguments by their schema names, and adds layers with building blocks of `pipeline.impl`:

    @converts(aten.permute.default)
    def permute(net: Net, input: Value, dims: Sequence[int]) -> ITensor:
        '''permute(Tensor self, int[] dims) -> Tensor'''
        return base.permute(net, base.tensor(net, input), dims)
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Final

import torch

from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry

_MECHANISM: Final = """
    binding converter_utils declare decompositions lookup registry support types unsupported
    user_registrations
"""
"""The names of the modules in this package that declare no converters."""


def converter_modules() -> tuple[ModuleType, ...]:
    """Import and return the modules that declare converters, sorted by name (`collectives` only if torch has them)."""
    absent = () if torch.distributed.is_available() else ("collectives",)
    found = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in {*_MECHANISM.split(), *absent})
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in found)


DYNAMO_CONVERTERS: Final = ConverterRegistry.of(*converter_modules())
"""The immutable registry of all our converters: ``register``, ``override``, ``without`` and ``|`` return a new one."""

DECOMPOSITIONS: Final = DecompositionTable.of(*converter_modules())
"""The decompositions that this package defines, in addition to those of torch."""
