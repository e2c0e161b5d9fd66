"""The entry point of the command line: parse the arguments, and run the chosen command, such as ``pipeline compile``.
A command's module is imported only if the command is run.

Exit codes: 0 for success; 1 if a valid request failed; 2 for wrong input, with the reason on one line of stderr; 130
after Ctrl-C; 141 if the output pipe was closed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from pipeline.cli.usage import UsageError, check_keeps_inputs, first_line
from pipeline.errors import (
    AgreementWarning,
    ArtifactWarning,
    CaptureError,
    CoverageWarning,
    PipelineError,
    VersionWarning,
)
from pipeline.records.wording import did_you_mean
from pipeline.version import __version__


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, as a `UsageError`."""

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(f"invalid arguments: {message} (`{self.prog} --help` shows the usage)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names (None: the process's arguments), and return its exit code."""
    try:
        given = sys.argv[1:] if argv is None else argv
        # argparse would take the word after a bare --verify for its value
        options = _parse_arguments(["--verify=raise" if word == "--verify" else word for word in given])
        check_keeps_inputs(options)
        with _show_warnings():
            code: int = 0
            if "run" in options:
                code = options.run(options)
            elif text := options.text(options):
                print(text)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except SystemExit as asked:  # --help and --version have printed
        return int(asked.code or 0)
    except UsageError as error:
        return _print_error(2, str(error))
    except CaptureError as error:  # without torch.export's long advice on how to debug
        return _print_error(2, first_line(re.split(r"\n\s*\n", error.message.strip())[0].replace("\n", " ")))
    except PipelineError as error:
        return _print_error(1, str(error))
    except KeyboardInterrupt:
        return _print_error(130, "interrupted")
    except BrokenPipeError:  # the reader closed the pipe: `pipeline support | head`
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        return _print_error(1, str(error))


def _parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; for an unknown command or flag, raise a `UsageError` that suggests similar names."""
    asked = next((word for word in words if not word.startswith("-")), "")
    if asked and asked not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise UsageError(f"there is no command {asked!r}; the commands are {known}{did_you_mean(asked, COMMANDS)}")
    if words and not asked and words[0] not in (flags := ("-h", "--help", "--version")):
        raise UsageError(f"there is no flag {words[0]!r}{did_you_mean(words[0], flags)} (`pipeline --help` shows all)")
    parser = chosen = _Parser(prog="pipeline", description="Compile PyTorch models to TensorRT engines.")
    versions = "print the versions of pipeline, torch and TensorRT"
    parser.add_argument("--version", action=_Version, nargs=0, help=versions)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == asked:
            found, chosen = importlib.import_module(f"pipeline.cli.{module}"), command
            getattr(found, f"add_{name.replace('-', '_')}_arguments")(command)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        close = did_you_mean(unknown[0].partition("=")[0], re.findall(r"--[\w-]+", chosen.format_usage()))
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{close} (`{chosen.prog} --help` shows the usage)")
    return options


def _print_error(exit_code: int, message: str) -> int:
    print(f"pipeline: {message}", file=sys.stderr)
    return exit_code


def _discard_output() -> None:
    """Redirect stdout, which did not accept the output, to os.devnull, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        stdout = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)


@contextlib.contextmanager
def _show_warnings() -> Iterator[None]:
    """Return a context in which this package's warnings are printed to stderr, and torch's are hidden. TensorRT's
    messages are not printed, since exceptions contain them."""
    ours, theirs = logging.getLogger("pipeline"), logging.getLogger("torch")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pipeline: %(message)s"))
    handler.addFilter(lambda record: record.name != "pipeline.tensorrt")
    before = ours.propagate, theirs.level
    ours.addHandler(handler)
    ours.propagate = False
    theirs.setLevel(logging.CRITICAL)
    stream, others = sys.stderr, warnings.showwarning

    def show(message: Any, category: Any, *where: Any, **options: Any) -> None:
        if issubclass(category, SHOWN):
            print(f"pipeline: {message}", file=stream)
        else:
            others(message, category, *where, **options)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = before[0]
        theirs.setLevel(before[1])


SHOWN: Final = (AgreementWarning, ArtifactWarning, CoverageWarning, VersionWarning)
"""The classes of this package's warnings that the command line prints, each as one line."""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "compile": ("compiling", "compile a model; write its engines and a report"),
    "bisect": ("compiling", "find the nodes whose engine is wrong; exit with 1 if there are any"),
    "support": ("compiling", "list the operators that run in TensorRT, and under which limits"),
    "print": ("compiling", "print the TensorRT networks of a model; build nothing"),
    "generate": ("generate", "generate tokens with a language model of transformers"),
    "inspect": ("inspecting", "describe a saved program: inputs, outputs, engines; load nothing"),
    "run": ("saved_program_commands", "run a saved program on arrays; write its outputs"),
    "verify": ("saved_program_commands", "run a saved program beside eager PyTorch; exit with 1 if it is wrong"),
    "serve-config": ("saved_program_commands", "write a model repository for NVIDIA Triton from a saved program"),
    "export": ("saved_program_commands", "write a saved program in the format of another runtime: ONNX Runtime"),
    "profile": (
        "saved_program_commands",
        "measure where the milliseconds of a call go, by layer and node; needs a GPU",
    ),
    "report": ("viewing", "write a page that draws a compiled program; needs no GPU"),
    "diff": ("viewing", "show how two programs differ: nodes that moved, layers, kernels, sizes, times, errors"),
    "plan": ("viewing", "show the engines that would be built for a model, and the fallbacks; build nothing"),
}
"""The module and the help text of each command; a command's module is imported only when the command is run."""


class _Version(argparse.Action):
    """The flag ``--version``: it loads TensorRT, prints the versions of all libraries, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pipeline.trt import LIBRARY

        print(f"pipeline {__version__}, torch {torch.__version__}, {LIBRARY}")
        parser.exit()
