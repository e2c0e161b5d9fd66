"""Check that adjacent stages and their arguments have compatible types; raise errors that name the mismatch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType
from typing import Any

import attrs
import torch

from pipeline.aten.types import Argument
from pipeline.compiled import Compiled
from pipeline.compose.stage_signature import AnyStage, accepts_type, innermost_function, is_instance, type_name
from pipeline.export_fixes.onnx_file import is_onnx
from pipeline.export_fixes.torchscript.module import is_script
from pipeline.inputs import Input
from pipeline.program import Program
from pipeline.records.wording import did_you_mean, kind_of
from pipeline.settings import CompilationSettings


def describe_argument(model: object) -> str:
    """Return a description, for errors, of an argument that was passed as a model."""
    if isinstance(model, type):
        return f"the class {model.__name__} (an instance is {model.__name__}(…))"
    if isinstance(model, FunctionType | BuiltinFunctionType):
        return f"the function {model.__name__}"
    return kind_of(model)


def _what_to_pass_instead(model: object, input_type: str) -> str:
    """Return what to pass instead of ``model``, which is no model. ``input_type``: the first stage's record type."""
    if isinstance(model, Mapping) and model and all(isinstance(value, torch.Tensor) for value in model.values()):
        return "it is a state dict: load it into a model (model.load_state_dict), and pass the model"
    if isinstance(model, str | os.PathLike):
        others = "read other files with torch.export.load, torch.jit.load or pipeline.load"
        return f"pass an nn.Module, or the path of an ONNX file; {others}"
    if isinstance(model, torch.Tensor | Input):
        return "pass the model first, then its inputs: (model, args=(x,))"
    if callable(model) and not isinstance(model, type | Compiled):
        return "pass an nn.Module whose forward calls this function"
    made = "it is compiled already; " if isinstance(model, Compiled) else ""
    due = f"an nn.Module, ExportedProgram or TorchScript with its args, or only the {input_type} that stages take"
    return f"{made}pass {due}"


def is_empty(arguments: object) -> bool:
    """Return whether a call has no arguments; a tensor passed by mistake is not converted to a bool."""
    return arguments is None or (isinstance(arguments, Sequence | Mapping) and not arguments)


def run_stage(stage: AnyStage, record: object) -> Any:
    """Run a stage on a record, such as a `Program`; raise a `TypeError` if the result's type is not as declared."""
    result = stage(record)
    if not is_instance(result, stage.gives):
        raise TypeError(f"stage {stage.name!r} returned {kind_of(result)}, but declares {type_name(stage.gives)}")
    return result


class _NoStageError(KeyError):
    """A `KeyError` that prints its message without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


def stage_index(name: str, stage_names: Sequence[str]) -> int:
    """Return the index of the stage with this name; raise a `KeyError` that lists the names."""
    if name not in stage_names:
        known = ", ".join(stage_names) or "none"
        raise _NoStageError(f"no stage is called {name!r}; the stages are {known}{did_you_mean(name, stage_names)}")
    return stage_names.index(name)


def check_adjacent_stages(stages: Sequence[AnyStage]) -> None:
    """Raise an error if two stages have the same name, or if a stage does not accept the previous stage's result."""
    names = [stage.name for stage in stages]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        instead = 'exchange the first with .replace(name, stage), or rename one with @stage(name="…")'
        raise ValueError(f"two of the stages {', '.join(names)} have the name {twice[0]!r}: {instead}")
    for before, after in pairwise(stages):
        if not accepts_type(after.takes, before.gives):
            takes = f"the next stage, {after.name!r}, takes {type_name(after.takes)}"
            raise TypeError(f"stage {before.name!r} returns {type_name(before.gives)}, but {takes}")


def check_first_stage(stages: Sequence[AnyStage], model: object, settings: CompilationSettings) -> None:
    """Raise `TypeError` unless the first stage accepts a `Program` and ``model`` is a model; then `check_ready`."""
    takes = type_name(stages[0].takes) if stages else "nothing"
    if stages and accepts_type(stages[0].takes, Program):
        if isinstance(model, torch.nn.Module | torch.export.ExportedProgram) or is_script(model) or is_onnx(model):
            return check_ready(stages, settings)
        raise TypeError(f"{describe_argument(model)} cannot be compiled: {_what_to_pass_instead(model, takes)}")
    first = f"with {stages[0].name!r}, which takes {takes}" if stages else "with nothing"
    why = f"call it with one {takes}, not with {type(model).__name__} or args"
    raise TypeError(f"the pipeline starts {first}: {why}; to compile a model, begin with the stage 'decompose'")


def check_ready(stages: Sequence[AnyStage], settings: CompilationSettings) -> None:
    """Call the method ``check_ready`` of each stage that has it: it checks what the stage needs on this machine."""
    for step in stages:
        if callable(check := getattr(innermost_function(step), "check_ready", None)):
            check(settings)


def refuse_unknown_arguments(unknown: Mapping[str, object]) -> None:
    """Raise a `TypeError` for unknown arguments of a pipeline's call; the message suggests what to write instead."""
    ours = dict.fromkeys(("inputs", "arg_inputs", "sample_inputs"), "args")
    ours |= {"kwarg_inputs": "kwargs", "dynamic": "dynamic_shapes"}
    for name in unknown:
        instead = f"use {ours[name]}=" if name in ours else "pass settings to pipeline.default(…)"
        raise TypeError(f"a pipeline is called with (model, args, kwargs, dynamic_shapes), not {name!r}: {instead}")


def check_settings(_instance: object, _field: object, value: CompilationSettings | None) -> None:
    if value is not None and not isinstance(value, CompilationSettings):
        raise TypeError(f"settings is {value!r}: expected CompilationSettings or None")


def apply_settings(settings: CompilationSettings | None, record: Argument, stages: Sequence[AnyStage]) -> Argument:
    """Return a program with a pipeline's settings: each of ``settings`` that differs from its default replaces the
    program's. Let the ``stages`` check that this machine has what they need. Return any other record unchanged.

    Raises:
        ValueError: the program was captured for another device.
    """
    if not isinstance(record, Program):
        return record
    own, given = record.settings, settings or CompilationSettings()
    changes = {name: getattr(given, name) for name in given.changed() if getattr(given, name) != getattr(own, name)}
    if "device" in changes:
        captured = "the device of its tensors" if own.device is None else own.device
        raise ValueError(f"the program was captured for {captured}, not for {given.device}: pass device= to capture")
    record = attrs.evolve(record, settings=own.evolve(**changes)) if changes else record
    check_ready(stages, record.settings)
    return record
