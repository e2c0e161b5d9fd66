"""Placeholders for the converters of a loaded program. `load` imports them, so this module imports no stage."""

from __future__ import annotations

from functools import cache

from pipeline.aten.support import Choice, ConverterSupport
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError


class UnsavedConverter:
    """A placeholder for a converter in a loaded program, since the file contains only the converter's name."""

    def __init__(self, name: str) -> None:
        self.__module__, _, self.__name__ = name.rpartition(".")
        self.__qualname__ = self.__name__

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise ArtifactError("a loaded program has no converters to build engines with: compile the model again")


@cache
def placeholder_choice(converter_name: str) -> Choice:
    """Return the choice of an `UnsavedConverter`, for a node of a loaded program whose converter had this name."""
    return Choice(ConverterSupport(UnsavedConverter(converter_name)))


def was_loaded_from_file(compiled: Compiled) -> bool:
    """Return whether a program was loaded from a file."""
    choices = (verdict.choice for verdict in compiled.partitioned.verdicts.values())
    return any(isinstance(c.support.converter_implementation, UnsavedConverter) for c in choices if c is not None)
