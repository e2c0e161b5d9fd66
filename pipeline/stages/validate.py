"""validate: ``Program`` → ``Validated``. For each node, the converter that takes it, or every reason why none does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from attrs import field, frozen
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_flatten

from pipeline.aten.support import Choice, Rejection
from pipeline.converters.registry import BoundRegistry, ConverterRegistry
from pipeline.decomposition.complex import is_border
from pipeline.errors import source_line
from pipeline.frozen import FrozenDict
from pipeline.partitioning.flow import new_symbols
from pipeline.program import READS_DATA, Program, Validated, Verdict
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES

MAX_RANK = 8
"""TensorRT's limit on the rank of a tensor."""

DTYPES = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.int8, torch.uint8}
)
"""The dtypes that networks are made of."""

aten = torch.ops.aten

TAKES_FLOATS = frozenset(
    {
        *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")),
        *(getattr(aten, name).Scalar for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
        *(aten.pow.Tensor_Scalar, aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar),
        aten.scalar_tensor.default,
    }
)
"""Operators whose converters take a number as a tensor as well."""


@frozen
class Validate:
    """The stage: asks the registry about each node; what holds for every operator (dtypes, rank) is asked here."""

    registry: ConverterRegistry = field(repr=False)
    name: str = "validate"

    def __call__(self, program: Program) -> Validated:
        """A verdict for each call in the graph."""
        lookup = self.registry.bind(program.settings)
        verdicts: dict[str, Verdict] = {}
        for node in program.graph.nodes:
            if node.op == "call_function":
                verdicts[node.name] = _verdict(node, lookup, program.settings, verdicts)
        return Validated(program, FrozenDict(verdicts))


def _verdict(
    node: torch.fx.Node, lookup: BoundRegistry, settings: CompilationSettings, earlier: dict[str, Verdict]
) -> Verdict:
    target = qualified_name(node.target)
    limits = tuple(_limits(node, settings, earlier))
    found = lookup.choose(node)
    if isinstance(found, Choice) and not limits:
        return Verdict(node.name, target, found, others=lookup.others(node))
    reasons = () if isinstance(found, Choice) else found.reasons
    return Verdict(node.name, target, None, (*limits, *reasons), source_line(node))


def _limits(node: torch.fx.Node, settings: CompilationSettings, earlier: dict[str, Verdict]) -> Iterator[Rejection]:
    """What no network can hold, whatever the operator."""
    yield from islice(_complex_limits(node), 1)
    yield from _size_limits(node)
    for what, value in _values(node):
        if isinstance(value, torch.SymBool) or (isinstance(value, torch.SymFloat) and not _takes(node, value)):
            kind = "float" if isinstance(value, torch.SymFloat) else "bool"
            yield Rejection(f"{what} is a symbolic {kind}, which stays in Python")
        elif isinstance(value, torch.Tensor):
            yield from _tensor_limits(what, value, settings)
    for source in node.all_input_nodes:
        verdict, value = earlier.get(source.name), source.meta.get("val")
        if verdict is None or verdict.supported or not isinstance(value, torch.SymInt):
            continue
        if free_unbacked_symbols(value):  # what comes from inputs' sizes is worked out before the engine runs
            yield Rejection(f"its argument {source.name} ({verdict.target}) is computed in Python, from data")


def _size_limits(node: torch.fx.Node) -> Iterator[Rejection]:
    """Engines make sizes where the operator is known to, and its converter says how."""
    if node.target not in READS_DATA and torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
        for symbol in sorted(new_symbols(node)):
            yield Rejection(f"its result has a size, {symbol}, which only running it tells")


def _takes(node: torch.fx.Node, value: torch.SymFloat) -> bool:
    """Whether an operator takes a float that the host computes from sizes, and engines are given."""
    return node.target in TAKES_FLOATS and not free_unbacked_symbols(value)


def _complex_limits(node: torch.fx.Node) -> Iterator[Rejection]:
    for what, value in _values(node):
        if isinstance(value, torch.Tensor) and value.is_complex():
            name, target = str(value.dtype).removeprefix("torch."), qualified_name(node.target)
            yield Rejection(
                f"{what} is {name}: engines have pairs of reals, which are put together and taken apart in PyTorch"
                if is_border(node.target)
                else f"{what} is {name}, and no rule says {target} on pairs of reals"
            )


def _tensor_limits(what: str, value: torch.Tensor, settings: CompilationSettings) -> Iterator[Rejection]:
    name = str(value.dtype).removeprefix("torch.")
    if value.dtype == torch.float64 and not settings.truncate_double:
        yield Rejection(
            f"{what} is float64, which TensorRT does not have", "pass truncate_double=True to compute it in float32"
        )
    elif value.dtype == torch.int8 and not CAPABILITIES.int8_activations:
        yield Rejection(f"{what} is int8, which {CAPABILITIES.flavour} takes for quantized weights only", "use int32")
    elif value.dtype not in DTYPES and value.dtype != torch.float64 and not value.is_complex():
        yield Rejection(f"{what} is {name}, which TensorRT does not have")
    if value.dim() > MAX_RANK:
        yield Rejection(f"{what} has rank {value.dim()}, TensorRT takes at most {MAX_RANK}")
    if value.layout != torch.strided:
        yield Rejection(f"{what} has layout {value.layout}, TensorRT has dense tensors only")


def _values(node: torch.fx.Node) -> Iterable[tuple[str, Any]]:
    """The node's result and inputs, each with a name for messages."""
    results, _ = tree_flatten(node.meta.get("val"))
    yield from ((f"the result {node.name}", r) for r in results)
    yield from ((f"its input {n.name}", n.meta.get("val")) for n in node.all_input_nodes)
