"""Save a compiled program to a file, atomically."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import torch
from attrs import evolve

from pipeline.artifact import allocations, codec, pytrees, settings_json
from pipeline.artifact.adapters import is_adapter_factor
from pipeline.artifact.consistency import check_names
from pipeline.artifact.container import Writer
from pipeline.artifact.graphs import SavedGraph, save_graph
from pipeline.artifact.hashing import ChecksumWriter
from pipeline.artifact.json_data import encode_json
from pipeline.artifact.manifest import (
    FORMAT,
    KERNELS,
    SCHEMA,
    Manifest,
    SavedEngine,
    SavedSource,
    SavedVerdict,
    SavedWeights,
    Versions,
    saved_fields,
)
from pipeline.artifact.tensors import TensorsToSave, safetensors_parts_and_size
from pipeline.aten.collectives import is_collective
from pipeline.aten.naming import module_stack
from pipeline.compiled import Compiled, StrPath
from pipeline.errors import ArtifactError
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network
from pipeline.program import Program, tensor_version
from pipeline.records.wording import kind_of, to_path
from pipeline.runtime.atomic import replace_file
from pipeline.runtime.call_memory import max_call_bytes
from pipeline.runtime.opened_file import check_files, stated_call_bytes
from pipeline.runtime.program_engines import compiled_kernels
from pipeline.trt import LIBRARY, has_gpu
from pipeline.version import __version__

INSIDE, NONE = "inside", "none"
WEIGHTS = "weights.safetensors"
SOURCE = "source.json"
Entries: TypeAlias = dict[str, tuple[Iterable[Any], int, str]]
"""The entries of a file by name: their content in parts, its size in bytes, and its SHA-256 if it is known."""
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def save(compiled: Compiled, path: StrPath, weights: StrPath = INSIDE, generation: str = "") -> None:
    """Write a compiled program to a file, as `Compiled.save` documents. Constants of the model's code and adapters are
    always in this file. ``generation``: the JSON from which `load` creates a language model."""
    check_files(compiled.program.parameters)
    file_path, tensors, plans, others = to_path(path, "save"), TensorsToSave(), dict[str, Any](), dict[str, Any]()
    size = lambda: sum(size for _, size, _ in (plans | others).values())  # noqa: E731 - both are filled below
    with replace_file(file_path, nbytes=size) as file, Writer(file) as writer, ThreadPoolExecutor(1) as thread:
        engines = _save_engines(compiled, plans)
        first = thread.submit(_write_entries, writer, plans)
        manifest = build_manifest(compiled, engines, tensors, others)
        stored = _save_weights(_check_weights_location(weights), file_path, compiled.program, tensors, others)
        rest = thread.submit(_write_entries, writer, others)
        first.result()
        record = evolve(manifest, weights=stored, generation=generation)
        check_names(record)
        data = codec.to_json(record, Manifest)
        rest.result()
        data["entries"] = codec.to_json(FrozenDict(writer.digests), FrozenDict[str, str])
        writer.finish(encode_json(data))


def _write_entries(writer: Writer, entries: Entries) -> None:
    for name, (parts, size, digest) in entries.items():
        writer.add(name, parts, size, digest)


def _check_weights_location(weights: StrPath) -> str:
    """Return ``weights`` as a str: "inside", "none" or a path; raise an error for another type or spelling."""
    if not isinstance(weights, str | os.PathLike):
        raise TypeError(f'weights is {kind_of(weights)}: expected "inside", "none", or the path of a file')
    given = os.fspath(weights)
    if given not in (INSIDE, NONE) and given.lower() in (INSIDE, NONE, ""):
        raise ArtifactError(
            f"weights={given!r} is neither a path nor the word 'inside' or 'none'",
            'pass "inside" or "none" in lower case, or a path',
        )
    return given


def _save_weights(weights: str, path: Path, program: Program, tensors: TensorsToSave, entries: Entries) -> SavedWeights:
    """Save tensors as ``weights`` says (``"inside"``, ``"none"`` or another file's path) and return where they are.
    Tensors in this file become the last of ``entries`` (the manifest follows)."""
    names = {name for name in program.parameters.keys() - program.written if not is_adapter_factor(name)}
    model = {key: tensor for key, tensor in tensors.by_key.items() if key in names}
    constants = {key: tensor for key, tensor in tensors.by_key.items() if key not in names}
    if weights == NONE:  # a program loaded from an old file without weights also lacks constants
        kept, inside = SavedWeights(), {key: tensor for key, tensor in constants.items() if not tensor.is_meta}
    elif weights == INSIDE:
        kept, inside = SavedWeights(), {**model, **constants}
    else:
        kept, inside = _save_separate_weights(Path(weights), path, model), constants
    if not inside:
        return kept
    entries[WEIGHTS] = (*safetensors_parts_and_size(_check_weights_have_values(inside)), "")
    return evolve(kept, entry=WEIGHTS, others=weights != INSIDE)


def _check_weights_have_values(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors; raise an error if one of them was loaded without its values."""
    if empty := [key for key, tensor in tensors.items() if tensor.is_meta]:
        raise ArtifactError(
            f"the weight {empty[0]} has no value, because the program was loaded without weights",
            'save with weights="none", or pass all weights to pipeline.refit_module_weights and save its result',
        )
    return tensors


def _save_separate_weights(path: Path, program: Path, tensors: dict[str, torch.Tensor]) -> SavedWeights:
    parts, size = safetensors_parts_and_size(_check_weights_have_values(tensors))
    if path.resolve() == program.resolve():
        raise ArtifactError(f"weights={str(path)!r} is the program's own file", 'pass another file, or "inside"')
    with replace_file(path, nbytes=lambda: size) as file, ChecksumWriter(file) as summed:
        sha256, _ = summed.write(parts, size)
    relative = os.path.relpath(path.absolute(), program.absolute().parent)
    return SavedWeights(file=Path(relative).as_posix(), size=size, sha256=sha256)


def build_manifest(
    compiled: Compiled, engines: tuple[SavedEngine, ...], tensors: TensorsToSave, entries: Entries
) -> Manifest:
    """Return the manifest, without the digests of entries and the location of weights. Add the entries that it names to
    ``entries``, and the tensors to save to ``tensors``."""
    program, partitioned = compiled.program, compiled.partitioned
    networks = {f"networks/{i}.json": network for i, network in enumerate(compiled.networks)}
    for name, network in networks.items():
        _add_json_entry(entries, name, network, Network)
    segments = _save_graphs(compiled, tensors)
    for name, segment in segments.items():
        _add_json_entry(entries, name, segment, SavedGraph)
    if kernels := compiled_kernels(compiled):
        entries[KERNELS] = ([kernels.data], len(kernels.data), "")
    if (source := _save_source(program, tensors)) is not None:
        _add_json_entry(entries, SOURCE, source, SavedSource)
    programs = filter(None, (program, program.source))
    return Manifest(
        format=FORMAT,
        schema=SCHEMA,
        versions=_current_versions(program),
        entries=FrozenDict(),
        weights=SavedWeights(),
        **saved_fields(program),
        in_spec=pytrees.to_json(program.in_spec),
        out_spec=pytrees.to_json(program.out_spec),
        settings=settings_json.to_json(program.settings),
        segments=partitioned.segments,
        engines=engines,
        networks=tuple(networks),
        refit_map=compiled.refit_map,
        parameters=FrozenDict({name: tensors.add(name, _weight_to_save(program, name)) for name in program.parameters}),
        literals=FrozenDict({n: tensors.add(f"literal:{n}", tensor) for n, tensor in compiled.literals.items()}),
        verdicts=tuple(
            SavedVerdict(v.node, v.target, v.supported, v.reasons, v.where, v.choice.support.name if v.choice else "")
            for v in partitioned.verdicts.values()
        ),
        graphs=tuple(segments),
        nodes=tuple(node.name for node in program.graph.nodes),
        fallbacks=partitioned.fallbacks,
        cuts=partitioned.cuts,
        healed=compiled.healed,
        agreement=compiled.agreement,
        modules=FrozenDict(row for each in programs for node in each.graph.nodes for row in module_stack(node.meta)),
        source=SOURCE if source is not None else "",
        computed=_largest_computed_bytes(compiled),
        kernels=kernels.machine,
        call=stated_call_bytes(compiled.program.parameters) or max_call_bytes(compiled),
        libraries=tuple(sorted({node.library for segment in segments.values() for node in segment.nodes} - {""})),
    )


def _save_engines(compiled: Compiled, entries: Entries) -> tuple[SavedEngine, ...]:
    """Return the manifest's records of the engines, and add the engines' plans to ``entries``; equal plans once."""
    plans = [engine.digest or str(id(engine.plan)) for engine in compiled.engines]
    found = []
    for plan, engine in zip(plans, compiled.engines, strict=True):
        name, known = f"engines/{plans.index(plan)}.plan", engine.digest if _SHA256.fullmatch(engine.digest) else ""
        entries.setdefault(name, ([memoryview(engine.checked_plan())], engine.nbytes, known))
        names = engine.bindings, engine.weights, engine.stripped
        found.append(SavedEngine(engine.name, name, engine.library, engine.refittable, engine.digest, *names))
    return tuple(found)


def _save_source(program: Program, tensors: TensorsToSave) -> SavedSource | None:
    """Return the program before `decompose` as saved in the file; None if a part of it cannot be saved."""
    source = program.source
    if source is None:
        return None
    try:
        graph = save_graph(source.graph_module, list(source.graph.nodes), "source", tensors)
    except ArtifactError:
        return None
    return SavedSource(graph, source.inputs, source.outputs, source.constants, source.buffers)


def _largest_computed_bytes(compiled: Compiled) -> int:
    """Return the bytes of the largest constant that the program computes; 0 if `load` allows it in any case."""
    program = compiled.program
    engines = {name for segment in compiled.partitioned.engine_segments for name in segment.nodes}
    parameters = {name: (t.dtype, tuple(t.shape)) for name, t in program.parameters.items()}
    found = allocations.largest_nbytes([*program.constants.values(), *compiled.refit_map.values()], parameters)
    for each in filter(None, (program, program.source)):
        graphs = (m.graph for m in each.graph_module.modules() if isinstance(m, torch.fx.GraphModule))
        nodes = (node for graph in graphs for node in graph.nodes if node.name not in engines or each is not program)
        found = max([found, *(allocations.min_bytes_to_fill(n.target, n.args, n.kwargs) for n in nodes)])
    allowed = allocations.allowed_constant_bytes((tensor.nbytes for tensor in program.parameters.values()), 0)
    return found if found > allowed else 0


def _add_json_entry(entries: Entries, name: str, record: object, record_type: type) -> None:
    data = encode_json(codec.to_json(record, record_type))
    entries[name] = ([data], len(data), "")


def _current_versions(program: Program) -> Versions:
    gpu = ""
    if has_gpu():
        major, minor = torch.cuda.get_device_capability()
        gpu = f"{torch.cuda.get_device_name()} ({major}.{minor})"
    return Versions(__version__, str(torch.__version__), LIBRARY, program.settings.compute_capabilities, gpu)


def _weight_to_save(program: Program, name: str) -> torch.Tensor:
    """Return a parameter's tensor; raise an error if it was changed in place after compiling."""
    tensor = program.parameters[name]
    if tensor_version(tensor) != program.versions.get(name, tensor_version(tensor)):
        raise ArtifactError(
            f"the weight {name} was changed in place after compiling, and the engines have its old value",
            "save before you change the model, or save the result of pipeline.refit_module_weights(compiled, model)",
        )
    return tensor


def _save_graphs(compiled: Compiled, tensors: TensorsToSave) -> dict[str, SavedGraph]:
    """Return the program's nodes as graphs, by entry name: a graph for each PyTorch segment, and ``graph.json`` for the
    others, such as inputs, arithmetic on sizes, and nodes in engines."""
    module, segments = compiled.program.graph_module, compiled.partitioned.segments
    home = {n: i for i, each in reversed([*enumerate(segments)]) if each.kind == "torch" for n in each.nodes}
    engines = {name for each in compiled.partitioned.engine_segments for name in each.nodes} - home.keys()
    engines -= {n.name for n in module.graph.nodes if is_collective(n)}  # `load` asks for permission for these, too
    places: dict[int, list[torch.fx.Node]] = {i: [] for i in (*sorted({*home.values()}), len(segments))}
    for node in module.graph.nodes:
        places[home.get(node.name, len(segments))].append(node)
    rest = places.pop(len(segments))
    kept = {f"segments/{i}.json": save_graph(module, nodes, "graph", tensors) for i, nodes in places.items()}
    return {**kept, "graph.json": save_graph(module, rest, "graph", tensors, engines)}
