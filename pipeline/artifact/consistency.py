"""Check a saved program's manifest before use: its parts must be consistent, and its names printable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import sympy

from pipeline.artifact.json_data import MalformedError
from pipeline.artifact.manifest import Manifest
from pipeline.aten.tensor_type import TensorType
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError
from pipeline.network.description import Network
from pipeline.recipes import Recipe, ref_names
from pipeline.runtime.call_plan import NUMBERS
from pipeline.shapes.environment import Range


def check_names(manifest: Manifest) -> None:
    """Raise an error if a name is not printable on one line, as reports, web pages and configurations require."""
    parts: tuple[Any, ...] = (*manifest.inputs, *manifest.outputs, *manifest.segments, *manifest.engines)
    names = (*manifest.parameters, *manifest.shapes, *manifest.libraries, *manifest.modules)
    for name in (*(part.name for part in parts), *names, manifest.weights.file, manifest.kernels):
        if not name.isprintable():
            raise ArtifactError(f"the name {name[:80]!r} has a line break or another character that cannot be printed")


def check_manifest(manifest: Manifest) -> None:
    """Raise an error if the manifest has contents that `save` never writes."""
    check_names(manifest)
    if fault := next(_manifest_errors(manifest), ""):
        raise ArtifactError(fault)


def check_weights(networks: Iterable[Network], manifest: Manifest) -> None:
    """Raise an error if the manifest neither contains the value of a network's weight (a literal) nor tells how to
    compute it from parameters (a recipe)."""
    known = manifest.refit_map.keys() | manifest.literals.keys()
    for network in networks:
        if absent := [weight.name for weight in network.weights if weight.name not in known]:
            raise MalformedError(f"the file has no values of the weight {absent[0][:80]!r} of {network.name[:80]!r}")


def check_program(compiled: Compiled) -> None:
    """Raise an error if the segments of a loaded program contradict its graph (an unknown node, another tensor type) or
    their networks (another number of inputs or outputs), or if a tensor is read before it is computed."""
    values = {node.name: node.meta.get("val") for node in compiled.program.graph.nodes}
    checks = _segment_errors(compiled), _missing_value_errors(compiled, values), _type_mismatch_errors(compiled, values)
    if fault := next(chain(*checks), ""):
        raise MalformedError(fault)


def _segment_errors(compiled: Compiled) -> Iterator[str]:
    """Yield an error text for each segment that does not fit its network or the graph's nodes."""
    for segment, network in zip(compiled.partitioned.engine_segments, compiled.networks, strict=True):
        counts = len(segment.inputs), len(segment.outputs)
        if counts != (len(network.inputs), len(network.outputs)):
            yield f"segment {segment.name[:80]!r} and its network differ in inputs or outputs"
    calls = {node.name for node in compiled.program.graph.nodes if node.op in ("call_function", "get_attr")}
    for segment in compiled.partitioned.segments:
        if strange := [name for name in segment.nodes if name not in calls]:
            yield f"segment {segment.name[:80]!r} has {strange[0][:80]!r}, which is not a call of the graph"
        known = {*segment.nodes, *segment.constants, *(port.name for port in segment.inputs)}
        computed = {port.name for port in segment.outputs if port.kind == "tensor" or port.name not in calls}
        if segment.kind == "torch" and (absent := sorted(computed - known)):
            yield f"segment {segment.name[:80]!r} does not compute its output {absent[0][:80]!r}"


def _missing_value_errors(compiled: Compiled, node_values: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error text for each tensor that is read before it is computed. ``node_values``: fake values by node."""
    program = compiled.program
    known = {*program.constants, *program.buffers, *(port.name for port in program.inputs)}
    for segment in compiled.partitioned.segments:
        for port in segment.inputs:
            if port.kind == "tensor" and port.name not in known:
                yield f"segment {segment.name[:80]!r} reads {port.name[:80]!r}, which nothing computes before it"
        known |= {port.name for port in segment.outputs}
    known |= {name for name, value in node_values.items() if isinstance(value, NUMBERS)}
    if absent := sorted({output.value for output in program.outputs if not output.constant} - known):
        yield f"no node computes the program's output {absent[0][:80]!r}"


def _type_mismatch_errors(compiled: Compiled, node_values: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error text for each segment's tensor or buffer with another type than in ``node_values`` (by node)."""
    for segment in compiled.partitioned.segments:
        for port in (*segment.inputs, *segment.outputs):
            value = node_values.get(port.name)
            if isinstance(value, TensorType) and port.kind == "tensor" and not compiled.settings.truncate_double:
                own, theirs = (f"{t.dtype} of rank {len(t.shape)}" for t in (value, port))
                if own != theirs:
                    yield f"tensor {port.name[:80]!r} is {own} in the graph, but {theirs} between segments"
    program = compiled.program
    for name, buffer in program.buffers.items():
        value = node_values.get(name)
        sizes = [size for size in value.shape if isinstance(size, int)] if isinstance(value, TensorType) else [-1]
        if min(sizes, default=0) < 0 or math.prod(sizes) > program.parameters[buffer].numel():
            yield f"{name[:80]!r} is not a view of the buffer {buffer[:80]!r}"


def _manifest_errors(manifest: Manifest) -> Iterator[str]:
    """Yield an error text for each contradiction, such as a tensor without a dtype or an undeclared symbol."""
    ports = (*manifest.inputs, *(port for segment in manifest.segments for port in (*segment.inputs, *segment.outputs)))
    known = manifest.shapes.keys()
    for port in ports:
        if port.kind == "tensor" and (port.dtype is None or len(port.ranges) != len(port.shape)):
            yield f"input or output {port.name[:80]!r} has no dtype, or not one range for each dim"
        if not all(map(_is_ordered_range, port.ranges)):
            yield f"input or output {port.name[:80]!r} has an empty range"
        if any(symbol.name not in known for size in port.shape for symbol in sympy.S(size).free_symbols):
            yield f"a size of {port.name[:80]!r} has a symbol that the manifest does not declare"
    for output in manifest.outputs:
        if not output.constant and not isinstance(output.value, str):
            yield f"the value of output {output.name[:80]!r} is not the name of a node"
    for name, recipe in (*manifest.constants.items(), *manifest.refit_map.items()):
        if why := _recipe_error(recipe, manifest.parameters.keys()):
            yield f"the recipe of {name[:80]!r} {why}"
    for buffer in manifest.buffers.values():
        if buffer not in manifest.parameters:
            yield f"the program writes to {buffer[:80]!r}, which is not one of its parameters or buffers"
    narrowed = (found for profile in manifest.profiles for found in profile.values())
    if not all(map(_is_ordered_range, (*(symbol.range for symbol in manifest.shapes.symbols.values()), *narrowed))):
        yield "a dynamic size has an empty range"


def _is_ordered_range(size_range: Range) -> bool:
    return size_range.min <= size_range.opt <= size_range.max


def _recipe_error(recipe: Recipe, parameter_names: Iterable[str]) -> str:
    """Return what is wrong with a recipe (``reads 'x', which is not defined before it``); empty if it is valid."""
    known = {*parameter_names}
    for step in recipe.steps:
        if absent := [name for name in ref_names((step.args, tuple(v for _, v in step.kwargs))) if name not in known]:
            return f"reads {absent[0][:80]!r}, which is not defined before it"
        if step.name in known:
            return f"has two values called {step.name[:80]!r}"
        known.add(step.name)
    return "" if recipe.result.name in known else f"returns {recipe.result.name[:80]!r}, which it does not compute"
