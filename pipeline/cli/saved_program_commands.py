"""The commands ``run``, ``verify``, ``serve-config``, ``export`` and ``profile``, which take a saved program."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from pipeline.artifact.load import load_program as load
from pipeline.artifact.named_io import call_args, called_by_name, inputs_of
from pipeline.artifact.serving import serve_config
from pipeline.cli.usage import (
    UsageError,
    add_input_flag,
    add_program_arguments,
    check_exists,
    check_keeps_inputs,
    check_output_file,
)
from pipeline.compiled import Compiled, Executor
from pipeline.errors import ArtifactWarning
from pipeline.profiling.measure import RUNS
from pipeline.program import Port, Program
from pipeline.runtime.atomic import replace_file
from pipeline.runtime.engine_load import require_gpu
from pipeline.stages.verify import verify
from pipeline.verification.samples import create_sample, tuned_sizes
from pipeline.viewing.page import write_report


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    add_input_flag(parser, "a file that numpy.save wrote, or the number that a model takes; may be repeated")
    parser.add_argument("-o", "--output", metavar="FILE.npz", type=Path, help="where to write the outputs by name")
    parser.add_argument("--executor", choices=get_args(Executor), help="where engines run; default: TensorRT on a GPU")
    parser.set_defaults(text=run_program)


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    add_input_flag(parser, "a file that numpy.save wrote, or the number that a model takes; default: random inputs")
    parser.add_argument("--executor", choices=get_args(Executor), help="where engines run; default: TensorRT on a GPU")
    parser.set_defaults(text=run_verify)


def add_serve_config_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="the model repository")
    parser.add_argument("--name", metavar="NAME", help="the model's name; default: the file's")
    parser.add_argument(
        "--batching",
        action=argparse.BooleanOptionalAction,
        help="whether requests become one call where all inputs and outputs begin with one size; default: if a trial "
        "with drawn inputs shows that each row is computed by itself",
    )
    parser.set_defaults(text=run_serve_config)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    parser.add_argument("--format", choices=["epcontext"], required=True, help="epcontext: an ONNX file with the plan")
    parser.add_argument("-o", "--output", metavar="FILE.onnx", type=Path, help="the ONNX file; default: NAME.onnx")
    parser.add_argument(
        "--plan", metavar="FILE", default="inside", help="a file for the plan, beside the ONNX file; default: inside it"
    )
    parser.set_defaults(text=run_export, executor="reference")  # it needs no GPU


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    add_program_arguments(parser)
    add_input_flag(parser, "as for `pipeline run`; those left out are random, of the optimal sizes")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help="runs of each pass (default: %(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE.html", type=Path, help="write the program's page, with times")
    parser.add_argument("--trace", metavar="FILE.json", type=Path, help="write a trace that ui.perfetto.dev reads")
    parser.set_defaults(text=run_profile)


def run_program(options: argparse.Namespace) -> str:
    """Run ``pipeline run``: call a saved program, and return the text to print, one line for each output."""
    check_output_file(options.output)
    program = _load_program(options)
    given = dict(_input_values(program.program, options.inputs))
    module = program.module(options.executor)
    try:
        outputs = called_by_name(program.program, module, given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if options.output is not None:
        with replace_file(options.output) as file:
            np.savez(file, **{name: _to_numpy_array(value) for name, value in outputs.items()})
    return "\n".join(f"{name}: {_dtype_and_shape_or_repr(value)}" for name, value in outputs.items())


def run_verify(options: argparse.Namespace) -> str:
    """Run ``pipeline verify``: compare a saved program with eager PyTorch; return errors and bounds as text."""
    compiled = _load_program(options)
    program = compiled.program
    calls = [call_args(program, dict(_input_values(program, options.inputs)))] if options.inputs else None
    return str(verify(inputs=calls, executor=options.executor)(compiled).agreement)


def _load_program(options: argparse.Namespace) -> Compiled:
    """Load the saved program; if the user requested the reference executor, do not warn that there is no GPU."""
    check_exists(options.file)
    with warnings.catch_warnings():
        if options.executor == "reference":
            warnings.simplefilter("ignore", ArtifactWarning)
        return load(options.file, options.operators)


def run_serve_config(options: argparse.Namespace) -> str:
    """Run ``pipeline serve-config``: write a Triton model repository; return the text of config.pbtxt, and its path."""
    check_exists(options.file)
    if options.output.exists() and not options.output.is_dir():
        raise UsageError(f"-o {options.output}: expected a folder, and this is a file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArtifactWarning)
        found = serve_config(options.file, options.output, options.name, options.batching, options.operators)
    return f"{found}written to {options.output / found.name}"


def run_export(options: argparse.Namespace) -> str:
    """Run ``pipeline export``: write a saved program as an ONNX file; return the file's path."""
    options.output = options.output or Path(Path(options.file).stem).with_suffix(".onnx")
    check_output_file(options.output)
    check_keeps_inputs(options)
    try:
        _load_program(options).save(options.output, options.plan, format=options.format)
    except ImportError as error:  # it names the extra
        raise UsageError(str(error)) from None
    return f"written to {options.output}"


def run_profile(options: argparse.Namespace) -> str:
    """Run ``pipeline profile``: measure a saved program, and return the table to print."""
    check_exists(options.file)
    if options.runs < 1:
        raise UsageError(f"--runs is {options.runs}: expected at least 1")
    check_output_file(options.output)
    check_output_file(options.trace)
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


def _input_values(program: Program, input_flags: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Return (name, value) of each input, from flags ``NAME=VALUE``; raise a `UsageError` if one is missing."""
    ports = {port.name: port for port in inputs_of(program)}
    found = parse_input_flags(program, input_flags)
    if missing := [name for name in ports if name not in found]:
        known = ", ".join(port.text(program.shapes.words) for port in ports.values())
        raise UsageError(f"--input {missing[0]}=FILE.npy is missing; the program's inputs are {known}")
    return ((name, parse_input(port, found[name])) for name, port in ports.items())


def parse_input_flags(program: Program, input_flags: Sequence[str]) -> dict[str, str]:
    """Parse the flags ``--input NAME=VALUE``: return the text of each value by input name."""
    names = [port.name for port in inputs_of(program)]
    found: dict[str, str] = {}
    for text in input_flags:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--input is {text!r}: expected NAME=FILE.npy, or NAME=INTEGER for a size")
        if name in found:
            raise UsageError(f"--input {name} is given twice, as {found[name]!r} and {value!r}: pass it once")
        found[name] = value
    if unknown := [name for name in found if name not in names]:
        raise UsageError(f"--input: the program has no input {unknown[0]!r}, only {', '.join(names)}")
    return found


def parse_input(port: Port, text: str) -> Any:
    """Convert the text of a flag to the value of an input: a file's array to a tensor, or a number to an int."""
    if port.kind != "tensor":
        try:
            return int(text)
        except ValueError:
            raise UsageError(f"--input {port.name}: expected an integer, not {text!r}") from None
    try:
        array = np.load(text, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"--input {port.name}: {text!r} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise UsageError(f"--input {port.name}: {text!r} is not a file that numpy.save wrote: {error}") from None
    if not isinstance(array, np.ndarray):
        raise UsageError(f"--input {port.name}: {text!r} is an archive of arrays; expected one array of numpy.save")
    try:
        native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
        tensor = torch.from_numpy(native)
    except TypeError as error:
        raise UsageError(f"--input {port.name}: torch does not support the array in {text!r}: {error}") from None
    narrow = port.dtype is not None and not _is_numpy_dtype(port.dtype) and tensor.dtype == torch.float32
    return tensor.to(port.dtype) if narrow else tensor


def _is_numpy_dtype(dtype: torch.dtype) -> bool:
    """Return whether numpy supports a dtype: not bfloat16 and 8-bit floats, which files store as float32."""
    return not (dtype.is_floating_point and dtype not in (torch.float16, torch.float32, torch.float64))


def _to_numpy_array(output: object) -> Any:
    if not isinstance(output, torch.Tensor):
        return np.asarray(output)
    value = output.detach().cpu().resolve_conj().resolve_neg()
    return (value if _is_numpy_dtype(value.dtype) else value.float()).numpy()


def _dtype_and_shape_or_repr(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
