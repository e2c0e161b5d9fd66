"""Check that the parts of a manifest fit each other, and that its names are names, before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy
import torch

from pipeline.artifact.json_data import check_name
from pipeline.artifact.malformed import MalformedError
from pipeline.artifact.manifest import Manifest
from pipeline.aten.tensor_type import TensorType
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError
from pipeline.network.description import Network
from pipeline.program import Port
from pipeline.recipes import Recipe, refs
from pipeline.runtime.call_plan import NUMBERS
from pipeline.shapes.environment import Expr, Range


def check_names(kept: Manifest) -> None:
    """Raise an error if a name does not print on one line: names stand in reports, pages and configurations."""
    parts: tuple[Any, ...] = (*kept.inputs, *kept.outputs, *kept.segments, *kept.engines)
    for part in parts:
        check_name(part.name)
    for name in (*kept.parameters, *kept.shapes, *kept.libraries, *kept.modules, kept.weights.file):
        check_name(name)


def check_manifest(kept: Manifest) -> None:
    """Raise an error if the manifest is none that `save` writes."""
    check_names(kept)
    if fault := next(_faults(kept), ""):
        raise ArtifactError(fault)


def check_weights(networks: Iterable[Network], kept: Manifest) -> None:
    """Raise an error if a network has a weight of which the manifest does not say what it is."""
    known = kept.refit_map.keys() | kept.literals.keys()
    for network in networks:
        if absent := [weight.name for weight in network.weights if weight.name not in known]:
            raise MalformedError(f"nothing makes the weight {absent[0][:80]!r} of network {network.name[:80]!r}")


def check_program(compiled: Compiled) -> None:
    """Raise an error if networks do not fit their segments, or buffers their graph."""
    for segment, network in zip(compiled.partitioned.engine_segments, compiled.networks, strict=True):
        counts = (len(segment.inputs), len(segment.outputs)), (len(network.inputs), len(network.outputs))
        if counts[0] != counts[1]:
            raise MalformedError(f"segment {segment.name[:80]!r} has other inputs or outputs than its network")
    program = compiled.program
    calls = {node.name for node in program.graph.nodes if node.op in ("call_function", "get_attr")}
    for segment in compiled.partitioned.segments:
        if strange := [name for name in segment.nodes if name not in calls]:
            raise MalformedError(
                f"segment {segment.name[:80]!r} has {strange[0][:80]!r}, which is no call of the graph"
            )
        known = {*segment.nodes, *segment.constants, *(port.name for port in segment.inputs)}
        made = {port.name for port in segment.outputs if port.kind == "tensor" or port.name not in calls}
        if segment.kind == "torch" and (absent := sorted(made - known)):
            raise MalformedError(f"segment {segment.name[:80]!r} does not make its output {absent[0][:80]!r}")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    if why := _unmade(compiled) or _differing(compiled, values):
        raise MalformedError(why)
    for name, buffer in program.buffers.items():
        value = values.get(name)
        sizes = [size for size in value.shape if isinstance(size, int)] if isinstance(value, TensorType) else [-1]
        if min(sizes, default=0) < 0 or math.prod(sizes) > program.parameters[buffer].numel():
            raise MalformedError(f"{name[:80]!r} is no view of the buffer {buffer[:80]!r}")


def _unmade(compiled: Compiled) -> str:
    """Why a segment or the program reads a tensor that is not there by then; empty if none does."""
    program = compiled.program
    known = {*program.constants, *program.buffers, *(port.name for port in program.inputs)}
    for segment in compiled.partitioned.segments:
        for port in segment.inputs:
            if port.kind == "tensor" and port.name not in known:
                return f"segment {segment.name[:80]!r} reads {port.name[:80]!r}, which nothing makes before it"
        known |= {port.name for port in segment.outputs}
    numbers = {node.name for node in program.graph.nodes if isinstance(node.meta.get("val"), NUMBERS)}
    read = {output.value for output in program.outputs if not output.constant}
    absent = sorted(read - known - numbers)
    return f"nothing makes its output {absent[0][:80]!r}" if absent else ""


def _differing(compiled: Compiled, values: Mapping[str, Any]) -> str:
    """What the graph says of a tensor that crosses between segments, if segments say something else; else nothing."""
    for segment in compiled.partitioned.segments:
        for port in (*segment.inputs, *segment.outputs):
            value = values.get(port.name)
            if isinstance(value, TensorType) and port.kind == "tensor":
                said, found = (value.dtype, len(value.shape)), (port.dtype, len(port.shape))
                if said != found and not compiled.settings.truncate_double:
                    return f"{port.name[:80]!r} is {_shown(*said)} in the graph, {_shown(*found)} between segments"
    return ""


def _shown(dtype: torch.dtype | None, rank: int) -> str:
    return f"{dtype} of rank {rank}"


def _faults(kept: Manifest) -> Iterator[str]:
    ports = (*kept.inputs, *(port for segment in kept.segments for port in (*segment.inputs, *segment.outputs)))
    yield from (f"input or output {port.name[:80]!r} {why}" for port in ports if (why := _of_port(port)))
    known = kept.shapes.keys()
    if strange := [p for p in ports if any(s.name not in known for size in p.shape for s in _symbols(size))]:
        yield f"a size of {strange[0].name[:80]!r} is of a symbol that the manifest has not"
    if unnamed := [each for each in kept.outputs if not each.constant and not isinstance(each.value, str)]:
        yield f"the value of output {unnamed[0].name[:80]!r} is no name"
    for row in (*kept.constants.items(), *kept.refit_map.items()):
        if why := _of_recipe(row[1], kept.parameters.keys()):
            yield f"the recipe of {row[0][:80]!r} {why}"
    for buffer in kept.buffers.values():
        if buffer not in kept.parameters:
            yield f"it writes to {buffer[:80]!r}, which it has not"
    sizes = (
        *(symbol.range for symbol in kept.shapes.symbols.values()),
        *(r for p in kept.profiles for r in p.values()),
    )
    if any(not _is_range(each) for each in sizes):
        yield "a range of a size is empty"


def _of_port(port: Port) -> str:
    """What is wrong with a port; empty if nothing is."""
    if port.kind == "tensor" and (port.dtype is None or len(port.ranges) != len(port.shape)):
        return "has no dtype, or not one range for each dim"
    return "" if all(map(_is_range, port.ranges)) else "has an empty range"


def _symbols(size: Expr) -> Iterable[sympy.Symbol]:
    return () if isinstance(size, int) else size.free_symbols


def _is_range(each: Range) -> bool:
    return each.min <= each.opt <= each.max


def _of_recipe(recipe: Recipe, parameters: Iterable[str]) -> str:
    """What is wrong with a recipe: it reads what is not there before it."""
    known = {*parameters}
    for step in recipe.steps:
        if absent := [name for name in refs((step.args, tuple(v for _, v in step.kwargs))) if name not in known]:
            return f"reads {absent[0][:80]!r}, which is not there before it"
        if step.name in known:
            return f"has two values called {step.name[:80]!r}"
        known.add(step.name)
    return "" if recipe.result.name in known else f"gives {recipe.result.name[:80]!r}, which it does not make"
