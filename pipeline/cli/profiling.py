"""The command ``pipeline profile``: measure on a GPU how long each layer of a saved program takes in a call."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch.utils._pytree import tree_unflatten

from pipeline.artifact.load import load_program as load
from pipeline.cli.saved_program_commands import parse_input, parse_input_flags
from pipeline.cli.usage import UsageError, add_input_flag, add_program_arguments, check_exists, check_parent_folder
from pipeline.profiling.measure import RUNS
from pipeline.program import Program
from pipeline.runtime.engine_load import require_gpu
from pipeline.verification.samples import create_sample, tuned_sizes
from pipeline.viewing.page import write_report


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    add_input_flag(parser, "as for `pipeline run`; those left out are random, of the optimal sizes")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="runs of each pass (default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write the program's page, with times")
    parser.add_argument("--trace", metavar="FILE.json", type=Path, help="write a trace that ui.perfetto.dev reads")
    parser.set_defaults(text=run_profile)


def run_profile(options: argparse.Namespace) -> str:
    """Run ``pipeline profile``: measure a saved program, and return the table to print."""
    check_exists(options.file)
    if options.runs < 1:
        raise UsageError(f"--runs is {options.runs}: expected at least 1")
    check_parent_folder(options.output)
    check_parent_folder(options.trace)
    require_gpu(f"a profile of {options.file}")
    compiled = load(options.file, options.operators)
    args, kwargs = tree_unflatten(inputs_in_order(compiled.program, options.inputs), compiled.program.in_spec)
    found = compiled.profile(*args, runs=options.runs, **kwargs)
    if options.trace is not None:
        found.trace(options.trace)
    if options.output is not None:
        write_report(compiled, options.output, Path(options.file).stem, found)
    written = (f"written to {path}" for path in (options.output, options.trace) if path is not None)
    return "\n".join([str(found), *written])


def inputs_in_order(program: Program, input_flags: Sequence[str]) -> list[object]:
    """Return a program's inputs in order: values of flags ``NAME=FILE.npy``, else random ones of the optimal sizes."""
    found, drawn = parse_input_flags(program, input_flags), create_sample(program, tuned_sizes(program)[0]).leaves
    inputs = zip(program.inputs, drawn, strict=True)
    return [parse_input(port, found[port.name]) if port.name in found else value for port, value in inputs]
