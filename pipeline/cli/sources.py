"""Load the model that the command line compiles: from a file, or by calling a factory.
A file is ``.pt2``, TorchScript or ONNX. A factory is ``package.module:name``, and may also return the inputs."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from attrs import evolve, frozen
from torch.export import ExportedProgram

from pipeline.aten.types import Argument, Spec
from pipeline.capture.exported_checks import check_input_fits
from pipeline.cli.usage import UsageError, first_line
from pipeline.export_fixes import onnx_file
from pipeline.export_fixes.input_checks import bind_args, check_module
from pipeline.export_fixes.onnx_file import OnnxFile
from pipeline.export_fixes.torchscript.module import is_script
from pipeline.export_fixes.torchscript.module import model as interpreted
from pipeline.inputs import Input
from pipeline.records.wording import kind_of

SPEC = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@frozen
class Source:
    """A model and the inputs for which it is compiled, as they are passed to a `pipeline.Pipeline`."""

    name: str
    model: torch.nn.Module | ExportedProgram
    args: tuple[Argument, ...] = ()
    kwargs: Mapping[str, Argument] = {}
    dynamic_shapes: Spec = None

    def with_inputs(self, inputs: Sequence[Input]) -> Source:
        """Return the same model with these inputs in place of its own; named inputs become keyword arguments."""
        if not inputs:
            return self
        if isinstance(self.model, ExportedProgram):
            return evolve(self, args=_match_inputs(self.model, inputs))
        named = [i.name for i in inputs if i.name]
        if twice := [name for name in dict.fromkeys(named) if named.count(name) > 1]:
            raise UsageError(f"--input has the name {twice[0]} twice")
        args = tuple(i for i in inputs if not i.name)
        return evolve(self, args=args, kwargs={i.name: i for i in inputs if i.name}, dynamic_shapes=None)

    def check_inputs(self) -> Source:
        """Return the source itself; raise a `UsageError` if the module's ``forward`` does not accept the inputs."""
        if isinstance(self.model, torch.nn.Module):
            try:
                check_module(self.model)
            except TypeError as error:
                raise UsageError(f"the model {self.name} cannot be compiled: {error}") from None
            try:
                bind_args(interpreted(self.model) if is_script(self.model) else self.model, self.args, self.kwargs)
            except TypeError as error:
                raise UsageError(f"{str(error).partition('; ')[0]}; describe each input with --input") from None
        return self


def names_a_model(spec: str) -> bool:
    """Return whether a command-line argument looks like a model: ``package.module:factory`` or a model file."""
    return bool(SPEC.fullmatch(spec)) or spec.endswith(tuple(READERS))


def load_source(spec: str, inputs: Sequence[Input] = ()) -> Source:
    """Load the model that a SPEC names, with ``inputs`` or its own inputs; raise a `UsageError` if it is missing."""
    if SPEC.fullmatch(spec) and not Path(spec).exists():
        source = _source_from_result(spec, spec.partition(":")[2].rpartition(".")[2], call_factory(spec))
    elif spec.endswith(tuple(READERS)):
        source = _load_model_file(Path(spec))
    elif Path(spec).suffix == ".trtp":
        raise UsageError(f"{spec!r} is a saved program, not a model; use the commands inspect, run, verify or report")
    else:
        how = "pass FILE.pt2, FILE.pt (of torch.jit.save), FILE.onnx, or package.module:factory"
        raise UsageError(f"{spec!r} does not name a model: {how}")
    return source.with_inputs(inputs).check_inputs()


def _load_model_file(path: Path) -> Source:
    if not path.is_file():
        raise UsageError(f"the file {str(path)!r} does not exist")
    reader, writer = READERS[path.suffix]
    try:
        made = reader(path)
        if isinstance(made, OnnxFile):
            return Source(path.stem, made.module, () if made.dynamic_input else made.inputs)
        return Source(path.stem, made)
    except Exception as error:
        if _is_pickled(path):
            how = "pass a function that creates the model (package.module:factory), or a file of torch.export.save"
            raise UsageError(f"{str(path)!r} is a file of torch.save, which contains no graph: {how}") from error
        raise UsageError(f"{str(path)!r} is not a valid file of {writer}: {first_line(error)}") from error


def _is_pickled(path: Path) -> bool:
    """Return whether torch.save wrote a file: a zip file with ``data.pkl``, without TorchScript's ``constants.pkl``."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
    return "data.pkl" in names and "constants.pkl" not in names


def _load_torchscript(path: Path) -> torch.jit.ScriptModule:
    """Load a TorchScript file in evaluation mode, and hide torch's warnings that TorchScript is deprecated."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        script: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu").eval()
    return script


READERS: Final[Mapping[str, tuple[Callable[[Path], torch.nn.Module | ExportedProgram | OnnxFile], str]]] = {
    ".pt2": (torch.export.load, "torch.export.save"),
    ".pt": (_load_torchscript, "torch.jit.save"),
    ".ts": (_load_torchscript, "torch.jit.save"),
    ".onnx": (onnx_file.read_onnx_file, "torch.onnx.export"),
}
"""For each file suffix: the function that reads a model file, and the name of the function that writes such files."""


def call_factory(spec: str) -> object:
    """Return the model of ``package.module:factory``: the factory's result, or the nn.Module that has this name."""
    module_name, _, attribute = spec.partition(":")
    factory = _get_nested_attribute(_import_module(module_name), module_name, attribute)
    if callable(factory) and not isinstance(factory, torch.nn.Module):
        try:
            factory = factory()
        except (Exception, SystemExit) as error:
            raise UsageError(f"the factory {spec} raised {type(error).__name__}: {first_line(error)}") from error
    return factory


def _import_module(name: str) -> Any:
    """Import a module by name; it may be in the current folder."""
    here = os.getcwd()  # noqa: PTH109 - sys.path takes strings
    if Path(here, name).is_file():
        raise UsageError(f"SPEC names a module, not a file: write {name.removesuffix('.py')}:factory")
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"the Python module {error.name!r} is neither in sys.path nor in {here}") from error
        raise UsageError(f"module {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"module {name!r} cannot be imported: {type(error).__name__}: {first_line(error)}") from error


def _get_nested_attribute(module: object, module_name: str, dotted_path: str) -> object:
    value = module
    for name in dotted_path.split("."):
        if not hasattr(value, name):
            close = difflib.get_close_matches(name, [n for n in dir(value) if not n.startswith("_")], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"the module {module_name} has no {dotted_path!r}{hint}")
        value = getattr(value, name)
    return value


def _source_from_result(spec: str, name: str, result: object) -> Source:
    """Convert a factory's result to a `Source`: it may be a module, a tuple whose first item is a module, an
    ExportedProgram, or an object with the attributes of a `Source`."""
    if isinstance(result, torch.nn.Module):
        return Source(name, result.eval())
    if isinstance(result, ExportedProgram):
        return Source(name, result)
    if isinstance(result, tuple) and 1 < len(result) <= 4 and isinstance(result[0], torch.nn.Module):
        model, args, kwargs, dynamic_shapes = (*result, None, None)[:4]
    else:
        names = ("model", "args", "kwargs", "dynamic_shapes")
        model, args, kwargs, dynamic_shapes = (getattr(result, name, None) for name in names)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"the factory {spec} returns {kind_of(result)}; expected an nn.Module, an ExportedProgram or a tuple "
            "(module, args[, kwargs[, dynamic_shapes]])"
        )
    if not isinstance(args, tuple | list | None):
        raise UsageError(f"the factory {spec} returns {kind_of(args)} as args; expected a tuple of inputs")
    if not isinstance(kwargs, Mapping | None):
        raise UsageError(f"the factory {spec} returns {kind_of(kwargs)} as kwargs; expected a dict of inputs")
    return Source(name, model.eval(), tuple(args or ()), dict(kwargs or {}), dynamic_shapes)


def _match_inputs(exported: ExportedProgram, inputs: Sequence[Input]) -> tuple[Input, ...]:
    """Return ``inputs`` in the exported program's order; raise a `UsageError` if the program does not accept them."""
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    names = list(exported.graph_signature.user_inputs)
    unnamed = iter([i for i in inputs if not i.name])
    by_name = {i.name: i for i in inputs if i.name}
    given = [by_name.get(str(name)) or next(unnamed, None) for name in names]
    if None in given or len(inputs) != len(names):
        raise UsageError(f"--input: describe each of the exported inputs ({', '.join(map(str, names))}) once, or none")
    found = tuple(i for i in given if i is not None)
    for name, wish in zip(names, found, strict=True):
        value = values[str(name)]
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"input {name} is {kind_of(value)}, and --input describes only tensors: leave --input out")
        try:
            check_input_fits(str(name), evolve(wish, name=None), value, exported)
        except ValueError as error:
            raise UsageError(str(error)) from None
    return found
