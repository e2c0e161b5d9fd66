"""The command ``pipeline profile``: measure on a GPU how long each layer of a saved program takes in a call."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.utils._pytree import tree_unflatten

from pipeline.artifact.load import load_program as load
from pipeline.cli.agreement import random_tensor
from pipeline.cli.saved_program_commands import parse_input, parse_input_flags
from pipeline.cli.usage import UsageError, add_input_flag, add_program_arguments, check_exists, check_output_file
from pipeline.compiled import Compiled
from pipeline.inputs import unwrap_constant
from pipeline.profiling.measure import RUNS
from pipeline.runtime.engine_load import require_gpu
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
    check_output_file(options.output)
    check_output_file(options.trace)
    require_gpu(f"a profile of {options.file}")
    program = load(options.file, options.operators)
    args, kwargs = tree_unflatten(list(inputs_in_order(program, options.inputs)), program.program.in_spec)
    found = program.profile(*args, runs=options.runs, **kwargs)
    if options.trace is not None:
        found.trace(options.trace)
    if options.output is not None:
        write_report(program, options.output, Path(options.file).stem, found)
    written = (f"written to {path}" for path in (options.output, options.trace) if path is not None)
    return "\n".join([str(found), *written])


def inputs_in_order(program: Compiled, input_flags: Sequence[str]) -> Iterator[object]:
    """Yield a program's inputs in order: values of flags ``NAME=FILE.npy``, else random tensors of optimal sizes."""
    ports, generator = program.program.inputs, torch.Generator().manual_seed(0)
    found = parse_input_flags(program, input_flags)
    for port in ports:
        if port.name in found:
            yield parse_input(port, found[port.name])
        elif port.kind == "constant":
            yield unwrap_constant(port.value)
        elif port.kind != "tensor" or port.dtype is None:
            yield port.ranges[0].opt
        else:
            yield random_tensor([size.opt for size in port.ranges], port.dtype, generator)
