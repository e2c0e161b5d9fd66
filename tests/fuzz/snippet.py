"""A program as Python text: the printed script is the one that runs, so that a failure can be pasted."""

from __future__ import annotations

import hashlib
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from attrs import evolve, field, frozen

from pipeline.aten.types import Argument, Leaf
from pipeline.frozen import FrozenDict
from pipeline.testing.models import ModelError

HEADER = """\
import torch
import torch.nn.functional as F
from torch import cond, nn

import pipeline
from pipeline.testing import Size, TensorSpec, check_model
"""


@frozen
class Snippet:
    """A model's source, and the call of ``check_model`` that checks it. ``str`` is a script to paste.

    setup: lines of ``__init__``. body: lines of ``forward``. results: expressions, by the names under which they are
    returned. form: how ``{}`` of them are returned, ``"dict"``, ``"tuple"`` or ``"list"``, or ``"single"``.
    args, keywords: ``forward``'s parameters and their specs. sizes: ranges of names. options: the other
    arguments of ``check_model`` as source text.
    """

    setup: tuple[str, ...]
    body: tuple[str, ...]
    results: FrozenDict[str, str]
    form: str
    args: FrozenDict[str, Argument]
    keywords: FrozenDict[str, Any]
    sizes: FrozenDict[str, tuple[int, int, int]]
    options: FrozenDict[str, str] = field(factory=FrozenDict)

    def __str__(self) -> str:
        parameters = ["self", *self.args, *(["*", *self.keywords] if self.keywords else [])]
        return "\n".join(
            [
                HEADER,
                "",
                "class Model(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in self.setup),
                "",
                f"    def forward({', '.join(parameters)}):",
                *(f"        {line}" for line in self.body),
                f"        return {self._returned()}",
                "",
                "",
                self._call(),
            ]
        )

    def _returned(self) -> str:
        values = list(self.results.values())
        if self.form == "dict":
            return "{" + ", ".join(f"{name!r}: {value}" for name, value in self.results.items()) + "}"
        if self.form == "list":
            return f"[{', '.join(values)}]"
        if self.form == "single" and len(values) == 1:
            return values[0]
        return f"({', '.join(values)}{',' * (len(values) == 1)})"

    def _call(self) -> str:
        given = [f"({', '.join(map(repr, self.args.values()))}{',' * (len(self.args) == 1)})"]
        given += [f"kwargs={_printed(self.keywords)}"] if self.keywords else []
        given += [f"sizes={dict(self.sizes)!r}"] if self.sizes else []
        given += [f"{name}={value}" for name, value in self.options.items()]
        return "checked = check_model(\n    Model,\n" + textwrap.indent(",\n".join(given), "    ") + ",\n)\n"

    def with_options(self, **options: str) -> Snippet:
        """The same program, checked with these arguments (source text) of ``check_model`` besides its own."""
        return evolve(self, options=FrozenDict({**self.options, **options}))

    def run(self) -> Any:
        """Run the script; return the compiled program, or raise ``ModelError`` with the script in its message."""
        return _ran(str(self))

    def captured(self) -> Any:
        """Capture the script's model without compiling it; ``CaptureError`` if torch.export does not take it."""
        return _ran(_replaced(str(self), "capture_model", "tests.fuzz.captured"))

    def run_backend(self) -> Any:
        """Run the script's model under ``torch.compile``; raise ``ModelError`` if it differs from eager."""
        return _ran(_replaced(str(self), "check_backend", "tests.fuzz.backend"))


def _replaced(text: str, function: str, module: str) -> str:
    """The script with another function of ``check_model``'s arguments."""
    return text.replace("checked = check_model(", f"from {module} import {function}\n\nchecked = {function}(")


def _ran(text: str) -> Any:
    """What a script leaves as ``checked``."""
    with _module(text) as module:
        try:
            exec(compile(text, module.__name__, "exec"), vars(module))
        except ModelError as error:
            raise ModelError(error.kind, f"{error.message}\n\n{text}") from error
        return module.checked


@contextmanager
def _module(text: str) -> Iterator[Leaf]:
    """A module for a script to run in, named by it, with its lines where tracebacks find them: torch imports and reads
    it."""
    name = f"program_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    sys.modules[name] = module = ModuleType(name)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        yield module
    finally:
        sys.modules.pop(name, None)
        linecache.cache.pop(name, None)
        if " cond(" in text:
            torch.compiler.reset()  # what eager mode compiled for it


def _printed(values: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name!r}: {value!r}" for name, value in values.items()) + "}"
