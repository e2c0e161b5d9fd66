"""Run a program's matmuls by model weights, and some attention, in PyTorch, and everything between them in engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from pipeline.compiled import Compiled, RefitMap
from pipeline.compose.pipelines import FunctionStage, Named, as_stage
from pipeline.compose.stage_signature import AnyStage
from pipeline.converters.declare import Rejection
from pipeline.errors import Fallback
from pipeline.frozen import FrozenDict
from pipeline.partitioning.assemble import cuts
from pipeline.program import Segment, Validated
from pipeline.stages.partition import BehindUpdates, InPieces, Partition
from pipeline.verification.engines_in_torch import reject_nodes
from pipeline.verification.recompile import Recompiler

TRIAL: Final = Rejection("this trial measures its time in PyTorch")


def matmuls_in_torch(compiled: Compiled, stages: Sequence[AnyStage], node_names: Sequence[str]) -> Compiled:
    """Compile a program again by the pipeline's ``stages``, with the nodes ``node_names`` in PyTorch (see `choose`).

    Engines then end at each of these operators, several times in each layer, so that few other cuts are needed:
    `BehindUpdates`, which cuts only after cache updates, replaces the default partitioner, and one that cuts between
    submodules. Other partitioners stay.

    Raises:
        ValueError: ``node_names`` is empty, or an engine serves all profiles instead of one.
    """
    if not node_names:
        raise ValueError("the program has no half-precision matmuls by large weights, so no operator to run in PyTorch")
    _check_engine_per_profile(compiled)
    recompiler = Recompiler.from_stages(stages)
    cut: Any = recompiler.partition
    while isinstance(cut, Named | FunctionStage):
        cut = cut.stage if isinstance(cut, Named) else cut.function
    if isinstance(cut, Partition) or (isinstance(cut, InPieces) and cut.between):
        recompiler = evolve(recompiler, partition=as_stage(BehindUpdates()))
    validated = Validated(compiled.program, compiled.partitioned.verdicts)
    made = recompiler.compile_validated(reject_nodes(validated, dict.fromkeys(node_names, TRIAL)))
    _check_engine_per_profile(made)
    return made


def _check_engine_per_profile(compiled: Compiled) -> None:
    """Raise a `ValueError` if an engine serves all profiles instead of one."""
    if names := [segment.name for segment in compiled.partitioned.engine_segments if segment.profile is None]:
        how = "insert pipeline.engine_per_profile() to build one for each"
        raise ValueError(f"the engine {names[0]} serves all profiles; {how}")


def set_final_reason(compiled: Compiled, reason: Rejection) -> Compiled:
    """Return a result of `matmuls_in_torch` in which ``reason``, which states measured times, is the reason why the
    operators run in PyTorch, in place of `TRIAL`."""
    partitioned = compiled.partitioned
    fallbacks = (
        evolve(each, reason=reason.reason, hint=reason.hint) if each.reason == TRIAL.reason else each
        for each in partitioned.fallbacks
    )
    verdicts = {
        name: evolve(v, reasons=tuple(reason if each == TRIAL else each for each in v.reasons))
        for name, v in partitioned.verdicts.items()
    }
    return evolve(compiled, partitioned=evolve(partitioned, fallbacks=tuple(fallbacks), verdicts=FrozenDict(verdicts)))


def combine_profiles(variants: Mapping[int, Compiled]) -> Compiled:
    """Return one program that runs the calls of each profile as the profile's program in ``variants`` does. All
    variants must have the same graph, and each of their engines must be for one profile."""
    first = next(iter(variants.values()))
    segments = tuple(segment for profile, form in variants.items() for segment in _segments_in_profile(form, profile))
    inside = {name for segment in segments if segment.kind == "engine" for name in segment.nodes}
    programs = [form.partitioned for form in variants.values()]
    verdicts = dict(first.partitioned.verdicts)
    fallbacks = dict[str, Fallback]()
    for form in programs:
        verdicts |= {name: v for name, v in form.verdicts.items() if v.supported and name in inside}
        for each in form.fallbacks:
            known = fallbacks.setdefault(each.node, each)
            if each.reason not in known.reason:
                fallbacks[each.node] = evolve(known, reason=f"{known.reason}; {each.reason}")
    partitioned = evolve(
        first.partitioned,
        segments=segments,
        verdicts=FrozenDict(verdicts),
        fallbacks=tuple(fallbacks.values()),
        cuts=tuple(cuts(segments)),
    )
    names = {segment.name: segment.profile for segment in partitioned.engine_segments}
    networks = [n for profile, form in variants.items() for n in form.networks if names.get(n.name) == profile]
    engines = [e for profile, form in variants.items() for e in form.engines if names.get(e.name) == profile]
    maps = [form.refit_map for form in variants.values()]
    return evolve(
        first,
        partitioned=partitioned,
        networks=tuple(networks),
        engines=tuple(engines),
        refit_map=RefitMap(
            FrozenDict({name: recipe for each in maps for name, recipe in each.recipes.items()}),
            FrozenDict({name: reason for each in maps for name, reason in each.computed.items()}),
        ),
        literals=FrozenDict({name: value for form in variants.values() for name, value in form.literals.items()}),
        healed=tuple(dict.fromkeys(each for form in variants.values() for each in form.healed)),
    )


def _segments_in_profile(compiled: Compiled, profile: int) -> Iterator[Segment]:
    """Yield the segments that run in calls of a profile. A PyTorch segment for all profiles is copied for this one."""
    for segment in compiled.partitioned.segments:
        if segment.profile == profile:
            yield segment
        elif segment.profile is None:  # of PyTorch
            yield evolve(segment, name=f"{segment.name}_profile_{profile}", profile=profile)
