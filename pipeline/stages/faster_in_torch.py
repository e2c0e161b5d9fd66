"""Find the operators of a program that may be faster in PyTorch, for `choose` to measure: matmuls and attention; and
compile the program with them in PyTorch, and everything between them in engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from attrs import evolve
from toolz import merge

from pipeline.aten.arguments import argument
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Node, aten
from pipeline.compiled import Compiled, RefitMap
from pipeline.compose.pipelines import as_stage
from pipeline.compose.stage_signature import AnyStage, innermost_function
from pipeline.converters.declare import Rejection
from pipeline.errors import Fallback
from pipeline.frozen import FrozenDict
from pipeline.partitioning.assemble import cuts
from pipeline.program import Program, Segment, Validated
from pipeline.runtime.few_rows import is_triton_installed, supports_attention
from pipeline.runtime.torch_segment import where_of_open_mask
from pipeline.shapes.environment import evaluate_size, expression
from pipeline.stages.partition import BehindUpdates, InPieces, Partition
from pipeline.trt import has_gpu
from pipeline.verification.engines_in_torch import reject_nodes
from pipeline.verification.recompile import Recompiler
from pipeline.verification.samples import source_before_moves, tuned_sizes

LEAST: Final = 1 << 20
"""The minimum bytes of a weight whose matmul may run in PyTorch: a GPU reads 1 MiB in the time of a kernel launch."""
SDPA: Final = aten.scaled_dot_product_attention.default
HALVES: Final = (torch.float16, torch.bfloat16)
QUERIES: Final = 64
"""The minimum number of queries for which attention is tried in PyTorch, whose kernels write no scores to memory."""
TRIAL: Final = Rejection("this trial measures its time in PyTorch")


def to_try_in_torch(program: Program, profile: int | None) -> tuple[str, ...]:
    """Return the operators that may be faster in PyTorch in calls of a profile: half-precision matmuls by large
    weights, and attention of many queries, or of a single query in a CUDA graph."""
    matmuls = tuple(_matmul_names(program))
    return (*matmuls, *_attention_names(program, profile)) if matmuls else ()


def kinds_in_words(program: Program, names: Sequence[str]) -> str:
    """Return words for the operators ``names``: ``matmuls by weights``, or ``matmuls by weights and attention``."""
    inside = {*names}
    attends = any(node.name in inside and node.target is SDPA for node in program.graph.nodes)
    return "matmuls by weights and attention" if attends else "matmuls by weights"


def _matmul_names(program: Program) -> Iterator[str]:
    """Yield the names of half-precision matmuls by large weights, or by views of large weights."""
    for node in program.graph.nodes:
        if node.op == "call_function" and op_kind(node.target) in (Kind.MULTIPLIES, Kind.PROJECTS):
            sources = (source_before_moves(operand) for operand in node.all_input_nodes)
            weights = (source.meta["val"] for source in sources if source.name in program.constants)
            if any(weight.dtype in HALVES and weight.nbytes >= LEAST for weight in weights):
                yield node.name


def _attention_names(program: Program, profile: int | None) -> Iterator[str]:
    """Yield the names of attention operators that may be faster in PyTorch, and of their masks.

    Attention may be faster with 64 queries or more at the optimal sizes of a profile, or with one in a CUDA graph. For
    one query, Triton must be installed, or this machine have no GPU: then stored times of another machine decide.
    """
    nodes = [node for node in program.graph.nodes if node.target is SDPA]
    sizes = tuned_sizes(program, profile)[0] if nodes else {}
    settings = program.settings
    in_graph = settings.cuda_graphs and settings.torch_compile is None and (is_triton_installed() or not has_gpu())
    for node in nodes:
        query, key, value = (argument(node, name).meta["val"] for name in ("query", "key", "value"))
        queries = evaluate_size(expression(query.shape[-2]), sizes)
        one = in_graph and queries == 1 and supports_attention(query[..., :1, :], key, value)
        if query.dtype in HALVES and (one or queries >= QUERIES):
            yield node.name
            mask = argument(node, "attn_mask")
            if isinstance(mask, Node) and (choice := where_of_open_mask(mask)) is not None:
                yield from (choice.name, mask.name)


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
    cut = innermost_function(recompiler.partition)
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
    forms = tuple(variants.values())
    first = forms[0]
    segments = tuple(segment for profile, form in variants.items() for segment in _segments_in_profile(form, profile))
    inside = {name for segment in segments if segment.kind == "engine" for name in segment.nodes}
    verdicts = dict(first.partitioned.verdicts)
    fallbacks = dict[str, Fallback]()
    for form in forms:
        verdicts |= {name: v for name, v in form.partitioned.verdicts.items() if v.supported and name in inside}
        for each in form.partitioned.fallbacks:
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
    return evolve(
        first,
        partitioned=partitioned,
        networks=tuple(networks),
        engines=tuple(engines),
        refit_map=RefitMap(
            FrozenDict(merge(form.refit_map.recipes for form in forms)),
            FrozenDict(merge(form.refit_map.computed for form in forms)),
        ),
        literals=FrozenDict(merge(form.literals for form in forms)),
        healed=tuple(dict.fromkeys(each for form in forms for each in form.healed)),
    )


def _segments_in_profile(compiled: Compiled, profile: int) -> Iterator[Segment]:
    """Yield the segments that run in calls of a profile. A PyTorch segment for all profiles is copied for this one."""
    for segment in compiled.partitioned.segments:
        if segment.profile == profile:
            yield segment
        elif segment.profile is None:  # of PyTorch
            yield evolve(segment, name=f"{segment.name}_profile_{profile}", profile=profile)
