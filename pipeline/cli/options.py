"""Add the options that commands share: the model and its inputs, the precision, and a flag for each setting."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import torch

from pipeline.cli.sources import Source, load_source
from pipeline.cli.usage import UsageError, first_line
from pipeline.compiled import Compiled
from pipeline.compose.pipelines import Pipeline
from pipeline.defaults import PRECISIONS, add_precision_stage, default
from pipeline.inputs import Input
from pipeline.program import Program
from pipeline.settings import CompilationSettings


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument SPEC, which names a model (a file or ``package.module:factory``), and the flag ``--input``."""
    parser.add_argument(
        "spec",
        metavar="SPEC",
        help="a file that torch.export.save (.pt2) or torch.jit.save (.pt, .ts) wrote, or package.module:factory, "
        "which is called without arguments and returns an nn.Module (it is put in eval mode) or a tuple (module, "
        "args[, kwargs[, dynamic_shapes]])",
    )
    text = "an input in place of the model's own, in order, or by its NAME: 1..8x3x224x224:float16; may be repeated"
    add_shape_flag(parser, text)


def add_shape_flag(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the flag ``--input DIMS``, which is repeated for each input of the model, with this help text."""
    metavar = "[NAME=]DIMS[:DTYPE][@DEVICE]"
    parser.add_argument("--input", metavar=metavar, dest="inputs", action="append", default=[], help=help_text)


def create_pipeline(options: argparse.Namespace) -> Pipeline[Program, Compiled]:
    if options.precision_exclude and PRECISIONS[options.precision] is None:
        raise UsageError("--precision-exclude needs --precision fp16 or bf16, but the precision is float32")
    try:
        return add_precision_stage(default(_parse_settings(options)), options.precision, options.precision_exclude)
    except ValueError as error:
        raise UsageError(str(error)) from None


METAVARS: Final[Mapping[str, str]] = {
    "torch_executed_ops": "OPERATOR",
    "refittable_weights": "PATTERN",
    "compute_capabilities": "MAJOR.MINOR",
    "device": "{cuda,cpu}",
    "decisions": "{refuse,example}",
    "kernel_specialization": "{none,eager,lazy}",
    "torch_compile": "MODE",
    "engine_cache_dir": "DIR",
    "runtime_cache": "PATH",
    "measurements": "FILE",
}
"""The names that the help prints for the values of settings that are neither on/off flags nor numbers."""


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--precision``, and a flag for each field of CompilationSettings. The help text of such a flag is
    the first sentence of the field's documentation, followed by the default."""
    parser.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16", "float32", "float16", "bfloat16"),
        default="fp32",
        help="fp16, bf16: mixed precision, matmuls in halves, norms and softmax in float32; inputs and outputs keep "
        "their dtypes; fp32 (default): the model's own dtypes; torch's names are taken too",
    )
    parser.add_argument(
        "--precision-exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="an operator (aten.softmax, aten.conv*) or module path (*.classifier) that --precision leaves alone; may "
        "be repeated",
    )
    group = parser.add_argument_group("settings")
    texts = setting_help_texts()
    for field in attrs.fields(CompilationSettings):
        flag, text = field.name.replace("_", "-"), texts.get(field.name, "").replace("%", "%%")
        common: dict[str, Any] = {"dest": f"setting_{field.name}", "default": None, "help": text}
        if field.type in (bool, bool | None):
            group.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, **common)
        elif isinstance(field.default, (tuple, frozenset)):
            group.add_argument(f"--{flag}", action="append", metavar=METAVARS[field.name], **common)
        elif field.name in METAVARS:
            group.add_argument(f"--{flag}", metavar=METAVARS[field.name], **common)
        else:
            group.add_argument(f"--{flag}", type=int, metavar="N", **common)
        if field.default is True and field.type not in (bool, bool | None):
            group.add_argument(f"--no-{flag}", action="store_const", const=False, dest=common["dest"])


def setting_help_texts() -> dict[str, str]:
    """Return, for each field of CompilationSettings, the first sentence of its documentation and its default."""
    text = inspect.cleandoc(CompilationSettings.__doc__ or "")  # Python 3.13 has it without indentation, -OO has none
    entries = re.findall(r"^(\w+): (.*(?:\n {4}.*)*)", text, re.M)
    return {name: _first_sentence(" ".join(text.split())) for name, text in entries}


def _first_sentence(text: str) -> str:
    """Return a field's documentation, shortened to the first sentence and any default: ``A level. Default: 3.``"""
    stops = (match.start() for match in re.finditer(r"\.(?= |$)", text))
    ends = (stop for stop in stops if text.count("(", 0, stop) == text.count(")", 0, stop))
    start, default = text[: next(ends, len(text))], re.search(r"Default (`[^`]*`|[\w ]+)", text)
    return f"{start[0].upper()}{start[1:]}." + (f" Default: {default[1].strip('`')}." if default else "")


def _parse_settings(options: argparse.Namespace) -> CompilationSettings:
    given = {n: v for n in CompilationSettings.names() if (v := getattr(options, f"setting_{n}")) is not None}
    if getattr(options, "cache", False):
        given = {"cache_built_engines": True, "reuse_cached_engines": True, **given}
    if "torch_executed_ops" in given:
        given["torch_executed_ops"] = tuple(map(_parse_operator, given["torch_executed_ops"]))
    try:
        return CompilationSettings(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def _parse_operator(text: str) -> Any:
    """Return the operator of this name, or all its overloads; raise an error if the name is unknown."""
    path = text.removeprefix("torch.ops.").replace("::", ".").split(".")
    value: object = torch.ops
    for part in path:
        value = getattr(value, part, None)
    if not isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        raise UsageError(f"--torch-executed-ops: torch has no operator {text!r}; expected a name such as aten.topk")
    return value


def parse_source(options: argparse.Namespace) -> Source:
    """Load the model that SPEC names, and return it with its inputs, or with those of ``--input``, as a `Source`."""
    try:
        inputs = [Input.parse(text) for text in options.inputs]
    except (TypeError, ValueError) as error:
        raise UsageError(f"--input is invalid: {first_line(error)}") from None
    return load_source(options.spec, inputs)
