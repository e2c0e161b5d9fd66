"""The commands ``pipeline compile``, ``bisect``, ``support`` and ``print``, which take a model, not a saved program."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pipeline.cli.listing import describe_operator, operators_page, operators_text
from pipeline.cli.options import add_model_arguments, add_setting_flags, create_pipeline, parse_source
from pipeline.cli.reporting import Agreement, CompilationReport, measure_agreement, write_results
from pipeline.cli.sources import Source
from pipeline.cli.usage import UsageError, check_output_file, first_line
from pipeline.compiled import Compiled
from pipeline.compose.progress import StageProgress
from pipeline.defaults import bisect
from pipeline.errors import CaptureError, PipelineError
from pipeline.stages.verify import OnFailure, verify
from pipeline.verification.bisection import MAX_BUILDS


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="where to write; default: NAME.engines")
    parser.add_argument("--force", action="store_true", help="replace DIR if it has files already")
    parser.add_argument("--save", metavar="FILE", type=Path, help="save the program to a file as well: NAME.trtp")
    parser.add_argument("--no-check", action="store_true", help="do not compare the result with eager")
    parser.add_argument(
        "--cache",
        action="store_true",
        help="take engines from the engine cache, and save those that are built in it (--cache-built-engines "
        "--reuse-cached-engines; --engine-cache-dir says where it is)",
    )
    parser.add_argument(
        "--verify",
        choices=get_args(OnFailure),
        help="--verify, or --verify=warn, --verify=heal: run the program beside eager at its smallest, optimal and "
        "largest sizes, and fail, warn, or compile what is wrong in another form where it is further from float64 than "
        "4 times eager",
    )
    add_setting_flags(parser)
    parser.set_defaults(run=run_compile)


def add_bisect_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write the script that shows it")
    parser.add_argument(
        "--limit", type=int, default=MAX_BUILDS, metavar="N", help="the most builds (default: %(default)s)"
    )
    add_setting_flags(parser)
    parser.set_defaults(run=run_bisect)


def add_support_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pipeline support``, which lists the operators that converters support."""
    parser.add_argument("target", metavar="TARGET", nargs="?", help="one operator: aten.topk.default, aten::topk, topk")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/operators.md")
    parser.set_defaults(run=run_support)


def add_print_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_setting_flags(parser)
    parser.set_defaults(run=run_print)


def run_compile(options: argparse.Namespace) -> int:
    """Run ``pipeline compile``: compile a model, write its engines and a report to a folder; return the exit code."""
    folder = options.output
    if folder is not None:
        _check_output_folder(folder, options)
    check_output_file(options.save)
    compile = create_pipeline(options)
    if options.verify:
        compile = compile | verify(options.verify)
    source = parse_source(options)
    folder = folder or Path(f"{source.name}.engines")
    _check_output_folder(folder, options)
    with StageProgress(show=options.setting_progress) as progress:
        compiled = run_pipeline(compile.observed_by(progress), source)
    agreement, note = _agreement_or_note(options, compiled, source)
    report = CompilationReport.of(options.spec, compiled, progress, agreement, note, options.precision)
    try:
        write_results(folder, compiled, report)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    print(f"{report}\nwritten to {folder}")
    if options.save is not None:
        compiled.save(options.save)
        print(f"saved to {options.save}")
    return 0


def run_pipeline(pipeline: Any, source: Source) -> Any:
    """Compile a model from the command line; raise a `CaptureError` for any error during its capture.

    The graphs that torch.export prints to stderr with its exceptions are not shown.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return pipeline(source.model, source.args, source.kwargs, source.dynamic_shapes)
    except PipelineError:
        raise
    except Exception as error:
        if any("'capture'" in note for note in getattr(error, "__notes__", ())):
            raise CaptureError(f"torch.export cannot capture {source.name}: {type(error).__name__}: {error}") from error
        raise


def run_bisect(options: argparse.Namespace) -> int:
    """Run ``pipeline bisect``: print the graph nodes whose engine is wrong; return 1 if there are any, else 0."""
    check_output_file(options.output)
    compile, source = create_pipeline(options), parse_source(options)
    found = run_pipeline(partial(bisect, compile=compile, limit=options.limit), source)
    print(found)
    if options.output is not None and found.script:
        options.output.write_text(found.script, encoding="utf-8")
        print(f"written to {options.output}")
    elif found.script:
        print(f"\n{found.script}", end="")
    return 1 if found.faults else 0


def _agreement_or_note(options: argparse.Namespace, compiled: Compiled, source: Source) -> tuple[Agreement | None, str]:
    """Return (error against eager PyTorch, "") or, if the error was not measured, (None, the reason as text)."""
    if options.no_check:
        return None, "--no-check"
    if options.verify:
        return None, "--verify measured it at all sizes"
    try:
        return measure_agreement(compiled, source), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {first_line(error)}"


def _check_output_folder(folder: Path, options: argparse.Namespace) -> None:
    for what, path in ("the command runs", Path.cwd()), (f"{options.spec} is", Path(os.path.realpath(options.spec))):
        if path.exists() and path.is_relative_to(os.path.realpath(folder)):
            raise UsageError(f"-o {folder}: {what} in this folder, which would be replaced; name another")
    parent = Path(os.path.realpath(folder)).parent
    if not parent.is_dir():
        there = parent if folder.is_symlink() else folder.parent
        raise UsageError(f"the output {folder.name!r} cannot be written: the folder {str(there)!r} does not exist")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder}: expected a folder, and this is a file")
    if folder.is_dir() and any(folder.iterdir()) and not options.force:
        raise UsageError(f"the output folder {str(folder)!r} is not empty; pass --force to replace it")


def run_support(options: argparse.Namespace) -> int:
    """Run ``pipeline support``: list supported operators, or describe TARGET; return 1 if TARGET is unsupported."""
    if options.markdown:
        if options.target is not None:
            raise UsageError("--markdown prints the table of all operators, and takes no TARGET")
        print(operators_page())
    elif options.target is None:
        print(operators_text())
    else:
        text, supported = describe_operator(options.target)
        print(text)
        return 0 if supported else 1
    return 0


def run_print(options: argparse.Namespace) -> int:
    """Run ``pipeline print``: print a model's TensorRT networks without building engines; return the exit code, 0."""
    compile = create_pipeline(options).until("convert")
    source = parse_source(options)
    with StageProgress(show=options.setting_progress) as progress:
        converted = run_pipeline(compile.observed_by(progress), source)
    print("\n".join(map(str, converted.networks)), end="")
    for fallback in converted.partitioned.fallbacks:
        print(f"in PyTorch: {fallback}", file=sys.stderr)
    return 0
