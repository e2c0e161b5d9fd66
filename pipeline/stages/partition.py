"""partition: ``Validated`` → ``Partitioned``. Cut the graph into segments for engines and for PyTorch.

A partitioner is any stage from ``Validated`` to ``Partitioned``. Here are the default `Partition`, whose engines are as
large and as few as possible; `InPieces`, which cuts these engines; and `BySubmodule`, which keeps whole submodules
together. For all of them `pipeline.partitioning.assemble` adds ports, copies of constants and sizes, and cuts.

Arithmetic on sizes belongs to no segment: engines derive sizes from the shapes of their inputs, and PyTorch segments
receive their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import torch
from attrs import field, frozen

from pipeline.aten.collectives import is_wait
from pipeline.aten.kv_cache_ops import CACHE_UPDATE
from pipeline.errors import UnsupportedOperatorException
from pipeline.partitioning.assemble import Group, assemble, fallback_record
from pipeline.partitioning.fixpoint import choose_segments
from pipeline.partitioning.flow import Flow, Node, build_flow, copied_nodes
from pipeline.partitioning.split_engine import split_by_submodule, split_evenly
from pipeline.partitioning.units import (
    Units,
    build_units,
    fused_patterns,
    pattern_start_of_moved_operators,
    submodule_runs,
    torch_reasons,
    unsplit_submodule,
)
from pipeline.program import Partitioned, Validated, is_operator


class Partitioner(Protocol):
    """The protocol of stages that replace ``partition``: they decide which operators share a segment."""

    @property
    def name(self) -> str:
        """Return the stage's name."""

    def __call__(self, validated: Validated) -> Partitioned:
        """Return the segments in the order in which they run; `pipeline.partitioning.assemble` builds them from groups.

        Raises:
            UnsupportedOperatorException: ``require_full_compilation`` is set, and an operator would run in PyTorch.
        """


OPERATORS_PER_ENGINE: Final = 1000
"""The default partitioner cuts an engine of at least twice as many operators into engines of this size to 1.5 times it:
TensorRT builds them in less time. SDXL's UNet, captured on a CPU (4,270 operators), is built in 151 s as one engine,
and in 61 s as four, on one core of an AMD EPYC (TensorRT-RTX 1.6.1, float16)."""


@frozen
class Partition:
    """The default partitioner, which builds as few engines as possible.

    An engine of 2,000 operators or more is cut into equal parts, since TensorRT builds them in less time; the setting
    ``max_engines`` or the partitioner ``in_pieces(1)`` prevents that. Patterns that TensorRT fuses (a convolution or
    matmul with the norm and elementwise operators after it, attention) are never cut. If an operator must run in
    PyTorch, others move there, too: cheap operators beside it, if fewer bytes then cross between segments; all of an
    engine with fewer than ``min_block_size`` operators; and all of the smallest engines beyond ``max_engines``.
    """

    name: str = "partition"

    def __call__(self, validated: Validated) -> Partitioned:
        cut = _cut_large_engine if validated.program.settings.max_engines is None else None
        return _partition(validated, _largest_units, cut)


@frozen
class InPieces:
    """A partitioner that cuts each engine of the default partitioner into several engines that run one after the other.

    TensorRT builds an engine in one thread, and a deep network takes longer to build than all its parts together, which
    processes can build in parallel (threads block each other on RTX 1.4). Cuts are at positions where few bytes cross,
    such as between the layers of a transformer. Patterns that TensorRT fuses are never cut, but nothing is fused across
    a cut. `in_pieces` documents the fields.
    """

    count: int | None = field(default=None)
    between: str = field(default="", kw_only=True)
    name: str = field(default="in_pieces", kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.count is not None:
            _check_positive("count", self.count, "between")
        if not isinstance(self.between, str):
            raise TypeError(f"between must be a pattern of submodule paths, such as 'layers.*', got {self.between!r}")
        if (self.count is None) == (not self.between):
            raise TypeError(
                f"in_pieces takes a number or between='layers.*', got {'both' if self.count else 'neither'}"
            )

    def __call__(self, validated: Validated) -> Partitioned:
        return _partition(validated, _largest_units, self._cut_engine)

    def _cut_engine(self, flow: Flow, units: Units, operators: Sequence[int]) -> list[tuple[int, ...]]:
        """Cut ``operators`` (indices in ``flow.nodes``) evenly or by submodules, never inside one of the ``units``."""
        if self.count is not None:
            return split_evenly(flow, units, operators, self.count)
        keys = [unsplit_submodule(node, pattern=self.between) for node in flow.nodes]
        return _cut_after_cache_updates(flow, units, operators, keys)


def _cut_large_engine(flow: Flow, units: Units, operators: Sequence[int]) -> list[tuple[int, ...]]:
    """Cut 2,000 ``operators`` or more (indices in ``flow.nodes``) evenly, never inside one of the ``units``."""
    return split_evenly(flow, units, operators, max(1, len(operators) // OPERATORS_PER_ENGINE))


@frozen
class BehindUpdates:
    """A partitioner that cuts each engine of the default partitioner after its last cache update: TensorRT copies a
    cache if the engine that updates it also has a matmul that reads it."""

    name: str = field(default="behind_updates", kw_only=True)

    def __call__(self, validated: Validated) -> Partitioned:
        return _partition(validated, _largest_units, _cut_after_cache_updates)


def _cut_after_cache_updates(
    flow: Flow, units: Units, operators: Sequence[int], submodule_of: Sequence[str | None] = ()
) -> list[tuple[int, ...]]:
    """Cut the ``operators`` of one engine (indices in ``flow.nodes``) after cache updates, and where the submodule
    changes. ``units``: the groups of operators that are never cut. ``submodule_of``: the submodule of each node."""
    updates = frozenset(i for i in operators if flow.nodes[i].target is CACHE_UPDATE)
    return split_by_submodule(flow, units, operators, submodule_of or [None] * len(flow.nodes), updates)


@frozen
class BySubmodule:
    """A partitioner that keeps submodules whole: each runs in one engine, or in PyTorch if any part of it must.

    Patterns that TensorRT fuses are not cut here either. If the boundary between two submodules is inside a pattern
    (the activation after a convolution is in another submodule, the softmax of attention is a module), the whole
    pattern belongs to the submodule in which it begins. `by_submodule` documents the fields.
    """

    depth: int = field(default=1)
    pattern: str | None = field(default=None, kw_only=True)
    name: str = field(default="by_submodule", kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_positive("depth", self.depth, "pattern")

    def __call__(self, validated: Validated) -> Partitioned:
        def choose_units(flow: Flow, refused: dict[int, str]) -> Units:
            fused = list(fused_patterns(flow, lambda i: i not in refused))
            own = [unsplit_submodule(node, self.depth, self.pattern) for node in flow.nodes]
            along = pattern_start_of_moved_operators(own, fused)
            keys = [own[along.get(i, i)] for i in range(len(own))]
            refused |= torch_reasons(flow, keys, along, refused)
            return build_units(flow, submodule_runs(keys, fused), keys.__getitem__)

        return _partition(validated, choose_units)


partition = Partition()


def in_pieces(count: int | None = None, *, between: str = "") -> InPieces:
    """Return a partitioner that cuts engines: ``compile.replace("partition", pipeline.in_pieces(4))``.

    Args:
        count: the maximum number of engines into which each engine of the default partitioner is cut, at least 1.
        between: instead of ``count``, a pattern for module paths as in `fnmatch`: ``"encoder.layer.*"``. Engines are
            cut between the submodules that match. If a submodule updates a cache, the cut is after its last update,
            not before the submodule. With `pipeline.shared_weights`, layers of equal structure share one engine,
            which is built and loaded once.

    Raises:
        TypeError: both arguments are given, or neither.
    """
    return InPieces(count, between=between)


def by_submodule(depth: int = 1, *, pattern: str | None = None) -> BySubmodule:
    """Return a partitioner that keeps submodules whole: ``compile.replace("partition", pipeline.by_submodule(3))``.

    Args:
        depth: the number of names in the paths of the submodules: ``encoder.layer.0`` has 3. Shallower submodules
            without submodules of that depth count as well. Other operators are cut as by default.
        pattern: instead of ``depth``, a pattern for module paths as in `fnmatch`: ``"encoder.layer.*"``.
    """
    return BySubmodule(depth, pattern=pattern)


def _check_positive(name: str, value: object, path_option: str) -> None:
    """Raise an error if the option ``name`` is no positive integer. It says that ``path_option`` takes module paths."""
    if not isinstance(value, int) or value < 1:
        kind = ValueError if isinstance(value, int) else TypeError
        raise kind(f"{name} must be an integer of at least 1, got {value!r}; pass module paths as {path_option}=")


def _largest_units(flow: Flow, refused: dict[int, str]) -> Units:
    """Return the groups of operators that must share a segment: each pattern that TensorRT fuses, without operators in
    ``refused`` (by number, with the reason); every other operator is a group."""
    return build_units(flow, fused_patterns(flow, lambda i: i not in refused))


def _partition(
    validated: Validated,
    choose_units: Callable[[Flow, dict[int, str]], Units],
    cut_engine: Callable[[Flow, Units, Sequence[int]], list[tuple[int, ...]]] | None = None,
) -> Partitioned:
    """Return the segments of a program. ``choose_units(flow, refused)`` returns the groups of operators that share a
    segment; ``refused`` has the reason of each operator that must run in PyTorch. ``cut_engine(flow, units,
    operators)`` cuts the operators of one engine; None: engines stay whole. Operators are indices in ``flow.nodes``."""
    program, settings = validated.program, validated.program.settings
    reasons = _refused_nodes(validated)
    if reasons and settings.require_full_compilation:
        operators = [n for n in program.graph.nodes if is_operator(n)]
        fallbacks = tuple(fallback_record(validated, n, reasons[n]) for n in operators if n in reasons)
        raise UnsupportedOperatorException(fallbacks, len(operators))
    seen = build_flow(program, copied_nodes(program, lambda n: n not in reasons))
    refused = {i: reasons[n] for i, n in enumerate(seen.nodes) if n in reasons}
    chosen = choose_units(seen, refused)
    segments, reasons_by_number = choose_segments(seen, chosen, refused, settings)
    groups: list[Group] = [
        ("engine" if is_engine else "torch", [seen.nodes[i].name for i in part])
        for is_engine, inside in segments
        for part in (cut_engine(seen, chosen, inside) if is_engine and cut_engine is not None else [inside])
    ]
    return assemble(validated, groups, {seen.nodes[i].name: why for i, why in reasons_by_number.items()})


def _refused_nodes(validated: Validated) -> Mapping[Node, str]:
    """Return the operators that cannot run in engines, each with the reasons. These include operators with a tuple
    result of which a ``getitem`` node is refused, and ``wait_tensor`` after a collective that is refused."""
    reasons: dict[Node, str] = {}
    for node in filter(is_operator, validated.program.graph.nodes):
        parts = [node, *_items_of_tuple_result(node), *(node.all_input_nodes if is_wait(node) else ())]
        verdicts = [validated.verdicts[part.name] for part in parts if part.name in validated.verdicts]
        why = [each.reason for verdict in verdicts if not verdict.supported for each in verdict.reasons]
        if why:
            reasons[node] = "; ".join(dict.fromkeys(why))
    return reasons


def _items_of_tuple_result(node: Node) -> Iterable[Node]:
    """Return the nodes that take an item of a node's tuple result (``operator.getitem``); none for a single tensor."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return ()
    return (user for user in node.users if user.op == "call_function" and not is_operator(user))
