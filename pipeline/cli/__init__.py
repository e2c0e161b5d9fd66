"""The command line."""

from pipeline.cli.commands import main

__all__ = ["main"]
