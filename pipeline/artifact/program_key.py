"""Compute the cache key of a whole compilation: the digest of the captured program and of its stages."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, TypeAlias, get_type_hints

import torch

from pipeline.artifact import codec, graphs, pytrees
from pipeline.artifact.engine_key import around, digests
from pipeline.artifact.identity import NoIdentityError, identity, package
from pipeline.artifact.json_data import JsonData
from pipeline.artifact.tensors import Tensors
from pipeline.aten.naming import module_stack
from pipeline.compose.stage_signature import AnyStage
from pipeline.errors import ArtifactError
from pipeline.program import Program
from pipeline.quirks.applied import experiment
from pipeline.trt import has_gpu
from pipeline.version import __version__

FORMAT = "program 1"
"""What keys and entries are made of. Another number where either changes: older entries are then never found."""

FIELDS = ("inputs", "outputs", "constants", "buffers", "shapes", "aliases", "written", "profiles")
Known: TypeAlias = Callable[[torch.Tensor], str | None]


def program_key(program: Program, stages: JsonData, known: Known = lambda tensor: None) -> str:
    """The key of a compilation, 64 hexadecimal digits.

    It changes with every node of the captured program, its arguments and its module and line; names, ranges, settings,
    the values of weights and other tensors; the stages and their options; versions and machine.

    Args:
        program: the captured program.
        stages: the result of `stages_of`.
        known: looks up the SHA-256 of a tensor, if it was computed before.

    Raises:
        NoIdentityError: a part of the program has no digest, or cannot be kept.
    """
    if program.source is not None or program.decomposed:
        raise NoIdentityError("the program was decomposed before")
    tensors = Tensors()
    try:
        parts = [_fields(program), _graph(program, tensors), identity(program.settings)]
        text = json.dumps(parts, separators=(",", ":"), allow_nan=False)
    except (ArtifactError, TypeError) as error:
        raise NoIdentityError(f"the program cannot be kept: {error}") from None
    named = {**program.parameters, **{f"graph {name}": tensor for name, tensor in tensors.by_key.items()}}
    values = "\n".join(_values(named, known))
    return _digest(FORMAT, json.dumps(stages), text, values, *experiment())


def hint_key(model: torch.nn.Module, stages: JsonData) -> str:
    """The key of the hint that says what a similar model was last compiled to: a guess, on which no result depends."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    rows = (f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors)
    return _digest(FORMAT, "hint", json.dumps(stages), f"{type(model).__module__}.{type(model).__qualname__}", *rows)


def stages_of(stages: tuple[AnyStage, ...]) -> JsonData:
    """Identify stages and their surroundings: versions, the machine, how torch computes the constants that are folded.

    Raises:
        NoIdentityError: one of them has a function from outside the package.
    """
    gpu = torch.cuda.get_device_name() if has_gpu() else ""
    versions = __version__, str(torch.__version__), sys.version.split()[0], package()
    return [*versions, *around(), gpu, *_numerics(), *map(identity, stages)]


def _numerics() -> Iterator[str]:
    """torch's settings that change what it computes: its default dtype, precisions, and deterministic algorithms."""
    yield str(torch.get_default_dtype())
    backends: Any = torch.backends  # whose precisions torch's stubs lack
    products, convolutions, cpu = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    of_cudnn, of_cpu = (convolutions, convolutions.conv, convolutions.rnn), (cpu, cpu.matmul, cpu.conv, cpu.rnn)
    yield " ".join(str(each.fp32_precision) for each in (torch.backends, products, *of_cudnn, *of_cpu))
    allowed = ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation")
    yield " ".join(str(getattr(products, f"allow_{name}")) for name in allowed)
    yield f"{convolutions.enabled} {convolutions.benchmark} {convolutions.deterministic} {cpu.deterministic}"
    filled: Any = torch.utils.deterministic
    yield f"{torch.are_deterministic_algorithms_enabled()} {filled.fill_uninitialized_memory}"
    yield str(torch.backends.cuda.preferred_linalg_library())


def place(tensor: torch.Tensor) -> tuple[object, ...]:
    """The location and layout of a tensor: two with the same have the same values."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


@cache
def _kinds() -> Mapping[str, Any]:
    hints = get_type_hints(Program)
    return {name: hints[name] for name in FIELDS}


def _fields(program: Program) -> JsonData:
    """The program's records; of its examples how they look, as their values are no part of it."""
    rows = {name: codec.written(getattr(program, name), kind) for name, kind in _kinds().items()}
    specs = pytrees.written(program.in_spec), pytrees.written(program.out_spec)
    examples = [f"{name} {t.dtype} {list(t.shape)} {t.device}" for name, t in program.examples.items()]
    return [rows, *specs, examples, list(map(str, program.unreached))]


def _graph(program: Program, tensors: Tensors) -> JsonData:
    """The nodes, the graphs inside them, and which module each comes from."""
    nodes = list(program.graph.nodes)
    rows = [graphs.kept_node(node, calls=True) for node in nodes]
    inner, held = graphs.attributes(program.graph_module, nodes, "graph", tensors)
    for row in (*rows, *(row for _, graph in inner for row in _rows(graph))):
        if row.library and row.library != "pipeline" and not row.library.startswith("pipeline."):
            raise NoIdentityError(f"the operator {row.target} is of {row.library}, whose code has no digest")
    kept = codec.written(graphs.KeptGraph(tuple(rows), inner, held), graphs.KeptGraph)
    return [kept, [_strides(node.meta.get("val")) for node in nodes], [list(module_stack(n.meta)) for n in nodes]]


def _rows(graph: graphs.KeptGraph) -> Iterator[graphs.KeptNode]:
    yield from graph.nodes
    for _, inner in graph.graphs:
        yield from _rows(inner)


def _strides(value: object) -> JsonData:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        sizes = (step if isinstance(step, int) else _printed(step.node.expr) for step in value.stride())
        return [*sizes, value.requires_grad]
    return list(map(_strides, value)) if isinstance(value, (tuple, list)) else None


@lru_cache(1024)
def _printed(expr: object) -> str:
    """A size, which sympy takes long to print."""
    return str(expr)


def _values(tensors: Mapping[str, torch.Tensor], known: Known) -> Iterator[str]:
    """A line for each tensor: its name, its form, the digest of its values, and which others lie in its place."""
    owners: dict[tuple[object, ...], str] = {}
    places: dict[str, str] = {}
    for name, tensor in tensors.items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.is_meta:
            raise NoIdentityError(f"{name} is a {type(tensor).__name__} whose values cannot be read")
        places[name] = owners.setdefault(place(tensor), name)
    first = {name: tensors[name] for name in owners.values()}
    found = {name: digest for name, tensor in first.items() if (digest := known(tensor)) is not None}
    try:
        found |= digests({name: tensor for name, tensor in first.items() if name not in found})
    except (RuntimeError, TypeError) as error:
        raise NoIdentityError(f"the values of a tensor cannot be read: {error}") from None
    for name, tensor in tensors.items():
        form = f"{tensor.dtype} {list(tensor.shape)} {tensor.stride()} {tensor.device} {tensor.requires_grad}"
        yield f"{name!r} {form} {places[name]!r} {found[places[name]]}"


def _digest(*parts: str) -> str:
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(f"{len(part)}\n{part}".encode())
    return sha256.hexdigest()
