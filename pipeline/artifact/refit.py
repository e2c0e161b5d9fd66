"""New weights for a compiled program: a new ``Compiled``; the old one stays as it is."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from attrs import evolve
from torch.export import ExportedProgram

from pipeline.compiled import Compiled
from pipeline.errors import RefitError
from pipeline.frozen import FrozenDict
from pipeline.program import Engine, Partitioned, Program, version
from pipeline.trt import has_gpu

log = logging.getLogger(__name__)


def refit_module_weights(
    compiled: Compiled, new_weights: torch.nn.Module | ExportedProgram | Mapping[str, torch.Tensor]
) -> Compiled:
    """The same program with other weights.

    Engines that can be refitted (``immutable_weights=False``, built on a GPU) are refitted; others are built anew from
    their networks, which gives the same result and takes TensorRT's build time.

    Args:
        compiled: what to refit; it is not changed.
        new_weights: a module of the same architecture, an ExportedProgram of it, or tensors by parameter and buffer
            name; names that are absent keep their weights.

    Raises:
        RefitError: names every weight that does not fit (unknown, of another shape or dtype, or computed by a
            converter so that no recipe says how it follows from the parameters), with the reason.
    """
    if not isinstance(compiled, Compiled):
        raise TypeError(f"compiled is a {type(compiled).__name__}: pass what pipeline.default()(model, args) gave")
    program = compiled.program
    given = _tensors(new_weights)
    known = {n: t for n, t in given.items() if n in program.parameters}
    wrong = _unknown(given, program.aliases) if isinstance(new_weights, Mapping) else _missing(given, program)
    wrong |= {name: why for name, tensor in known.items() if (why := _mismatch(tensor, program.parameters[name]))}
    if wrong:
        raise RefitError(wrong, "names, shapes and dtypes are those of compiled.program.parameters")
    refits = has_gpu() and _refittable(compiled)
    if refits and compiled.refit_map.computed:
        raise RefitError(compiled.refit_map.computed)
    copies = {name: tensor.detach().clone() for name, tensor in known.items()}
    parameters = FrozenDict({**program.parameters, **copies})
    versions = FrozenDict({name: version(t) for name, t in parameters.items()})
    new = evolve(compiled.partitioned, program=evolve(program, parameters=parameters, versions=versions))
    return _refitted(compiled, new) if refits else _rebuilt(new)


def _refittable(compiled: Compiled) -> bool:
    """Whether every engine that has weights can be given others."""
    engines = zip(compiled.engines, compiled.networks, strict=True)
    have = [engine.refittable for engine, network in engines if network.weights]
    return bool(have) and all(have)


def _tensors(weights: torch.nn.Module | ExportedProgram | Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if isinstance(weights, torch.nn.Module):
        named = (weights.named_parameters(remove_duplicate=False), weights.named_buffers(remove_duplicate=False))
        return {name: tensor for tensors in named for name, tensor in tensors}
    if isinstance(weights, ExportedProgram):
        return {**weights.state_dict, **dict(weights.named_parameters()), **dict(weights.named_buffers())}
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise TypeError(f"new_weights is a {kind}: pass a module, an ExportedProgram or a state_dict")
    return dict(weights)


def _unknown(given: Mapping[str, torch.Tensor], known: frozenset[str]) -> dict[str, str]:
    return {n: "the compiled program has no parameter or buffer of this name" for n in given if n not in known}


def _missing(given: Mapping[str, torch.Tensor], program: Program) -> dict[str, str]:
    """What a module lacks: one that lacks anything is of another architecture."""
    due = [name for name in program.parameters if name in program.aliases]
    return {name: "new_weights has no parameter or buffer of this name" for name in due if name not in given}


def _mismatch(value: object, old: torch.Tensor) -> str:
    """Why a value cannot take the place of a weight; empty if it can."""
    if not isinstance(value, torch.Tensor):
        return f"it is a {type(value).__name__}, a torch.Tensor is due"
    if value.shape != old.shape or value.dtype != old.dtype:
        return f"it is {_kind(value)}, the engine's is {_kind(old)}"
    if value.is_meta:
        return "it is on the meta device: it has no value"
    return "" if value.layout == old.layout else f"it is {value.layout}, the engine's is {old.layout}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _rebuilt(partitioned: Partitioned) -> Compiled:
    from pipeline.stages import build, convert, refit_map

    log.info("the engines cannot be refitted (immutable_weights=True): building them anew")
    return refit_map(build(convert(partitioned)))


def _refitted(compiled: Compiled, partitioned: Partitioned) -> Compiled:
    """Every weight is supplied, the literal ones too: TensorRT combines weights, and wants all that it combined."""
    from pipeline.runtime.engine import refit

    parameters = partitioned.program.parameters
    moved = _moved(compiled.program, parameters)
    engines: list[Engine] = []
    for engine, network in zip(compiled.engines, compiled.networks, strict=True):
        recipes = {w.name: compiled.refit_map[w.name] for w in network.weights if w.name in compiled.refit_map}
        weights = {w.name: compiled.literals[w.name] for w in network.weights if w.name not in recipes}
        weights |= {name: recipe.evaluate(parameters) for name, recipe in recipes.items()}
        changed = {name for name, recipe in recipes.items() if moved.intersection(recipe.parameters)}
        engines.append(refit(engine, weights, changed) if engine.refittable else engine)
    return evolve(compiled, partitioned=partitioned, engines=tuple(engines))


def _moved(program: Program, new: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """The parameters that have another value than when the engines were made; NaN is never the same."""
    return frozenset(name for name, tensor in program.parameters.items() if not _same(program, name, tensor, new[name]))


def _same(program: Program, name: str, old: torch.Tensor, new: torch.Tensor) -> bool:
    # The program has the model's own tensors: they may have been trained since.
    trained = version(old) != program.versions.get(name, version(old))
    return not trained and (new is old or torch.equal(new.cpu(), old.cpu()))
