"""The JSON of kept programs: the type of its data, and what its text may hold."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias

from pipeline.errors import ArtifactError

JsonData: TypeAlias = Any
"""What JSON has: None, bools, numbers, strings, lists of these, and dicts of these by strings. It is checked when it is
read, by the type of the field that it is for."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, end lines, or reverse text; a tab and a line feed are text."""


def encoded(data: JsonData) -> bytes:
    """JSON that is the same for equal data.

    Raises:
        ArtifactError: a string of it is none that a file may have.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    _check_text(text)
    return text.encode()


def decoded(data: bytes) -> JsonData:
    """The data of JSON whose strings are text: without control characters and halves of characters, which a terminal, a
    page or a configuration would take for something else.

    Raises:
        ArtifactError: it is no such JSON; the message begins with a verb.
    """
    try:
        text = data.decode("utf-8")
        _check_text(text)
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"is no JSON ({type(error).__name__})") from None


def _no_number(text: str) -> NoReturn:
    raise ArtifactError(f"has the number {text}, which JSON has not")


def _check_text(text: str) -> None:
    """Raise an error if a string of JSON has a control character or half of a character."""
    if found := _CONTROL.search(text):
        raise ArtifactError(f"has the control character {found.group()!r} in a text")
    first = 0
    for found in _ESCAPE.finditer(text):
        code = int(found.group(1), 16) if found.group(1) else {"b": 8, "f": 12, "r": 13}.get(found.group(2), 32)
        if (first != 0) != (0xDC00 <= code < 0xE000):
            raise ArtifactError("has half of a character in a text")
        first = code if 0xD800 <= code < 0xDC00 else 0
        if first and text[found.end() : found.end() + 2] != "\\u":
            raise ArtifactError("has half of a character in a text")
        if _CONTROL.match(chr(code)):
            raise ArtifactError(f"has the control character {chr(code)!r} in a text")


def check_name(name: str) -> None:
    """Raise an error if a name does not print on one line: it stands in reports, pages and configurations."""
    if not name.isprintable():
        raise ArtifactError(f"the name {name[:80]!r} does not print on one line")
