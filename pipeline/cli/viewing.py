"""The commands ``pipeline report``, ``diff`` and ``plan``: show a program, compare two, show planned engines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from pipeline.cli.compiling import run_pipeline
from pipeline.cli.options import add_model_arguments, add_setting_flags, add_shape_flag, create_pipeline, parse_source
from pipeline.cli.sources import names_a_model
from pipeline.cli.usage import UsageError, check_keeps_inputs, check_output_file
from pipeline.compose.ledger import Ledger
from pipeline.viewing.collect import view_program
from pipeline.viewing.differences import find_differences, format_changes
from pipeline.viewing.page import write_page
from pipeline.viewing.plan_text import plan_text
from pipeline.viewing.records import ProgramView, StageView
from pipeline.viewing.sources import open_view

VIEW_SOURCES = "a file that compiled.save wrote, a folder of `pipeline compile`, its program.json, or a page"


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=VIEW_SOURCES)
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="the page; default: NAME.html")
    parser.add_argument("--title", help="what the page calls the program; default: the name of the file or folder")
    parser.set_defaults(text=run_report)


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print how two programs differ, and nothing where they do not. Two versions of a setting on one model: "
        "pipeline diff SPEC --left NAME=VALUE --right NAME=VALUE"
    )
    parser.add_argument("spec", metavar="A", help=f"{VIEW_SOURCES}; or a SPEC as for `pipeline compile`, without B")
    parser.add_argument("other", metavar="B", nargs="?", help="the program to compare A with, in any form of A")
    for side, letter in ("left", "A"), ("right", "B"):
        parser.add_argument(
            f"--{side}",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help=f"a setting or precision of {letter} alone, where A is a SPEC; may be repeated",
        )
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="a page of B that shows the differences")
    parser.add_argument("--all", action="store_true", help="print every difference, not 20 of each kind")
    add_shape_flag(parser, "an input of the SPEC, as for `pipeline compile`; may be repeated")
    add_setting_flags(parser)
    parser.set_defaults(text=lambda options: run_diff(options, parser))


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write the page of it as well")
    add_setting_flags(parser)
    parser.set_defaults(text=run_plan)


def run_report(options: argparse.Namespace) -> str:
    """Run ``pipeline report``: write a program's web page, and return the text to print."""
    options.output = options.output or Path(f"{Path(options.file).resolve().stem}.html")
    check_output_file(options.output)
    check_keeps_inputs(options)
    program = _read_program_view(options.file)
    write_page(evolve(program, title=options.title) if options.title else program, options.output)
    return f"written to {options.output}"


def run_diff(options: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """Run ``pipeline diff``: compare two programs, or a model with two settings; return the differences as text."""
    check_output_file(options.output)
    if options.other is not None:
        if options.left or options.right:
            raise UsageError("--left and --right compare two settings for one SPEC; leave the second path, B, out")
        before, after = _read_program_view(options.spec), _read_program_view(options.other)
    else:
        before, after = (_view_variant(options, parser, sides) for sides in (options.left, options.right))
    changes = find_differences(before, after)
    if options.output is not None:
        write_page(after, options.output, changes)
    return format_changes(changes, sys.maxsize if options.all else 20)


def _view_variant(options: argparse.Namespace, parser: argparse.ArgumentParser, settings: Sequence[str]) -> ProgramView:
    """Compile the model of SPEC with ``settings`` (texts ``NAME=VALUE``); return a `ProgramView` to compare."""
    if not (options.left or options.right):
        raise UsageError("pass two paths, A and B, or one SPEC with --left NAME=VALUE or --right NAME=VALUE")
    if not names_a_model(options.spec):
        raise UsageError(f"{options.spec!r} is not the SPEC of a model; to compare files or folders, pass two paths")
    own = parser.parse_args([options.spec, *(word for text in settings for word in _setting_flag(text))])
    default = parser.parse_args([options.spec])
    asked = {k: v for k, v in vars(own).items() if v != getattr(default, k)}
    chosen = argparse.Namespace(**{**vars(options), **asked})
    found = view_program(run_pipeline(create_pipeline(chosen), parse_source(chosen)), options.spec)
    return evolve(found, settings=(*found.settings, ("precision", chosen.precision)))


def _setting_flag(text: str) -> list[str]:
    """Convert a text NAME=VALUE to flags: ``optimization_level=5`` becomes ``["--optimization-level=5"]``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{text!r} is not a setting: write NAME=VALUE, such as optimization_level=5 or precision=fp16")
    name = name.replace("_", "-").lstrip("-")
    if value.lower() in ("true", "false"):
        return [f"--{name}" if value.lower() == "true" else f"--no-{name}"]
    return [f"--{name}={value}"]


def run_plan(options: argparse.Namespace) -> str:
    """Run ``pipeline plan``: return, as text, the engines that would be built for a model, and the fallbacks."""
    check_output_file(options.output)
    ledger = Ledger()
    partitioned = run_pipeline(create_pipeline(options).until("partition").observed_by(ledger), parse_source(options))
    stages = tuple(StageView(e.stage, e.seconds, e.growth, e.peak) for e in ledger.entries)
    found = evolve(view_program(partitioned, options.spec), stages=stages)
    if options.output is not None:
        write_page(found, options.output)
    return plan_text(found)


def _read_program_view(file_or_folder: str) -> ProgramView:
    if not os.path.exists(file_or_folder):  # noqa: PTH110 - as it was typed
        raise UsageError(f"the file or folder {file_or_folder!r} does not exist")
    return open_view(file_or_folder)
