"""The versions of other libraries that our tests run with, and a warning for others."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Final

from attrs import frozen

from pipeline.errors import warn


@frozen
class Tested:
    """The first and the last release of a library that tests run with, and the page that says so."""

    first: str
    last: str
    page: str

    def has(self, release: str) -> bool:
        """Return whether a release is between them; a patch release counts as its minor one."""
        first, own, last = (tuple(map(int, re.findall(r"\d+", each)[:2])) for each in (self.first, release, self.last))
        return first <= own <= last


TESTED: Final = MappingProxyType(
    {
        "transformers": Tested("5.17", "5.23", "language-models"),
        "torchao": Tested("0.18", "0.18", "quantization"),
        "nvidia-modelopt": Tested("0.47", "0.47", "quantization"),
    }
)
"""By the name of the distribution. Each page states the range."""


@cache
def warn_untested(library: str) -> None:
    """Warn, once in a process, if the installed release of a library is outside of its tested range."""
    try:
        own, tested = version(library), TESTED[library]
    except PackageNotFoundError:  # its operators may be in a graph without it
        return
    if not tested.has(own):
        found = f"{library} {own} is installed; {tested.first} to {tested.last} are tested"
        warn(f"{found}: compare results (verify=True), or install one of these (docs/{tested.page}.md)", UserWarning)
