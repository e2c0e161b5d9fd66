"""``UsageError``, and the arguments that commands for saved programs share. Importing this module is fast."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.errors import PipelineError


class UsageError(PipelineError):
    """An error for wrong input on the command line; the command prints its message to stderr."""


def add_saved_program_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that compiled.save or `pipeline compile --save` wrote")


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument FILE, a saved program, and the flag ``--allow-operators NAMESPACE``, which may be repeated."""
    add_saved_program_argument(parser)
    text = "a library whose operators the program may call in PyTorch (torchvision); may be repeated"
    parser.add_argument(
        "--allow-operators", metavar="NAMESPACE", dest="operators", action="append", default=[], help=text
    )


def add_input_flag(parser: argparse.ArgumentParser, accepted: str) -> None:
    """Add the flag ``--input NAME=FILE.npy``, repeated for each input; ``accepted`` describes the accepted values."""
    metavar, text = "NAME=FILE.npy", f"an input by its name: {accepted}"
    parser.add_argument("--input", metavar=metavar, dest="inputs", action="append", default=[], help=text)


def check_exists(file: str) -> None:
    if not Path(file).exists():
        raise UsageError(f"the file {file!r} does not exist")


def check_output_file(path: Path | None) -> None:
    """Raise an error, before any work is done, if the output file cannot be written."""
    if path is not None and path.is_dir():
        raise UsageError(f"{str(path)!r} cannot be written: it is a folder; name a file in it")
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"{path.name!r} cannot be written: the folder {str(path.absolute().parent)!r} does not exist")


def check_keeps_inputs(options: argparse.Namespace) -> None:
    """Raise an error if an output of a command is one of the files that it reads, which it would replace."""
    given = vars(options)
    read = [given.get(name) for name in ("file", "spec", "other")]
    read += [text.partition("=")[2] for text in given.get("inputs", ())]
    sources = [path for path in map(Path, filter(None, read)) if path.is_file()]
    for name in ("output", "save", "trace", "plan"):
        path = Path(given.get(name) or "")
        if path.is_file() and any(map(path.samefile, sources)):
            raise UsageError(f"--{name} {path}: the command reads this file, and would replace it; name another file")


def first_line(error: object) -> str:
    """Return the first non-empty line of an error's message, at most 300 characters."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= 300 else f"{line[:299]}…"
