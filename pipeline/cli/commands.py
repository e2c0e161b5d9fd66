"""The command line: ``pipeline compile``, ``pipeline support`` and ``pipeline print``.

Exit codes: 0; 1 where a sound request could not be met; 2 for wrong input, with one line on stderr that says why; 130
after Ctrl-C, 141 where nobody reads what is printed.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from pipeline.cli.agreement import Agreement, measure
from pipeline.cli.listing import UnknownTargetError, details, listing, markdown
from pipeline.cli.reporting import CompilationReport, write
from pipeline.cli.sources import Source, SourceError, first_line, load
from pipeline.compiled import Compiled
from pipeline.compose.pipelines import Pipeline
from pipeline.compose.progress import StageProgress
from pipeline.defaults import default
from pipeline.errors import CaptureError, PipelineError
from pipeline.inputs import Input
from pipeline.settings import CompilationSettings
from pipeline.stages.autocast import autocast
from pipeline.version import __version__

PRECISIONS = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What ``--precision`` takes; fp32 leaves the model in its own dtypes."""


class UsageError(PipelineError):
    """Input of the command line that is wrong; the message is what stderr gets."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(f"{message} (`{self.prog} --help` shows the usage)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; gives its exit code."""
    try:
        options = _parser().parse_args(argv)
        with _warnings_shown():
            code: int = options.run(options)
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
    except BrokenPipeError:  # whoever read has enough: `pipeline support | head`
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        return _fail(1, str(error))


def _fail(code: int, message: str) -> int:
    print(f"pipeline: {message}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """What was printed and cannot be written is forgotten; else Python tries again at its end, and says so."""
    with contextlib.suppress(OSError, ValueError):
        stdout = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)


def _capture_line(error: CaptureError) -> str:
    """torch.export's message without its advice on how to debug, which takes screens."""
    return first_line(re.split(r"\n\s*\n", error.message.strip())[0].replace("\n", " "))


@contextlib.contextmanager
def _warnings_shown() -> Iterator[None]:
    """Our own warnings as lines on stderr. What TensorRT says is in the exceptions; what torch advises is not asked."""
    ours, theirs = logging.getLogger("pipeline"), logging.getLogger("torch")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pipeline: %(message)s"))
    handler.addFilter(lambda record: record.name != "pipeline.tensorrt")
    before = ours.propagate, theirs.level
    ours.addHandler(handler)
    ours.propagate = False
    theirs.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = before[0]
        theirs.setLevel(before[1])


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pipeline", description="Compiles PyTorch models to TensorRT engines.")
    parser.add_argument("--version", action="version", version=f"pipeline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_compile(commands)
    _add_support(commands)
    _add_print(commands)
    return parser


def _add_compile(commands: Any) -> None:
    parser = commands.add_parser("compile", help="compile a model; write its engines and a report")
    _add_source(parser)
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="where to write; default: NAME.engines")
    parser.add_argument("--force", action="store_true", help="replace DIR if it has files already")
    parser.add_argument("--no-check", action="store_true", help="do not compare the result with eager")
    _add_precision(parser)
    _add_settings(parser)
    parser.set_defaults(run=compile_command)


def _add_support(commands: Any) -> None:
    parser = commands.add_parser("support", help="which operators run in TensorRT, and under which limits")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="one operator: aten.topk.default, aten::topk, topk")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/operators.md")
    parser.set_defaults(run=support_command)


def _add_print(commands: Any) -> None:
    parser = commands.add_parser("print", help="print the TensorRT networks of a model; build nothing")
    _add_source(parser)
    _add_precision(parser)
    _add_settings(parser)
    parser.set_defaults(run=print_command)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec",
        metavar="SPEC",
        help="a file that torch.export.save wrote (.pt2), or package.module:factory, which is called without arguments "
        "and gives an nn.Module (it is put in eval mode) or a tuple (module, args[, kwargs[, dynamic_shapes]])",
    )
    parser.add_argument(
        "--input",
        metavar="[NAME=]DIMS[:DTYPE][@DEVICE]",
        dest="inputs",
        action="append",
        default=[],
        help="an input in place of the model's own, in order, or by its NAME: 1..8x3x224x224:float16; may be repeated",
    )


def _add_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=sorted(PRECISIONS),
        default="fp32",
        help="fp16, bf16: mixed precision, products in halves, norms and softmax in float32; inputs and outputs keep "
        "their dtypes; fp32 (default): the dtypes that the model has",
    )
    parser.add_argument(
        "--precision-exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="an operator (aten.softmax, aten.conv*) or module path (*.classifier) that --precision leaves alone; may "
        "be repeated",
    )


def _pipeline(options: argparse.Namespace) -> Pipeline:
    """The pipeline that the flags ask for."""
    try:
        compile, dtype = default(_settings(options)), PRECISIONS[options.precision]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if dtype is None:
        if options.precision_exclude:
            raise UsageError("--precision-exclude leaves something out of --precision fp16 or bf16; give one of them")
        return compile
    return compile.insert(autocast(dtype, exclude=options.precision_exclude), before="decompose")


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag for each field of CompilationSettings, with its own documentation."""
    group = parser.add_argument_group("settings")
    texts = _setting_texts()
    for field in attrs.fields(CompilationSettings):
        flag, text = field.name.replace("_", "-"), texts[field.name].replace("%", "%%")
        common: dict[str, Any] = {"dest": f"setting_{field.name}", "default": None, "help": text}
        if field.type is bool:
            group.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, **common)
        elif isinstance(field.default, (tuple, frozenset)):
            group.add_argument(f"--{flag}", action="append", metavar="VALUE", **common)
        elif isinstance(field.default, str) or field.type == str | None:
            group.add_argument(f"--{flag}", metavar="WORD", **common)
        elif field.default is True:  # or a path
            group.add_argument(f"--{flag}", metavar="PATH", **common)
            group.add_argument(f"--no-{flag}", action="store_const", const=False, dest=common["dest"])
        else:
            group.add_argument(f"--{flag}", type=int, metavar="N", **common)


def _setting_texts() -> dict[str, str]:
    """The first sentence on each field in the docstring of CompilationSettings."""
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", CompilationSettings.__doc__ or "", re.M)
    return {name: re.split(r"(?<=[.;])\s", " ".join(text.split()))[0].rstrip(".;") for name, text in entries}


def _settings(options: argparse.Namespace) -> CompilationSettings:
    names = CompilationSettings.names()
    fields = {n: v for n in names if (v := getattr(options, f"setting_{n}")) is not None}
    fields |= {n: tuple(map(_operator, v)) for n, v in fields.items() if n == "torch_executed_ops"}
    try:
        return CompilationSettings(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def _operator(text: str) -> Any:
    """The operator of a name, or all overloads of it; a name that means nothing would keep nothing in PyTorch."""
    path = text.removeprefix("torch.ops.").replace("::", ".").split(".")
    value: Any = torch.ops
    for part in path:
        value = getattr(value, part, None)
    if not isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise UsageError(f"--torch-executed-ops: there is no operator {text!r}; write aten.topk.default or aten.topk")
    return value


def _source(options: argparse.Namespace) -> Source:
    try:
        inputs = [Input.parse(text) for text in options.inputs]
    except (TypeError, ValueError) as error:
        raise UsageError(f"--input {first_line(error)}") from None
    return load(options.spec, inputs)


def compile_command(options: argparse.Namespace) -> int:
    """``pipeline compile``"""
    folder = options.output
    if folder is not None:
        _check_output(folder, options.force)
    compile = _pipeline(options)
    source = _source(options)
    folder = folder or Path(f"{source.name}.engines")
    _check_output(folder, options.force)
    with StageProgress() as progress:
        compiled = _run(compile.observed_by(progress), source)
    agreement, note = (None, "--no-check") if options.no_check else _agreement(compiled, source)
    precision = options.precision
    ledger = progress.ledger
    report = CompilationReport.of(
        options.spec, compiled, ledger.seconds, agreement, note, precision=precision, ledger=ledger.entries
    )
    try:
        write(folder, compiled, report)
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    print(f"{report}\nwritten to {folder}")
    return 0


def _run(pipeline: Any, source: Source) -> Any:
    """The result for a source; whatever goes wrong while the model is captured is an error of the input.

    torch.export writes graphs to stderr beside its exceptions; they are left out.
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
    """``pipeline support``"""
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
    """``pipeline print``"""
    compile = _pipeline(options).until("convert")
    source = _source(options)
    with StageProgress() as progress:
        converted = _run(compile.observed_by(progress), source)
    print("\n".join(map(str, converted.networks)), end="")
    for fallback in converted.partitioned.fallbacks:
        print(f"in PyTorch: {fallback}", file=sys.stderr)
    return 0
