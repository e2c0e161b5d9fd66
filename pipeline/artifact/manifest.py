"""``Manifest``: the record of everything textual in a kept program, written and read by the codec.

The file also has the engines, the networks' descriptions, the graph, and the weights.
"""

from __future__ import annotations

from typing import Final

from attrs import field, frozen

from pipeline.artifact.codec import Json
from pipeline.artifact.graphs import KeptGraph, KeptNode
from pipeline.artifact.tensors import Kept
from pipeline.aten.support import Rejection
from pipeline.compiled import RefitMap
from pipeline.errors import Fallback, Unreached
from pipeline.frozen import FrozenDict
from pipeline.program import Cut, Output, Port, Segment
from pipeline.recipes import Recipe
from pipeline.records.agreement import Agreement, Healed
from pipeline.records.parameter import Parameter
from pipeline.shapes.environment import Range, ShapeEnvironment

FORMAT: Final = "pipeline program"
SCHEMA: Final = 2
"""The version of the format: 2 since text is deflated. Files of earlier versions are read; a new field with a default
needs no new version."""


@frozen
class KeptVerdict:
    """A verdict with the name of the converter, which is code."""

    node: str
    target: str
    supported: bool
    reasons: tuple[Rejection, ...] = ()
    where: str = ""
    converter: str = ""


@frozen
class KeptEngine:
    """An engine, and the entry that holds its plan."""

    name: str
    entry: str
    library: str
    refittable: bool = False
    digest: str = ""
    bindings: FrozenDict[str, str] = field(factory=FrozenDict)
    weights: FrozenDict[str, str] = field(factory=FrozenDict)
    stripped: bool = False


@frozen
class KeptWeights:
    """Where the tensors are: in this file (``entry``), in another beside it (``file``, its bytes and SHA-256), or
    nowhere. ``others``: the entry has the constants of the model's code, and the model's weights are elsewhere."""

    entry: str = ""
    file: str = ""
    size: int = 0
    sha256: str = ""
    others: bool = False


@frozen
class KeptSegment:
    """The nodes of a segment that runs in PyTorch, and the graphs and tensors that they read as attributes."""

    nodes: tuple[KeptNode, ...]
    graphs: tuple[tuple[str, KeptGraph], ...] = ()
    tensors: tuple[tuple[str, Kept], ...] = ()


@frozen
class KeptSource:
    """The program before `decompose`, which eager PyTorch runs: its graph, inputs and outputs."""

    graph: KeptSegment
    inputs: tuple[Port, ...]
    outputs: tuple[Output, ...]
    constants: FrozenDict[str, Recipe]
    buffers: FrozenDict[str, str] = field(factory=FrozenDict)


@frozen
class Versions:
    """The versions that wrote the file, and the GPUs that its engines are for: the requested compute capabilities, and
    the machine's GPU, if it had one."""

    pipeline: str
    torch: str
    tensorrt: str
    targets: tuple[str, ...] = ()
    gpu: str = ""


@frozen
class Manifest:
    """A compiled program without its engines, networks, graph and weights. ``libraries`` define operators that run in
    PyTorch; ``modules`` has the class of each module that made a node, by its path; ``source`` is the entry of the
    program that was decomposed; ``computed`` the bytes of the largest tensor that is computed as a constant;
    ``generation`` the JSON that makes a language model of the program; ``call`` the bytes that a call takes at most, 0
    if sizes have no bound."""

    format: str
    schema: int
    versions: Versions
    entries: FrozenDict[str, str]
    weights: KeptWeights
    inputs: tuple[Port, ...]
    outputs: tuple[Output, ...]
    in_spec: Json
    out_spec: Json
    shapes: ShapeEnvironment
    settings: FrozenDict[str, Json]
    segments: tuple[Segment, ...]
    engines: tuple[KeptEngine, ...]
    networks: tuple[str, ...]
    constants: FrozenDict[str, Recipe]
    refit_map: RefitMap
    parameters: FrozenDict[str, Kept]
    literals: FrozenDict[str, Kept]
    verdicts: tuple[KeptVerdict, ...]
    graphs: tuple[str, ...]
    nodes: tuple[str, ...]
    buffers: FrozenDict[str, str] = field(factory=FrozenDict)
    aliases: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    numbers: FrozenDict[str, float] = field(factory=FrozenDict)
    fallbacks: tuple[Fallback, ...] = ()
    unreached: tuple[Unreached, ...] = ()
    cuts: tuple[Cut, ...] = ()
    healed: tuple[Healed, ...] = ()
    agreement: Agreement | None = None
    libraries: tuple[str, ...] = ()
    modules: FrozenDict[str, str] = field(factory=FrozenDict)
    profiles: tuple[FrozenDict[str, Range], ...] = ()
    signature: tuple[Parameter, ...] = ()
    generation: str = ""
    source: str = ""
    computed: int = 0
    call: int = 0
