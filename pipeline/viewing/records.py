"""``ProgramView``: a record that describes a compiled program, to draw it, to compare it, and to save it as JSON.

docs/reports.md documents the JSON. The JSON omits fields with default values; so a new field with a default needs no
new version of the format.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import frozen

from pipeline.errors import Unreached
from pipeline.records.agreement import Agreement, Healed
from pipeline.records.profile import Profile

FORMAT: Final = "pipeline program view"
SCHEMA: Final = 1

Place = Literal["tensorrt", "pytorch", "host"]
"""Where a node runs: in TensorRT, in PyTorch, or on the ``host`` (sizes and tuple items, which take no GPU time)."""


@frozen
class Value:
    """A tensor (or number) that a node computes: its dtype, its sizes as expressions, and their ranges (smallest,
    optimal, largest). ``nbytes`` is the size in bytes at the optimal sizes."""

    dtype: str
    shape: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int, int], ...] = ()
    nbytes: int = 0

    def __str__(self) -> str:
        if self.dtype in ("int", "float", "bool"):  # a Python number
            return self.dtype
        sizes = zip(self.shape, self.ranges, strict=True)
        dims = (size if low == high else f"{size}={low}..{opt}..{high}" for size, (low, opt, high) in sizes)
        return f"{self.dtype}[{', '.join(dims)}]"


@frozen
class LayerView:
    """A layer of an engine's network: its name and kind."""

    name: str
    kind: str


@frozen
class WeightView:
    """A weight that a node reads. ``recipe``: how it is computed from the model's parameters. ``fixed``: why it cannot
    be refitted; empty if it can."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    recipe: str = ""
    fixed: str = ""


@frozen
class KernelView:
    """A kernel of an engine, as the engine's plan lists it, and the nodes that it computes at least partly."""

    segment: str
    kind: str
    name: str
    nodes: tuple[str, ...] = ()


@frozen
class NodeView:
    """A node of a program: what it computes, where it runs, and why.

    kind: ``operator``; ``item`` of a tuple; ``size``: arithmetic on sizes; ``input``; ``output``.
    module: the path of the module whose forward created the node. where: the user's source line.
    segment: the part of the program in which the node runs. inputs: the nodes that it reads.
    kernels: indices of the kernels that compute the node. fusion: for a quantizing or dequantizing node, whether a
        matmul or convolution reads the quantized values, as in `Compiled.quantization`.
    reason, hint: why the node runs in PyTorch, and how to change that.
    healed: the alternative implementation, if `pipeline.verify` or the stage `load` compiled the node by another one.
    """

    name: str
    kind: Literal["operator", "item", "size", "input", "output"]
    target: str
    place: Place = "host"
    segment: str = ""
    module: str = ""
    where: str = ""
    converter: str = ""
    inputs: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()
    layers: tuple[LayerView, ...] = ()
    kernels: tuple[int, ...] = ()
    weights: tuple[WeightView, ...] = ()
    fusion: str = ""
    reason: str = ""
    hint: str = ""
    healed: str = ""


@frozen
class ModuleView:
    """A module of the model: its path and class. Only modules whose ``forward`` created nodes are listed."""

    path: str
    type: str = ""


@frozen
class SegmentView:
    """A part of a program that runs in an engine or in PyTorch. ``nbytes`` is the size of the engine's plan (0 if not
    built), ``weights`` the size of the weights that the segment reads, in bytes."""

    name: str
    place: Place
    operators: int
    nbytes: int = 0
    weights: int = 0
    library: str = ""
    digest: str = ""
    layers: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@frozen
class CutView:
    """The tensors that one segment computes and a later segment reads, and their bytes at optimal and largest sizes."""

    source: str
    target: str
    tensors: tuple[str, ...] = ()
    nbytes: int = 0
    max_nbytes: int = 0


@frozen
class StageView:
    """The cost of one stage of a compilation: seconds, and additional bytes of memory."""

    stage: str
    seconds: float
    growth: int = 0
    peak: int = 0


@frozen
class ProgramView:
    """A description of a compiled program: its nodes, segments, kernels, weights and measurements.

    title: the user's name for the program. settings: (name, value) of settings that differ from the default. versions:
        of pipeline, torch and TensorRT. sizes: dynamic sizes and the relations between them. agreement: errors against
        eager, if the program was verified. profile: times by layer and node, if they were measured. weights_digest: the
        SHA-256 of the model's weights, if read from a file that has it.
    """

    title: str
    nodes: tuple[NodeView, ...]
    modules: tuple[ModuleView, ...] = ()
    segments: tuple[SegmentView, ...] = ()
    cuts: tuple[CutView, ...] = ()
    kernels: tuple[KernelView, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    stages: tuple[StageView, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    healed: tuple[Healed, ...] = ()
    unreached: tuple[Unreached, ...] = ()
    agreement: Agreement | None = None
    profile: Profile | None = None
    weights_digest: str = ""

    @property
    def operators(self) -> tuple[NodeView, ...]:
        """Return the nodes that are operators; inputs, outputs, tuple items and arithmetic on sizes are not."""
        return tuple(node for node in self.nodes if node.kind == "operator")

    @property
    def fallbacks(self) -> tuple[NodeView, ...]:
        """Return the operators that run in PyTorch."""
        return tuple(node for node in self.operators if node.place == "pytorch")


@frozen
class Row:
    """One difference between two programs as text, and the affected node, if any."""

    text: str
    node: str = ""


@frozen
class Change:
    """All differences of one kind between two programs: its ``title``, such as ``times``, and a row for each."""

    title: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.title}:", *(f"  {row.text}" for row in self.rows)])
