"""validate: ``Program`` → ``Validated``. Find the converter of each node, or all reasons why none accepts it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest

import torch
from attrs import evolve, field, frozen
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from pipeline.aten.dtypes import short_name
from pipeline.aten.op_predicates import is_pointwise
from pipeline.aten.support import Choice, Declaration, Rejection
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import aten
from pipeline.converters import DECOMPOSITIONS
from pipeline.converters.decompositions import DecompositionTable, Op
from pipeline.converters.lookup import find_rejection
from pipeline.converters.registry import BoundRegistry, ConverterRegistry
from pipeline.converters.user_registrations import UserRegistrations
from pipeline.decomposition.candidates import Decompositions
from pipeline.decomposition.complex_rules import joins_or_splits_complex
from pipeline.decomposition.control_flow import expansion_obstacle
from pipeline.decomposition.fold import fold_constants
from pipeline.decomposition.rewriter import Rewriter
from pipeline.decomposition.unused_registrations import unused_registrations
from pipeline.errors import UnreachedWarning, source_line, warn
from pipeline.frozen import FrozenDict
from pipeline.partitioning.flow import introduced_symbols
from pipeline.program import READS_DATA, Program, Validated, Verdict
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import MAX_SIZE, Expr, shape_of
from pipeline.trt import CAPABILITIES

MAX_RANK = 8
"""TensorRT's maximum number of dimensions of a tensor."""

DTYPES = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.int8, torch.uint8}
)
"""The dtypes that tensors in TensorRT networks can have."""


TAKES_FLOATS = frozenset(
    {
        *(getattr(aten, name).Tensor for name in ("add", "sub", "mul", "div")),
        *(getattr(aten, name).Scalar for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")),
        *(aten.pow.Tensor_Scalar, aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar),
        aten.scalar_tensor.default,
    }
)
"""Operators whose converters accept, for a tensor argument, also a float that the host computes from sizes."""


@frozen
class Validate:
    """The validate stage. It looks up each node's converters in the registry, and checks dtypes and ranks itself.

    The user's validators run in this stage for the first time, since they need a complete graph. Calls that none of the
    user's converters accepts are decomposed as if those converters did not exist. Converters that were not used
    although the model calls their operator are recorded (``Program.unreached``), and a warning names them.
    """

    registry: ConverterRegistry = field(repr=False)
    decompositions: DecompositionTable = field(default=DECOMPOSITIONS, repr=False)
    disabled: frozenset[Op] = field(default=frozenset(), repr=False)
    name: str = "validate"

    def __call__(self, program: Program) -> Validated:
        """Return the program with a verdict for each call in its graph: a converter, or reasons why there is none."""
        claims = UserRegistrations.of(self.registry, self.decompositions, program.settings)
        ways = Decompositions(self.decompositions, self.disabled)
        verdicts = _verdicts(program, claims.lookup)
        refusals: dict[Declaration, Rejection] = {}
        while refused := _refused_calls(program, verdicts, claims):
            asked = ((each, node) for node in refused for each in claims.declarations if each.key == node.target)
            found = ((each, find_rejection(each.support, node, claims.lookup.settings)) for each, node in asked)
            refusals |= {declaration: rejection for declaration, rejection in found if rejection is not None}
            further = _decompose_calls(program, refused, claims, ways)
            if further is program:
                break
            program, verdicts = further, _verdicts(further, claims.lookup)
        unused = unused_registrations(program, verdicts, claims, ways, refusals)
        for each in unused:
            warn(str(each), UnreachedWarning)
        return Validated(evolve(program, unreached=unused) if unused else program, verdicts)


def _verdicts(program: Program, lookup: BoundRegistry) -> FrozenDict[str, Verdict]:
    """Return, by node name, the `Verdict` on each call in a program's graph: the converter that accepts it, or why none
    does. ``lookup``: the registry of converters, for the program's settings."""
    verdicts: dict[str, Verdict] = {}
    for node in program.graph.nodes:
        if node.op == "call_function":
            verdicts[node.name] = _verdict(node, lookup, program, verdicts)
    return FrozenDict(verdicts)


def _refused_calls(program: Program, verdicts: Mapping[str, Verdict], claims: UserRegistrations) -> list[torch.fx.Node]:
    """Return the calls left undecomposed for the user's converters (``claims``) that none of these accepts."""
    users = {declaration.key for declaration in claims.declarations}
    calls = (node for node in (program.graph.nodes if users else ()) if node.target in users)
    return [node for node in calls if not claims.is_from_user(verdicts[node.name].choice)]


def _decompose_calls(
    program: Program, calls: Iterable[torch.fx.Node], claims: UserRegistrations, decompositions: Decompositions
) -> Program:
    """Decompose ``calls``, which the user's converters (in ``claims``) refused, as if these converters did not exist.
    Return the same program if none of the calls can be decomposed."""
    rewriter = Rewriter(program, claims, decompositions)
    names = {node.name for node in calls}
    made = fold_constants(program.with_graph(rewriter.decompose_refused(names)))
    if not names - {node.name for node in made.graph.nodes if node.op == "call_function"}:
        return program
    return evolve(made, decomposed=program.decomposed | (claims.decomposed_operators & rewriter.applied))


def _verdict(node: torch.fx.Node, lookup: BoundRegistry, program: Program, earlier: dict[str, Verdict]) -> Verdict:
    """Return a node's verdict: a converter, or the reasons why none runs it. ``earlier``: the verdicts so far."""
    target, found = qualified_name(node.target), lookup.choose(node)
    choice = found if isinstance(found, Choice) else None
    allocated = choice is not None and choice.support.requires_output_allocator
    limits = tuple(_limits(node, program, earlier, allocated))
    if choice is not None and not limits:
        return Verdict(node.name, target, choice, others=lookup.other_choices(node))
    reasons = () if isinstance(found, Choice) else found.reasons
    return Verdict(node.name, target, None, (*limits, *reasons), source_line(node))


def _limits(node: torch.fx.Node, program: Program, earlier: dict[str, Verdict], allocated: bool) -> Iterator[Rejection]:
    """Yield reasons to refuse a node by rules for all operators. ``allocated``: whether it needs output allocators."""
    yield from islice(_complex_rejections(node), 1)
    yield from map(Rejection, filter(None, [expansion_obstacle(node)]))
    makes_sizes = node.target in READS_DATA or torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
    for symbol in sorted(introduced_symbols(node)) if not (allocated or makes_sizes) else ():
        yield Rejection(f"the result has a size, {symbol}, that is known only after the operator runs")
    yield from islice(_untuned_size_rejections(node, program), 1)
    for role, value in _result_and_inputs(node):
        if isinstance(value, torch.SymBool | torch.SymFloat):
            is_float = isinstance(value, torch.SymFloat)
            if not is_float or node.target not in TAKES_FLOATS or free_unbacked_symbols(value):
                kind = "float" if is_float else "bool"
                yield Rejection(f"{role} is a symbolic {kind}, which Python computes outside of engines")
        elif isinstance(value, torch.Tensor):
            yield from _tensor_rejections(role, value, program.settings)
            yield from islice(_unbounded_size_rejections(role, value, program), 1)
    for source in node.all_input_nodes:
        verdict, value = earlier.get(source.name), source.meta.get("val")
        if verdict is None or verdict.supported or not isinstance(value, torch.SymInt):
            continue
        if free_unbacked_symbols(value):  # values computed from inputs' sizes are known before the engine runs
            yield Rejection(f"Python computes the argument {source.name} ({verdict.target}) from values of tensors")


def _complex_rejections(node: torch.fx.Node) -> Iterator[Rejection]:
    """Yield a rejection for each complex tensor among a node's result and inputs."""
    if node.target is operator.getitem:  # its operator has the reason
        return
    for role, value in _result_and_inputs(node):
        if isinstance(value, torch.Tensor) and value.is_complex():
            dtype = short_name(value.dtype)
            if joins_or_splits_complex(node.target):
                why = "engines store pairs of reals instead, and PyTorch converts between the two"
                yield Rejection(f"{role} is {dtype}: {why}")
            else:
                why = f"in engines {qualified_name(node.target)} has no implementation on pairs of reals"
                hint = "compute with pairs of reals (torch.view_as_real), or let PyTorch run it"
                yield Rejection(f"{role} is {dtype}, and {why}", hint)


def _tensor_rejections(role: str, value: torch.Tensor, settings: CompilationSettings) -> Iterator[Rejection]:
    """Yield rejections of a tensor (``role`` in words) whose dtype, rank or layout TensorRT does not support."""
    dtype = short_name(value.dtype)
    if value.dtype == torch.float64 and not settings.truncate_double:
        hint = "pass truncate_double=True to compute it in float32"
        yield Rejection(f"{role} is float64, which TensorRT does not support", hint)
    elif value.dtype == torch.int8 and not CAPABILITIES.int8_activations:
        yield Rejection(f"{role} is int8, which {CAPABILITIES.flavour} allows for quantized weights only", "use int32")
    elif value.dtype not in DTYPES and value.dtype != torch.float64 and not value.is_complex():
        yield Rejection(f"{role} is {dtype}, which TensorRT does not support")
    if value.dim() > MAX_RANK:
        yield Rejection(f"{role} has rank {value.dim()}, but TensorRT supports at most {MAX_RANK}")
    if value.layout != torch.strided:
        yield Rejection(f"{role} has layout {value.layout}, but TensorRT supports dense tensors only")


def _unbounded_size_rejections(role: str, value: torch.Tensor, program: Program) -> Iterator[Rejection]:
    """Yield a rejection for a data-dependent size of ``value`` without a bound, as in ``torch.arange(int(x.item()))``.
    ``role``: what ``value`` is, in the words of the message (``the result add``)."""
    for size in shape_of(value):
        names = [] if isinstance(size, int) else [s.name for s in size.free_symbols]
        any_number = any(program.shapes[name].min < 0 and program.shapes[name].max > MAX_SIZE for name in names)
        of_inputs = bool(program.inputs)  # a block in a converter has none: its sizes may be the network's own
        if any_number or (of_inputs and _is_data_dependent(size) and program.shapes.bounds(size).max > MAX_SIZE):
            why = f"{role} has a size, {program.shapes.words(size)}, that depends on data and has no bound"
            yield Rejection(why, "compute it from sizes of inputs, or declare its bounds with torch._check")


def _untuned_size_rejections(node: torch.fx.Node, program: Program) -> Iterator[Rejection]:
    """Yield a rejection of an elementwise operator if only data decides whether the sizes of its inputs in a dim are
    equal, as in ``x[mask] + y``, and the sizes that TensorRT would tune the engine for (``opt``) are not."""
    values = [n.meta.get("val") for n in node.all_input_nodes] if is_pointwise(node) else []
    shapes = [shape_of(value)[::-1] for value in values if isinstance(value, torch.Tensor)]
    for sizes in zip_longest(*shapes, fillvalue=1):
        if any(map(_is_data_dependent, sizes)) and len({program.shapes.bounds(size).opt for size in sizes} - {1}) > 1:
            words = " and ".join(dict.fromkeys(program.shapes.words(size) for size in sizes if size != 1))
            why = f"the inputs have sizes {words} in one dim, and only the data decides whether they are equal"
            instead = "pass an input whose values never change as pipeline.Constant"
            yield Rejection(why, f"compute both from sizes of inputs; {instead}")


def _is_data_dependent(size: Expr) -> bool:
    return not isinstance(size, int) and bool(free_unbacked_symbols(size))


def _result_and_inputs(node: torch.fx.Node) -> Iterable[tuple[str, object]]:
    """Yield pairs (description for error messages, value) of a node's result and of its inputs."""
    yield from ((f"the result {node.name}", result) for result in tree_leaves(node.meta.get("val")))
    held = node.args[:2] if op_kind(node.target) is Kind.DEQUANTIZES else ()  # quantized values and scales, in few bits
    yield from ((f"its input {n.name}", n.meta.get("val")) for n in node.all_input_nodes if n not in held)
