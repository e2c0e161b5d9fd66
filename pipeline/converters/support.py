"""Report operator support: count a graph's supported calls, and list the limits of all converters in a table."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from torch._ops import OpOverload

from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.converters.lookup import Lookup, validator_summary
from pipeline.converters.registry import ConverterRegistry
from pipeline.recipes import qualified_name
from pipeline.records.executed_ops import TorchExecuted
from pipeline.records.wording import kind_of
from pipeline.settings import CompilationSettings


def get_graph_converter_support(
    gm: torch.fx.GraphModule,
    torch_executed_ops: Iterable[TorchExecuted] = frozenset(),
    *,
    registry: ConverterRegistry | None = None,
) -> tuple[int, int]:
    """Return how many of a graph's operator calls a converter accepts, and the total number of calls. Operators in
    `torch_executed_ops` are not accepted. `registry` defaults to `pipeline.converters.DYNAMO_CONVERTERS`."""
    if not isinstance(gm, torch.fx.GraphModule):
        graph = "pass pipeline.capture(model, args).graph_module"
        raise TypeError(f"get_graph_converter_support takes a torch.fx.GraphModule, not {kind_of(gm)}: {graph}")
    settings = CompilationSettings(torch_executed_ops=frozenset(torch_executed_ops))
    lookup = (DYNAMO_CONVERTERS if registry is None else registry).bind(settings)
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return sum(node in lookup for node in calls), len(calls)


@attrs.frozen
class SupportRow:
    """One target's row in the support table, with its converters in the order of lookup.

    limits: the validators' docstrings, which state the accepted nodes. schema: the operator's; "" for a function.
    """

    target: str
    converters: tuple[str, ...]
    dynamic: bool
    allocator: bool
    limits: tuple[str, ...]
    schema: str


def support_table(registry: Lookup) -> tuple[SupportRow, ...]:
    """Return the rows of the support table, one for each target in the registry, sorted by name."""
    rows = []
    for target, declarations in registry.candidates.items():
        supports = [declaration.support for declaration in declarations]
        limits = dict.fromkeys(validator_summary(s.capability_validator) for s in supports if s.capability_validator)
        row = SupportRow(
            target=qualified_name(target),
            converters=tuple(support.name for support in supports),
            dynamic=any(support.supports_dynamic_shapes for support in supports),
            allocator=any(support.requires_output_allocator for support in supports),
            limits=tuple(filter(None, limits)),
            schema=str(target._schema) if isinstance(target, OpOverload) else "",
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: row.target))
