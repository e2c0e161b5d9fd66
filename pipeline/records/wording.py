"""Helpers for errors about arguments: name a type, suggest a similar name, refuse unknown fields and assignments."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import attrs

C = TypeVar("C", bound=type)


class _NeverChangesError(attrs.exceptions.FrozenInstanceError):
    """The error for assigning an attribute of a frozen record; unlike attrs' own error it has a message."""

    def __init__(self, message: str) -> None:
        AttributeError.__init__(self, message)


def kind_of(value: object) -> str:
    """Return a value's type with its article, for use in a sentence: ``an int``, ``a Tensor``, ``None``."""
    return "None" if value is None else add_article(type(value).__name__)


def add_article(noun: str) -> str:
    """Return a noun preceded by its indefinite article."""
    vowel = noun[:1].lower() in "aeio" or noun == "ndarray"
    return f"{'an' if vowel else 'a'} {noun}"


def to_path(value: object, argument_name: str) -> Path:
    """Return a path argument as a `Path`; raise a `TypeError` for another type."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{argument_name} takes the path of a file, got {kind_of(value)}")
    return Path(value)


def items_of(value: object, expected: str) -> list[Any]:
    """Return the items of a collection; for text, or what is no collection, raise a `TypeError` that begins with
    ``expected``: ``passes must be a collection of names``."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{expected}, got {value!r}")
    return list(value)


def format_bytes(byte_count: int) -> str:
    """Format a number of bytes: ``640 bytes``, ``1.5 kB``, ``2.3 MB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if byte_count >= size:
            return f"{byte_count / size:.1f} {unit}"
    return f"{byte_count} byte{'s'[: byte_count != 1]}"


def did_you_mean(name: object, known_names: Iterable[str], prefix: str = "; ") -> str:
    """Return ``prefix`` and ``did you mean 'NAME'?`` with the known name most similar to ``name``; empty if none is."""
    close = difflib.get_close_matches(str(name), [*known_names], 1)
    return f"{prefix}did you mean {close[0]!r}?" if close else ""


def one_of(*words: str | None) -> Callable[[object, attrs.Attribute[Any], object], None]:
    """Return an attrs validator that accepts only these words; its error suggests the most similar word."""

    def check(_: object, field: attrs.Attribute[Any], value: object) -> None:
        if value not in words:
            close = did_you_mean(value, filter(None, words))
            raise ValueError(f"{field.name} must be one of {', '.join(map(repr, words))}, got {value!r}{close}")

    return check


def with_argument_advice(advice_for_unknown: Callable[[str], str], advice_for_positional: str) -> Callable[[C], C]:
    """Decorate an attrs class: unknown keywords or too many positional arguments raise a `TypeError` with advice.
    ``advice_for_unknown`` returns the advice for a keyword; ``advice_for_positional`` is that for positional ones."""

    def decorate(cls: C) -> C:
        init: Callable[..., None] = vars(cls)["__init__"]
        parameters = [*inspect.signature(init).parameters.values()][1:]
        names = {each.name for each in parameters}
        most = sum(each.kind is not each.KEYWORD_ONLY for each in parameters)

        @functools.wraps(init)
        def checked(self: object, *args: Any, **fields: Any) -> None:
            if len(args) > most:
                given = ", ".join(kind_of(each) for each in args)
                raise TypeError(f"{cls.__name__} got {given} by position: {advice_for_positional}")
            if unknown := [name for name in fields if name not in names]:
                raise TypeError(f"{unknown[0]!r} is not a field of {cls.__name__}; {advice_for_unknown(unknown[0])}")
            init(self, *args, **fields)

        cls.__init__ = checked  # type: ignore[misc]
        return cls

    return decorate


def refuse_assignment(advice: str) -> Callable[[C], C]:
    """Decorate a frozen attrs class: setting an attribute raises an error. ``advice``: how to get a changed copy."""

    def decorate(cls: C) -> C:
        def refuse(self: object, name: str, value: object) -> None:
            raise _NeverChangesError(f"{add_article(cls.__name__)} is immutable, so .{name} cannot be set: {advice}")

        cls.__setattr__ = refuse  # type: ignore[method-assign,assignment]
        return cls

    return decorate
