"""Replace the weights of a compiled program, or add low-rank adapters (LoRA): both return a new ``Compiled``."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Mapping, Set
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

import torch
from attrs import evolve
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.parameter import is_lazy

from pipeline.artifact.adapters import Adapter, adapt, is_adapter_factor, named_factors, read_adapters, remove_adapters
from pipeline.artifact.rebuild import rebuild_engines
from pipeline.artifact.tensors import read_tensor_file
from pipeline.artifact.unsaved_converter import was_loaded_from_file
from pipeline.aten.dtypes import short_name
from pipeline.capture.shared_tensors import unwrap_subclasses
from pipeline.compiled import Compiled, RefitMap, StrPath
from pipeline.errors import RefitError
from pipeline.frozen import FrozenDict
from pipeline.network.engine import Engine
from pipeline.program import Partitioned, Program, tensor_version
from pipeline.recipes import Recipe, named_buffer_numbers
from pipeline.records.wording import kind_of
from pipeline.runtime.engine_refit import refit
from pipeline.runtime.snapshot import stored_value
from pipeline.stages.build import build
from pipeline.stages.convert import convert
from pipeline.stages.refit_map import refit_map
from pipeline.trt import has_gpu

log = logging.getLogger(__name__)
Weights: TypeAlias = torch.nn.Module | ExportedProgram | Mapping[str, torch.Tensor]


def refit_module_weights(compiled: Compiled, new_weights: Weights) -> Compiled:
    """Return the same program with other weights.

    Refittable engines (``immutable_weights=False``, built on a GPU) are refitted. Other engines are rebuilt from their
    networks; the result is the same but takes TensorRT's build time. The new program has no ``agreement``, since it was
    not verified with these weights.

    Args:
        compiled: the program; it is not changed.
        new_weights: a module of the same architecture, an ExportedProgram of such a module, or tensors by parameter and
            buffer name. A module or export must have exactly the compiled parameters and buffers. Weights that a
            mapping omits stay unchanged. Tied weights may be passed under either name.

    Raises:
        RefitError: weights are missing, unknown, of another shape or dtype, tied but of different values, or computed
            by a converter without a recipe; the message names each weight, with the reason.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"compiled is {kind_of(compiled)}: expected the result of pipeline.default()(model, args)")
    program = compiled.program
    given = unwrap_subclasses(_tensors_by_name(new_weights, program))
    wrong = missing_weight_reasons(given, new_weights, program) | _mismatched_weight_reasons(given, program)
    if wrong := wrong or _tied_weight_conflicts(given, program):
        raise RefitError(wrong, "pass weights with the names, shapes and dtypes of compiled.program.parameters")
    known = program.parameters
    copies = {id(known[name]): tensor.detach().clone() for name, tensor in given.items() if name in known}
    parameters = FrozenDict({name: copies.get(id(old), old) for name, old in known.items()})  # tied names share a copy
    changed = _weights_computed_from(_changed_parameters(program, parameters), compiled)
    unknown = _weights_computed_from(_aliased_parameters(given, known), compiled)
    return replace_weights(compiled, evolve(program, parameters=parameters), compiled.refit_map, changed, unknown)


def _weights_computed_from(parameter_names: Set[str], compiled: Compiled) -> set[str]:
    """Return the names of the engine weights that are computed from these parameters."""
    return {name for name, recipe in compiled.refit_map.items() if not parameter_names.isdisjoint(recipe.parameters)}


def replace_weights(
    compiled: Compiled, program: Program, recipes: RefitMap, changed: Collection[str], unknown: Collection[str] = ()
) -> Compiled:
    """Return ``compiled`` with the parameters and constants of ``program``, and the ``recipes`` that compute engine
    weights from them. Engines are refitted if possible, else rebuilt.

    changed: the engine weights whose values differ. unknown: the engine weights whose values may differ: they are the
    model's own tensors, and torch does not count all writes to these (``weight.data.add_(…)``). Unlike a changed
    weight, an unknown weight may be one that TensorRT has folded away.
    """
    engines = zip(compiled.engines, compiled.networks, strict=bool(compiled.engines))  # none if it is unbuilt
    can_be_refitted = [engine.refittable for engine, network in engines if network.weights]
    refits, loaded = has_gpu() and any(can_be_refitted) and all(can_be_refitted), was_loaded_from_file(compiled)
    if (refits or loaded) and compiled.refit_map.computed:
        raise RefitError(compiled.refit_map.computed)
    compiled = evolve(compiled, refit_map=recipes)
    versions = FrozenDict({name: tensor_version(tensor) for name, tensor in program.parameters.items()})
    new = evolve(compiled.partitioned, program=evolve(program, versions=versions))
    if not changed and not unknown and not any(engine.stripped for engine in compiled.engines):
        return evolve(compiled, partitioned=new, agreement=None)  # engines read the others in place
    if refits:
        return _refit_engines(compiled, new, changed)
    log.info("the engines were built with immutable_weights=True, so they are rebuilt with the new weights")
    if loaded:
        return rebuild_engines(compiled, new)
    return evolve(refit_map(build(convert(new))), healed=compiled.healed)


def with_lora(
    compiled: Compiled, adapters: Mapping[str, object] | StrPath, scale: float = 1.0, fan_in_fan_out: bool | None = None
) -> Compiled:
    """Return a compiled program with these adapters in place of its current adapters: see `Compiled.with_lora`."""
    if isinstance(adapters, str | os.PathLike):
        adapters = read_tensor_file(Path(adapters))
    if not isinstance(adapters, Mapping):
        due = "PEFT's state dict, its file, or a mapping from parameter name to (A, B)"
        raise TypeError(f"adapters is {kind_of(adapters)}: expected {due}")
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}: expected a finite number, such as lora_alpha / r")
    program = compiled.program
    base = {name: tensor for name, tensor in program.parameters.items() if not is_adapter_factor(name)}
    found = read_adapters(adapters, base, fan_in_fan_out)
    if wrong := missing_weight_reasons({}, {}, program) | _tied_adapter_conflicts(found, program):
        raise RefitError(wrong, "adapt a program whose weights have values; do not adapt tied weights")
    known, dtypes = {each.parameter: each for each in found}, {name: tensor.dtype for name, tensor in base.items()}

    def changed(recipes: Mapping[str, Recipe]) -> FrozenDict[str, Recipe]:
        return FrozenDict({name: adapt(remove_adapters(r), known, scale, dtypes) for name, r in recipes.items()})

    recipes = RefitMap(changed(compiled.refit_map), compiled.refit_map.computed)
    both = (*compiled.refit_map.items(), *recipes.items())
    affected = {name for name, recipe in both if any(map(is_adapter_factor, recipe.parameters))}
    parameters = FrozenDict({**base, **named_factors(found)})
    new = evolve(program, parameters=parameters, constants=changed(program.constants))
    return replace_weights(compiled, new, recipes, affected)


def _tied_adapter_conflicts(adapters: list[Adapter], program: Program) -> dict[str, str]:
    """Return, by parameter, why its adapter is ambiguous: the tensor has several names (tied weights)."""
    adapted = {adapter.parameter for adapter in adapters}
    return {
        name: f"it is one tensor with {', '.join(other for other in names if other != name)}"
        for names in tied_names(program.parameters)
        for name in names
        if name in adapted
    }


def _tensors_by_name(weights: Weights, program: Program) -> dict[str, torch.Tensor]:
    """Return new weights by name, including a module's plain tensor attributes and an export's constants."""
    if isinstance(weights, torch.nn.Module):
        named = (weights.named_parameters(remove_duplicate=False), weights.named_buffers(remove_duplicate=False))
        plain = {name: value for name in program.written if (value := _tensor_attribute(weights, name)) is not None}
        return {**plain, **{name: tensor for tensors in named for name, tensor in tensors}}
    if isinstance(weights, ExportedProgram):
        specs = weights.graph_signature.input_specs
        literals = [str(spec.target) for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR]
        known = {**weights.state_dict, **dict(weights.named_parameters()), **dict(weights.named_buffers())}
        return {**{name: weights.constants[name] for name in literals}, **known}
    if not isinstance(weights, Mapping):
        raise TypeError(f"new_weights is {kind_of(weights)}: expected a module, an ExportedProgram or a state_dict")
    return dict(weights)


def _tensor_attribute(module: torch.nn.Module, path: str) -> torch.Tensor | None:
    try:
        value = attrgetter(path)(module)
    except AttributeError:
        return None
    return value if isinstance(value, torch.Tensor) else None


def missing_weight_reasons(new: Mapping[str, torch.Tensor], weights: Weights, program: Program) -> dict[str, str]:
    """Return the weights that ``new`` lacks, with the reason. A mapping may omit weights, except those that the program
    was loaded without, or that were changed in place after compiling."""
    absent = [name for name in program.parameters if name not in new]
    if isinstance(weights, Mapping):
        tied = {other for names in tied_names(program.parameters) if new.keys() & names for other in names}
        if empty := [name for name in absent if name not in tied and program.parameters[name].is_meta]:
            return dict.fromkeys(empty, "it was loaded without its value, and new_weights does not have it")
        changed = [name for name in absent if name not in tied and _was_mutated(program, name)]
        return dict.fromkeys(changed, "it changed in place after compiling, and new_weights does not have it")
    literal = program.written if isinstance(weights, torch.nn.Module) else ()
    fixed = {name for name in absent if name in literal or is_adapter_factor(name)}
    due = [name for name in absent if name not in fixed or program.parameters[name].is_meta]
    return dict.fromkeys(due, "new_weights has no parameter or buffer of this name")


def _mismatched_weight_reasons(new_weights: Mapping[str, torch.Tensor], program: Program) -> dict[str, str]:
    """Return the new weights that the program does not have, or that do not fit the compiled ones, with the reason."""
    known = program.parameters.keys() | program.aliases
    unknown = [name for name in new_weights if name not in known]
    found = dict.fromkeys(unknown, "the compiled program has no parameter or buffer of this name")
    pairs = ((name, tensor, program.parameters.get(name)) for name, tensor in new_weights.items())
    found |= {name: why for name, new, old in pairs if old is not None and (why := _replacement_obstacle(new, old))}
    read = {place.partition("[")[0] for place in program.numbers} & (new_weights.keys() - found.keys())
    new = {place: number for name in read for place, number in named_buffer_numbers(name, new_weights[name])}
    return found | {
        place: f"it is {new[place]}, and the model's code read {number} during capture: compile again"
        for place, number in program.numbers.items()
        if new.get(place, number) != number
    }


def tied_names(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Return, for each tensor that has several names (tied weights), the list of its names."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _tied_weight_conflicts(new_weights: Mapping[str, torch.Tensor], program: Program) -> dict[str, str]:
    """Return the names of tied weights that were passed with different values, each with the reason."""
    groups = ([name for name in names if name in new_weights] for names in tied_names(program.parameters))
    return {
        name: f"it differs from {first}, and the two are one tensor in the compiled program"
        for first, *others in filter(None, groups)
        for name in others
        if not _shares_memory(new_weights[first], new_weights[name])
        and not torch.equal(new_weights[first].detach().cpu(), new_weights[name].detach().cpu())
    }


def _shares_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of equal shape and dtype are the same tensor or the same memory."""
    return a is b or (a.layout == torch.strided and a.data_ptr() == b.data_ptr() and a.stride() == b.stride())


def _aliased_parameters(new_weights: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the parameters that share memory with new weights, including all names of tied parameters."""
    pairs = ((parameters[name], tensor) for name, tensor in new_weights.items() if name in parameters)
    same = {id(old) for old, new in pairs if _shares_memory(old, new)}
    return {name for name, tensor in parameters.items() if id(tensor) in same}


def _replacement_obstacle(new: object, old: torch.Tensor) -> str:
    """Return the reason why a value cannot replace the weight ``old``; empty if it can."""
    if not isinstance(new, torch.Tensor):
        return f"its value is {kind_of(new)}: expected a torch.Tensor"
    if is_lazy(new):
        return "its value is an uninitialized parameter without a shape: call the new module once"
    if new.shape != old.shape or new.dtype != old.dtype:
        found, due = (f"{short_name(tensor.dtype)}{list(tensor.shape)}" for tensor in (new, old))
        return f"its new value is {found}, and the engine needs {due}"
    if new.is_meta:
        return "its new value is on the meta device, without data"
    return "" if new.layout == old.layout else f"its layout is {new.layout}, and the engine needs {old.layout}"


def _refit_engines(compiled: Compiled, partitioned: Partitioned, changed: Collection[str]) -> Compiled:
    """Refit all engines. Each gets all of its weights, including unchanged ones and constants, since TensorRT combines
    weights. ``changed``: the names of weights with new values; it is an error if TensorRT cannot set one of these."""
    parameters = partitioned.program.parameters
    engines: list[Engine] = []
    for engine, network in zip(compiled.engines, compiled.networks, strict=True):
        recipes = {w.name: compiled.refit_map[w.name] for w in network.weights if w.name in compiled.refit_map}
        weights = {w.name: stored_value(compiled.literals, w.name) for w in network.weights if w.name not in recipes}
        weights |= {name: recipe.evaluate(parameters) for name, recipe in recipes.items()}
        given = engine.stripped and not compiled.settings.immutable_weights
        engines.append(refit(engine, weights, recipes.keys() & changed) if engine.refittable and not given else engine)
    return evolve(compiled, partitioned=partitioned, engines=tuple(engines), agreement=None)


def _changed_parameters(program: Program, new_parameters: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the parameters whose values differ from those in the engines; NaN always differs."""
    changed = {name for name, old in program.parameters.items() if old.is_meta or _was_mutated(program, name)}
    for name in program.parameters.keys() - changed:
        old, own = program.parameters[name], new_parameters[name]
        if own is not old and not torch.equal(own.cpu(), old.cpu()):
            changed.add(name)
    return changed


def _was_mutated(program: Program, weight_name: str) -> bool:
    """Return whether a weight, which is the model's own tensor, was changed in place after compilation."""
    tensor = program.parameters[weight_name]
    return tensor_version(tensor) != program.versions.get(weight_name, tensor_version(tensor))
