"""The command ``pipeline inspect``: describe a saved program without importing the runtime."""

from __future__ import annotations

import argparse

from pipeline.artifact.inspect import inspect
from pipeline.cli.usage import add_file_argument, check_exists


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the file's manifest instead")
    parser.set_defaults(text=run_inspect)


def run_inspect(options: argparse.Namespace) -> str:
    check_exists(options.file)
    found = inspect(options.file)
    return found.text if options.json else str(found)
