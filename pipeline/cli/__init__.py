"""The command line ``pipeline``: its commands, their options, and the reports that they print."""

from pipeline.cli.commands import main

__all__ = ["main"]
