"""The JSON of saved programs: the type of the data, the allowed text, and the errors for malformed files, to which the
loader adds the file's name."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeAlias

from pipeline.errors import ArtifactError


class MalformedError(ArtifactError):
    """Malformed data, and its location in the file; the loader turns this error into the user's error."""

    def __init__(self, why: str, location: str = "", hint: str = "") -> None:
        super().__init__(f"{location}: {why}" if location else why, hint)
        self.why, self.location = why, location


class MissingOperatorError(ArtifactError):
    """A program calls an operator that this process lacks; the hint says what to import."""


JsonData: TypeAlias = Any
"""JSON: None, bools, numbers, strings, lists, and dicts with string keys. The codec checks it by the type of its
field."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move a terminal's cursor, end lines, or reverse text; tab and line feed are allowed."""


def encode_json(data: JsonData) -> bytes:
    """Return JSON text, equal for equal data; raise an `ArtifactError` if it has forbidden characters."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    _check_text(text)
    return text.encode()


def decode_json(data: bytes) -> JsonData:
    """Parse JSON that has no control characters or lone surrogates, which a terminal, a page or a configuration could
    misread. Raise an `ArtifactError` if the bytes are no such JSON; the message begins with a verb."""
    try:
        text = data.decode("utf-8")
        _check_text(text)
        return json.loads(text, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"is not JSON ({type(error).__name__})") from None


def _refuse_number(text: str) -> NoReturn:
    raise ArtifactError(f"has the number {text}, which is not valid in JSON")


def _check_text(text: str) -> None:
    """Raise an error if JSON text has a control character or a lone surrogate."""
    if found := _CONTROL.search(text):
        raise ArtifactError(f"has the control character {found.group()!r} in a string")
    first = 0
    for found in _ESCAPE.finditer(text):
        code = int(found.group(1), 16) if found.group(1) else {"b": 8, "f": 12, "r": 13}.get(found.group(2), 32)
        if (first != 0) != (0xDC00 <= code < 0xE000):
            raise ArtifactError("has a lone surrogate in a text")
        first = code if 0xD800 <= code < 0xDC00 else 0
        if first and text[found.end() : found.end() + 2] != "\\u":
            raise ArtifactError("has a lone surrogate in a text")
        if _CONTROL.match(chr(code)):
            raise ArtifactError(f"has the control character {chr(code)!r} in a string")
