"""The command line: its commands, options, and reports."""

from pipeline.cli.commands import main

__all__ = ["main"]
