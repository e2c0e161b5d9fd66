"""The command ``pipeline inspect``: describe a saved program without importing the runtime."""

from __future__ import annotations

import argparse

from pipeline.artifact.inspect import inspect
from pipeline.cli.usage import add_saved_program_argument, check_exists


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    add_saved_program_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the file's manifest instead")
    parser.set_defaults(text=run_inspect)


def run_inspect(options: argparse.Namespace) -> str:
    """Run ``pipeline inspect``: return a saved program's description, or its manifest as JSON, as the text to print."""
    check_exists(options.file)
    found = inspect(options.file)
    return found.text if options.json else str(found)
