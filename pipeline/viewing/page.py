"""Write a program's web page: one HTML file with data, scripts and libraries, which needs no network access."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from pipeline.compiled import Compiled
from pipeline.records.profile import Profile
from pipeline.runtime.atomic import replace_file
from pipeline.version import __version__
from pipeline.viewing.collect import view_program
from pipeline.viewing.records import Change, ProgramView
from pipeline.viewing.sources import view_to_json

LIBRARIES = ("d3.min.js", "dagre.min.js")
"""The page's JavaScript libraries: d3 draws, dagre computes the layout; each one's licence is in a file beside it."""
SCRIPTS = ("words.js", "html.js", "model.js", "layout.js", "draw.js", "tree.js", "details.js", "search.js", "main.js")


def write_report(
    compiled: Compiled, path: str | os.PathLike[str], title: str = "", profile: Profile | None = None
) -> None:
    """Write the web page of a compiled program to a file; an existing file is replaced atomically.

    Raises:
        OSError: the file cannot be written.
    """
    write_page(view_program(compiled, title, profile), path)


def write_page(program: ProgramView, path: str | os.PathLike[str], changes: Sequence[Change] | None = None) -> None:
    """Write the web page of a program to a file; with ``changes``, it shows the differences from another program."""
    with replace_file(Path(path)) as file:
        file.write(render_page(program, changes).encode())


def render_page(program: ProgramView, changes: Sequence[Change] | None = None) -> str:
    """Return the web page of a program as HTML. The element with the id ``data`` contains JSON: ``program`` is a
    `ProgramView`, and ``difference`` has the differences from another program, if any."""
    licences = {name: read_asset(name.replace("min.js", "LICENSE.txt")).strip() for name in LIBRARIES}
    parts = {
        "version": html.escape(__version__),
        "title": html.escape(f"{program.title} – pipeline"),
        "style": read_asset("page.css"),
        "data": view_to_json(program, changes).replace("<", "\\u003c"),
        "libraries": "\n".join(f"/*\n{licence}\n*/\n{read_asset(name)}" for name, licence in licences.items()),
        "scripts": "\n".join(map(read_asset, SCRIPTS)),
    }
    before, *rest = read_asset("page.html").split("{{")
    return before + "".join(parts[name] + text for name, _, text in (each.partition("}}") for each in rest))


@cache
def read_asset(name: str) -> str:
    """Return the text of one of the files that the page consists of: a script, a style sheet or a library."""
    return files("pipeline.viewing").joinpath("assets", name).read_text(encoding="utf-8")
