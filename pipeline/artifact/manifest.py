"""``Manifest``: the description of a saved program, written and read by the codec.
Engines, networks, the graph and weights are separate entries of the file."""

from __future__ import annotations

from typing import Final

from attrs import field, fields, frozen

from pipeline.artifact.codec import Json
from pipeline.artifact.graphs import SavedGraph
from pipeline.artifact.tensors import SavedTensor
from pipeline.aten.support import Rejection
from pipeline.aten.types import Argument
from pipeline.compiled import RefitMap
from pipeline.errors import Fallback
from pipeline.frozen import FrozenDict
from pipeline.program import Cut, Output, Port, SavedFields, Segment
from pipeline.recipes import Recipe
from pipeline.records.agreement import Agreement, Healed

FORMAT: Final = "pipeline program"
KERNELS: Final = "kernels.plan"
"""The name of the entry with the kernels that TensorRT-RTX compiled on the machine that wrote the file."""
SCHEMA: Final = 2
"""The version of the file format: 1 stored text uncompressed, 2 compresses it. Older files can be read; a new field
with a default needs no new version."""


@frozen
class SavedVerdict:
    """Whether and how a node can be converted, as saved in a file: with the converter's name, not the converter."""

    node: str
    target: str
    supported: bool
    reasons: tuple[Rejection, ...] = ()
    where: str = ""
    converter: str = ""


@frozen
class SavedEngine:
    """The record of an engine in a file, and the name of the entry with the engine's plan."""

    name: str
    entry: str
    library: str
    refittable: bool = False
    digest: str = ""
    bindings: FrozenDict[str, str] = field(factory=FrozenDict)
    weights: FrozenDict[str, str] = field(factory=FrozenDict)
    stripped: bool = False


@frozen
class SavedWeights:
    """Where a program's tensors are saved: in this file (``entry``), in another file (``file``, its size and SHA-256),
    or nowhere. ``others``: True if the model's weights are not in ``entry``, which then has only the other tensors:
    constants of the model's code."""

    entry: str = ""
    file: str = ""
    size: int = 0
    sha256: str = ""
    others: bool = False


@frozen
class SavedSource:
    """The program before the stage `decompose`, as saved in a file: its graph, inputs and outputs."""

    graph: SavedGraph
    inputs: tuple[Port, ...]
    outputs: tuple[Output, ...]
    constants: FrozenDict[str, Recipe]
    buffers: FrozenDict[str, str] = field(factory=FrozenDict)


@frozen
class Versions:
    """The versions of libraries that wrote the file, the requested compute capabilities, and the machine's GPU."""

    pipeline: str
    torch: str
    tensorrt: str
    targets: tuple[str, ...] = ()
    gpu: str = ""


@frozen(kw_only=True)
class Manifest(SavedFields):
    """The main entry of a saved program's file, with the fields of `SavedFields`; engines, networks, graphs and weights
    are other entries (``entries``: the SHA-256 of each).

    libraries: those of operators that run in PyTorch. modules: the class of each module with nodes, by path. source:
    the entry with the program before the stage `decompose`. computed: the bytes of the largest constant that `load` may
    compute. generation: of a language model, JSON from which `load` creates ``generate``. call: the most bytes that a
    call may allocate; 0 if sizes are unbounded. kernels: the machine whose compiled GPU kernels the file has, or "".
    """

    format: str
    schema: int
    versions: Versions
    entries: FrozenDict[str, str]
    weights: SavedWeights
    in_spec: Json
    out_spec: Json
    settings: FrozenDict[str, Json]
    segments: tuple[Segment, ...]
    engines: tuple[SavedEngine, ...]
    networks: tuple[str, ...]
    refit_map: RefitMap
    parameters: FrozenDict[str, SavedTensor]
    literals: FrozenDict[str, SavedTensor]
    verdicts: tuple[SavedVerdict, ...]
    graphs: tuple[str, ...]
    nodes: tuple[str, ...]
    fallbacks: tuple[Fallback, ...] = ()
    cuts: tuple[Cut, ...] = ()
    healed: tuple[Healed, ...] = ()
    agreement: Agreement | None = None
    libraries: tuple[str, ...] = ()
    modules: FrozenDict[str, str] = field(factory=FrozenDict)
    generation: str = ""
    source: str = ""
    computed: int = 0
    call: int = 0
    kernels: str = ""


def saved_fields(record: SavedFields) -> dict[str, Argument]:
    """Return the fields, by name, that `Program` and `Manifest` share; ``record`` is either of them."""
    return {each.name: getattr(record, each.name) for each in fields(SavedFields)}
