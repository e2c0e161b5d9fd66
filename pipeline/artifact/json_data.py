"""Encode and decode the JSON of saved programs, and raise errors for malformed files.
This module defines the type of the data and the allowed characters. The loader adds the file's name to the errors."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias

from pipeline.errors import ArtifactError


class MalformedError(ArtifactError):
    """A part of a file, which the error locates, is malformed; the loader turns this into an error for the user."""

    def __init__(self, why: str, location: str = "", hint: str = "") -> None:
        super().__init__(f"{location}: {why}" if location else why, hint)
        self.why, self.location = why, location


class MissingOperatorError(ArtifactError):
    """A saved program calls an operator that this process lacks; the hint says which library to import."""


JsonData: TypeAlias = Any
"""JSON data: None, bools, numbers, strings, lists, and dicts with string keys. `codec` checks it by the type of the
field."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Matches the characters that JSON text must not contain: they move a terminal's cursor, end lines or reverse text."""


def encode_json(data: JsonData) -> bytes:
    """Encode data as JSON text, equal for equal data; raise an `ArtifactError` if it has forbidden characters."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    _check_characters(text)
    return text.encode()


def decode_json(data: bytes) -> JsonData:
    """Parse JSON. Raise an `ArtifactError` if it is malformed, or has control characters or lone surrogates, which a
    terminal, a web page or a configuration could misread."""
    try:
        text = data.decode("utf-8")
        _check_characters(text)
        return json.loads(text, parse_constant=_refuse_nan_or_infinity)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the text is not JSON ({type(error).__name__})") from None


def _refuse_nan_or_infinity(text: str) -> NoReturn:
    raise ArtifactError(f"the text has the number {text}, which is not valid in JSON")


def _check_characters(text: str) -> None:
    """Raise an error if JSON text has a control character or a lone surrogate."""
    if found := _CONTROL.search(text):
        raise ArtifactError(f"the JSON text has the control character {found.group()!r}, which no saved text has")
    first = 0
    for found in _ESCAPE.finditer(text):
        code = int(found.group(1), 16) if found.group(1) else {"b": 8, "f": 12, "r": 13}.get(found.group(2), 32)
        if (first != 0) != (0xDC00 <= code < 0xE000):
            raise ArtifactError("a string has a lone surrogate")
        first = code if 0xD800 <= code < 0xDC00 else 0
        if first and text[found.end() : found.end() + 2] != "\\u":
            raise ArtifactError("a string has a lone surrogate")
        if _CONTROL.match(chr(code)):
            raise ArtifactError(f"the JSON text has the control character {chr(code)!r}, which no saved text has")
