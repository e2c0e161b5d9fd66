"""Shrink a failing program: leave parts out, and replace statements by what they read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from pipeline.aten.types import Argument
from pipeline.frozen import FrozenDict
from pipeline.testing.models import ModelError
from tests.fuzz.snippet import Snippet


def shrunk(snippet: Snippet, fails: Callable[[Snippet], bool] | None = None) -> Snippet:
    """Return a program that still ``fails`` (None: in the same way), and of which no part can be left out."""
    fails = fails or _alike(snippet)
    smaller: Snippet | None = snippet
    while smaller is not None:
        snippet = smaller
        smaller = next((s for s in _smaller(snippet) if fails(s)), None)
    return snippet


def _alike(snippet: Snippet) -> Callable[[Snippet], bool]:
    """Whether a program fails with the same kind of error and much the same words."""
    wanted = _failure(snippet)
    return lambda other: wanted is not None and _failure(other) == wanted


def _failure(snippet: Snippet) -> tuple[str, str] | None:
    try:
        snippet.run()
    except ModelError as error:
        words = re.sub(r"(\d|\[|\]|o\d|'|\.)+", "", error.message.split("\n")[0])
        return error.kind, words[:24]
    except Exception:  # what a part left out breaks is another failure
        return None
    return None


def _smaller(s: Snippet) -> Iterator[Snippet]:
    if len(s.results) > 1:
        for name, text in s.results.items():
            yield evolve(s, results=FrozenDict({name: text}))
        for name in s.results:
            yield evolve(s, results=_without(s.results, name))
    for name in s.options:
        yield evolve(s, options=_without(s.options, name))
    for part in _parts(len(s.body)):
        yield evolve(s, body=s.body[: part.start] + s.body[part.stop :])
    for i in reversed(range(len(s.setup))):
        yield evolve(s, setup=s.setup[:i] + s.setup[i + 1 :])
    yield from _fewer_entries(s)
    yield from _shortcuts(s)
    yield from (_pruned(evolve(s, args=_without(s.args, name))) for name in s.args)
    yield from (_pruned(evolve(s, keywords=_without(s.keywords, name))) for name in s.keywords)


def _without(values: FrozenDict[str, Argument], name: str) -> FrozenDict[str, Any]:
    return FrozenDict({n: v for n, v in values.items() if n != name})


def _parts(count: int) -> Iterator[range]:
    """Stretches of lines to leave out: long ones first, then each line, from the end."""
    length = count // 2
    while length:
        yield from (range(max(end - length, 0), end) for end in range(count, 0, -length))
        length //= 2


def _fewer_entries(s: Snippet) -> Iterator[Snippet]:
    text = s.options.get("torch_executed_ops", "[]")
    entries = text[1:-1].split(", ")
    for i in range(len(entries)):
        left = f"[{', '.join(entries[:i] + entries[i + 1 :])}]"
        if left != "[]":
            yield s.with_options(torch_executed_ops=left)


def _shortcuts(s: Snippet) -> Iterator[Snippet]:
    """Each statement as an alias of one of the values that it reads."""
    for i in reversed(range(len(s.body))):
        name, _, text = s.body[i].partition(" = ")
        if re.fullmatch(r"v\d+", name) and not re.fullmatch(r"\w+", text):
            for read in dict.fromkeys(re.findall(r"\b(?:[abcd]|v\d+)\b", text)):
                yield evolve(s, body=(*s.body[:i], f"{name} = {read}", *s.body[i + 1 :]))


def _pruned(s: Snippet) -> Snippet:
    """Without the sizes that no argument names."""
    text = repr(s.args) + repr(s.keywords)
    return evolve(s, sizes=FrozenDict({n: r for n, r in s.sizes.items() if f"'{n}'" in text}))
