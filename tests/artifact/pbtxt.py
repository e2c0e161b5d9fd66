"""protobuf's text format, as far as Triton's configurations use it, read as dicts and lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\\n]|\\.)*"|[\w.+-]+|[{}\[\]:,])')


def parsed(text: str) -> dict[str, list[Any]]:
    """The fields of a message, each with all its values. A `ValueError` where the text is none."""
    tokens = iter([*_tokens(text), "}"])
    found = _message(tokens)
    if rest := next(tokens, None):
        raise ValueError(f"{rest} after the end")
    return found


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no token: {text[at : at + 30]!r}")
        yield match[1]
        at = match.end()


def _message(tokens: Iterator[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name in tokens:
        if name == "}":
            return found
        if not re.fullmatch(r"[a-zA-Z_]\w*", name):
            raise ValueError(f"{name!r} is no field")
        token = next(tokens)
        plain = token == ":"
        value = _value(next(tokens) if plain else token, tokens)
        if not plain and not isinstance(value, dict | list):
            raise ValueError(f"{name} lacks a colon")
        found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    raise ValueError("the end is missing")


def _value(token: str, tokens: Iterator[str]) -> Any:
    if token == "{":
        return _message(tokens)
    if token == "[":
        return _list(tokens)
    if token.startswith('"'):
        octal = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), token[1:-1])
        return octal.encode("latin-1").decode()
    return int(token) if re.fullmatch(r"-?\d+", token) else token


def _list(tokens: Iterator[str]) -> list[Any]:
    found: list[Any] = []
    for token in tokens:
        if token == "]":
            return found
        if token != ",":
            found.append(_value(token, tokens))
    raise ValueError("a list does not end")
