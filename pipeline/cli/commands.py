"""The command line: ``pipeline compile``, ``bisect``, ``support``, ``print``, ``inspect``, ``run``, ``generate``,
``report``, ``diff`` and ``plan``.

Exit codes: 0; 1 if a valid request failed; 2 for wrong input, with one line on stderr that says why; 130 after Ctrl-C;
141 if the output pipe was closed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import sys
import typing
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pipeline.cli import generate, profiling, saved_program_commands, viewing
from pipeline.cli.agreement import Agreement, measure
from pipeline.cli.listing import UnknownTargetError, details, listing, markdown
from pipeline.cli.options import UsageError, add_precision, add_settings, add_source, pipeline_of, source_of
from pipeline.cli.reporting import CompilationReport, write
from pipeline.cli.sources import Source, SourceError, first_line
from pipeline.compiled import Compiled
from pipeline.compose.progress import StageProgress
from pipeline.defaults import bisect
from pipeline.errors import AgreementWarning, ArtifactWarning, CaptureError, PipelineError
from pipeline.stages.verify import OnFailure, verify
from pipeline.verification.bisection import LIMIT
from pipeline.verification.measure import versions


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line."""

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(f"{message} (`{self.prog} --help` shows the usage)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    try:
        options = _parser().parse_args(_spelt(sys.argv[1:] if argv is None else argv))
        with _warnings_shown():
            code: int = options.run(options) if "run" in options else kept_command(options)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except SystemExit as asked:  # --help and --version have printed
        return int(asked.code or 0)
    except (UsageError, SourceError, UnknownTargetError) as error:
        return _fail(2, str(error))
    except CaptureError as error:
        return _fail(2, _capture_line(error))
    except PipelineError as error:
        return _fail(1, str(error))
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except BrokenPipeError:  # the reader closed the pipe: `pipeline support | head`
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        return _fail(1, str(error))


def _spelt(argv: Sequence[str]) -> list[str]:
    """Replace a bare ``--verify`` by ``--verify=raise``: argparse would take the word after it for its value."""
    return ["--verify=raise" if word == "--verify" else word for word in argv]


def _fail(code: int, message: str) -> int:
    print(f"pipeline: {message}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Drop printed output that cannot be written; otherwise Python tries again at exit, and reports an error."""
    with contextlib.suppress(OSError, ValueError):
        stdout = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)


def _capture_line(error: CaptureError) -> str:
    """Return torch.export's message without its long advice on how to debug."""
    return first_line(re.split(r"\n\s*\n", error.message.strip())[0].replace("\n", " "))


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """While entered, our own warnings are lines on stderr, and torch's are hidden. Exceptions have TensorRT's
    messages."""
    ours, theirs = logging.getLogger("pipeline"), logging.getLogger("torch")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pipeline: %(message)s"))
    handler.addFilter(lambda record: record.name != "pipeline.tensorrt")
    before = ours.propagate, theirs.level
    ours.addHandler(handler)
    ours.propagate = False
    theirs.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, warnings.showwarning, sys.stderr)
            yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = before[0]
        theirs.setLevel(before[1])


def _show_warning(others: Any, stream: Any, message: Any, category: Any, *where: Any, **options: Any) -> None:
    """Print a Python warning to stderr: ours as a line, others in Python's format."""
    if issubclass(category, AgreementWarning | ArtifactWarning):
        print(f"pipeline: {message}", file=stream)
    else:
        others(message, category, *where, **options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pipeline", description="Compiles PyTorch models to TensorRT engines.")
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_compile(commands)
    _add_bisect(commands)
    _add_support(commands)
    _add_print(commands)
    kept_ones = (
        saved_program_commands.add_inspect,
        saved_program_commands.add_run,
        saved_program_commands.add_verify,
        saved_program_commands.add_serve_config,
    )
    listed = (*kept_ones, profiling.add_profile, viewing.add_report)
    generate.add_generate(commands)
    for add in listed:
        add(commands)
    for add_compiling in (viewing.add_diff, viewing.add_plan):
        add_compiling(commands, _run)
    return parser


def _add_compile(commands: Any) -> None:
    parser = commands.add_parser("compile", help="compile a model; write its engines and a report")
    add_source(parser)
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
    add_precision(parser)
    add_settings(parser)
    parser.set_defaults(run=compile_command)


def _add_bisect(commands: Any) -> None:
    parser = commands.add_parser("bisect", help="find the nodes whose engine is wrong; exit with 1 if there are any")
    add_source(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write the script that shows it")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help="the most builds (default: %(default)s)")
    add_precision(parser)
    add_settings(parser)
    parser.set_defaults(run=bisect_command)


def _add_support(commands: Any) -> None:
    parser = commands.add_parser("support", help="which operators run in TensorRT, and under which limits")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="one operator: aten.topk.default, aten::topk, topk")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/operators.md")
    parser.set_defaults(run=support_command)


def _add_print(commands: Any) -> None:
    parser = commands.add_parser("print", help="print the TensorRT networks of a model; build nothing")
    add_source(parser)
    add_precision(parser)
    add_settings(parser)
    parser.set_defaults(run=print_command)


def kept_command(options: argparse.Namespace) -> int:
    """Run a command that prints its result: ``pipeline inspect``, ``run``, ``verify``, ``profile``, ``report``,
    ``diff`` and ``plan``."""
    if text := options.text(options):
        print(text)
    return 0


def compile_command(options: argparse.Namespace) -> int:
    """Run ``pipeline compile``; return its exit code."""
    folder = options.output
    if folder is not None:
        _check_output(folder, options.force)
    if options.save is not None and not options.save.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {str(options.save.absolute().parent)!r} to save {options.save.name!r} in")
    compile = pipeline_of(options)
    compile = compile | verify(options.verify) if options.verify else compile
    source = source_of(options)
    folder = folder or Path(f"{source.name}.engines")
    _check_output(folder, options.force)
    with StageProgress(show=options.setting_progress) as progress:
        compiled = _run(compile.observed_by(progress), source)
    agreement, note = _checked(options, compiled, source)
    precision = options.precision
    report = CompilationReport.of(
        options.spec, compiled, progress.seconds, agreement, note, precision=precision, ledger=progress.entries
    )
    try:
        write(folder, compiled, report)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    print(f"{report}\nwritten to {folder}")
    if options.save is not None:
        compiled.save(options.save)
        print(f"saved to {options.save}")
    return 0


def _run(pipeline: Any, source: Source) -> Any:
    """Run the pipeline on a source; any error while the model is captured is an error of the input.

    The graphs that torch.export writes to stderr beside its exceptions are not shown.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return pipeline(source.model, source.args, source.kwargs, source.dynamic_shapes)
    except PipelineError:
        raise
    except Exception as error:
        if any("'capture'" in note for note in getattr(error, "__notes__", ())):
            raise CaptureError(f"{source.name} cannot be captured: {type(error).__name__}: {error}") from error
        raise


def bisect_command(options: argparse.Namespace) -> int:
    """Run ``pipeline bisect``; return its exit code."""
    compile, source = pipeline_of(options), source_of(options)
    found = _run(partial(bisect, compile=compile, limit=options.limit), source)
    print(found)
    if options.output is not None and found.script:
        options.output.write_text(found.script, encoding="utf-8")
        print(f"written to {options.output}")
    elif found.script:
        print(f"\n{found.script}", end="")
    return 1 if found.faults else 0


def _checked(options: argparse.Namespace, compiled: Compiled, source: Source) -> tuple[Agreement | None, str]:
    """Return the error against eager, or the reason why it is not measured."""
    if options.no_check:
        return None, "--no-check"
    return (None, "--verify did more") if options.verify else _agreement(compiled, source)


def _agreement(compiled: Compiled, source: Source) -> tuple[Agreement | None, str]:
    try:
        return measure(compiled, source), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {first_line(error)}"


def _check_output(folder: Path, force: bool) -> None:
    parent = Path(os.path.realpath(folder)).parent
    if not parent.is_dir():
        there = parent if folder.is_symlink() else folder.parent
        raise UsageError(f"there is no folder {str(there)!r} to write {folder.name!r} to")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is a file; -o takes a folder")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"the folder {str(folder)!r} is not empty; --force replaces it")


def support_command(options: argparse.Namespace) -> int:
    """Run ``pipeline support``; return its exit code."""
    if options.markdown:
        if options.target is not None:
            raise UsageError("--markdown prints the table of all operators; leave TARGET out")
        print(markdown())
    elif options.target is None:
        print(listing())
    else:
        text, supported = details(options.target)
        print(text)
        return 0 if supported else 1
    return 0


def print_command(options: argparse.Namespace) -> int:
    """Run ``pipeline print``; return its exit code."""
    compile = pipeline_of(options).until("convert")
    source = source_of(options)
    with StageProgress(show=options.setting_progress) as progress:
        converted = _run(compile.observed_by(progress), source)
    print("\n".join(map(str, converted.networks)), end="")
    for fallback in converted.partitioned.fallbacks:
        print(f"in PyTorch: {fallback}", file=sys.stderr)
    return 0


def _versions() -> str:
    return ", ".join(f"{name} {value}" for name, value in versions().items())
