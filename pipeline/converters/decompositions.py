"""Declare decompositions of operators, and list which of torch's decompositions this package uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

import torch
import torch._decomp
from torch._ops import OpOverload, OpOverloadPacket

from pipeline.aten.support import function_name
from pipeline.converters.declare import attach, collect, reason_never_called, records_of, target_of
from pipeline.errors import UnreachedWarning, warn
from pipeline.frozen import FrozenDict

Op: TypeAlias = OpOverload[..., Any]
Decomposition: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE: Final = "__decomposition_declarations__"
"""The name of the function attribute that stores the operators which the function decomposes."""


def register_torch_trt_decomposition(
    op: Op | OpOverloadPacket[..., Any] | str, *, registry: MutableMapping[Op, Decomposition] | None = None
) -> Callable[[F], F]:
    """Declare a function as a decomposition of `op`, and return it; no table changes.

    Repeatable. `op` is an `OpOverload`, its name, or an `OpOverloadPacket`: all its overloads that only return tensors.
    `registry` is a dict of the caller's, to which the function is added too (`DecompositionTable(registry)` converts it
    to a table). A table is immutable: its method `register` returns a new table with the function.
    """
    operators = _functional_overloads(op)
    for reason in filter(None, map(reason_never_called, operators or (op,))):
        warn(reason, UnreachedWarning)
    if registry is not None and not isinstance(registry, MutableMapping):
        raise TypeError(
            f"registry is {registry!r}: expected a dict, to which the function is added. A table is immutable: "
            "pipeline.DECOMPOSITIONS.register(function) returns a new one"
        )

    def declare(function: F) -> F:
        table: MutableMapping[Op, Decomposition] = {} if registry is None else registry
        for each in operators:
            if table.setdefault(each, function) is not function:
                raise ValueError(f"the dict passed as registry already decomposes {each}: delete this key first")
        return attach(function, ATTRIBUTE, operators)

    return declare


class DecompositionTable(FrozenDict[Op, Decomposition]):
    """An immutable mapping from operators to decompositions: methods that change it return a new table."""

    __slots__ = ()

    @classmethod
    def of(cls, *modules: ModuleType) -> DecompositionTable:
        """Return a table of the decompositions that modules declare; `ValueError` if two are for the same operator."""
        found: dict[Op, Decomposition] = {}
        for op, function in _declared_decompositions(collect(modules, ATTRIBUTE)):
            if found.setdefault(op, function) is not function:
                names = f"{function_name(found[op])} and {function_name(function)}"
                raise ValueError(f"the modules declare two decompositions of {op}: {names}. Keep one of them")
        return cls(found)

    def register(self, *functions: Decomposition) -> DecompositionTable:
        """Return a new table with these declared functions, replacing decompositions of the same operators."""
        return self | DecompositionTable(_declared_decompositions(functions))

    def without(self, *ops: Op | OpOverloadPacket[..., Any]) -> DecompositionTable:
        """Return a new table without the decompositions of these operators."""
        dropped = {op for key in ops for op in _functional_overloads(key)}
        return DecompositionTable((op, function) for op, function in self.items() if op not in dropped)

    def __or__(self, other: DecompositionTable) -> DecompositionTable:
        """Return a table of both tables' decompositions; for an operator in both, `other`'s decomposition is used."""
        return DecompositionTable({**self, **other}) if isinstance(other, DecompositionTable) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __repr__(self) -> str:
        return f"<DecompositionTable: {len(self)} operators>"


def _functional_overloads(key: object) -> tuple[Op, ...]:
    """Return the operator that a key names; for a packet, its overloads with tensors that mutate nothing."""
    if isinstance(key, OpOverloadPacket):
        overloads = (getattr(key, name) for name in key.overloads())
        return tuple(op for op in overloads if not op._schema.is_mutable and "Tensor" in str(op._schema))
    if isinstance(op := target_of(key), OpOverload):
        return (op,)
    raise TypeError(f"cannot decompose {key!r}: expected an OpOverload such as torch.ops.aten.addcmul.default")


def select_decompositions(
    decompositions: DecompositionTable, enabled: Iterable[Any] | None, disabled: Iterable[Any] | None
) -> tuple[DecompositionTable, frozenset[Op]]:
    """Return (the table plus torch's decompositions of operators in ``enabled``, the operators in ``disabled``).

    Raises:
        ValueError: an operator is enabled and disabled, or enabled though torch has no decomposition of it.
    """
    given, left = _as_collection(enabled, "enabled"), _as_collection(disabled, "disabled")
    on, off = _all_functional_overloads(given) - torch_enabled_decompositions, _all_functional_overloads(left)
    if both := sorted(map(str, _all_functional_overloads(given) & off)):
        raise ValueError(f"{both[0]} is in torch_enabled_decompositions and torch_disabled_decompositions: remove one")
    off = off - torch_disabled_decompositions if off >= torch_disabled_decompositions else off
    if missing := sorted(str(op) for op in on if op not in torch._decomp.decomposition_table):
        raise ValueError(
            f"torch_enabled_decompositions has {missing[0]}, which torch does not decompose; "
            "add your own with decompositions=pipeline.DECOMPOSITIONS.register(…)"
        )
    for key in left:
        if not any(op in decompositions or _has_torch_decomposition(op) for op in _functional_overloads(key)):
            why = "neither pipeline nor torch has a decomposition of this operator"
            warn(f"{key} in torch_disabled_decompositions has no effect: {why}", UnreachedWarning)
    theirs = DecompositionTable({op: torch._decomp.decomposition_table[op] for op in on if op not in decompositions})
    return theirs | decompositions, off


def _has_torch_decomposition(op: Op) -> bool:
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return composite or op in torch._decomp.decomposition_table


def _as_collection(ops: Iterable[Any] | None, kind: str) -> tuple[Any, ...]:
    """Return the operators in the setting ``torch_<kind>_decompositions``; raise a TypeError if it is no collection."""
    if isinstance(ops, str | bytes | OpOverload | OpOverloadPacket) or not isinstance(ops, Iterable | None):
        raise TypeError(f"torch_{kind}_decompositions is {ops!r}: expected a collection of operators, such as a set")
    return tuple(ops or ())


def _all_functional_overloads(keys: Iterable[Any]) -> frozenset[Op]:
    """Return the operators that the keys name; for a packet, its overloads that mutate nothing."""
    return frozenset(op for key in keys for op in _functional_overloads(key))


def _declared_decompositions(functions: Iterable[Decomposition]) -> Iterator[tuple[Op, Decomposition]]:
    for function in functions:
        if (declared := records_of(function, ATTRIBUTE)) is None:
            raise TypeError(f"{function!r} is no decomposition: decorate it with @register_torch_trt_decomposition(op)")
        yield from ((op, function) for op in declared)


NOT_CORE: Final = """
    aten._addmm_activation.default aten.addmv.default aten.dist.default aten.elu.default aten.hardtanh.default
    aten.index_select.default aten.leaky_relu.default aten.lift.default aten.lift_fresh.default
    aten.linalg_vector_norm.default aten.logical_xor.default aten.narrow_copy.default
    aten.permute_copy.default aten.tril_indices.default aten.triu_indices.default aten.unbind_copy.int
    aten.view_copy.default
"""
"""Operators that torch can decompose, although it classifies them as core ATen or not at all. A decomposition is used
only if no converter accepts the node, so that the node does not split an engine."""

DISABLED: Final = {
    "TensorRT has a layer for it, which takes every case": """
        aten._log_softmax.default aten._softmax.default aten.addmm.default aten.constant_pad_nd.default
        aten.cumsum.default aten.embedding.default aten.gelu.default aten.max_pool2d_with_indices.default
        aten.max_pool3d_with_indices.default aten.relu.default aten.split_with_sizes.default
    """,
    "TensorRT normalises in one layer, which accumulates in fp32": """
        aten._native_batch_norm_legit_no_training.default aten._native_batch_norm_legit.no_stats
        aten.native_batch_norm.default aten.native_group_norm.default aten.native_layer_norm.default
    """,
    "torch says it with strides or masked indices, where a slice or a scatter does": """
        aten.diagonal_scatter.default aten.slice.Tensor aten.slice_scatter.default aten.unfold.default
    """,
    "torch says it in prims, which have no converters": """
        aten.cumprod.default aten.mean.default aten.mean.dim aten.var.correction aten.var_mean.correction
        aten.where.self
    """,
    "torch takes the sizes of dynamic dims for constants, or leaves their arithmetic to Python": """
        aten._adaptive_avg_pool2d.default aten.grid_sampler_2d.default aten.upsample_bicubic2d.default
        aten.upsample_bicubic2d.vec aten.upsample_bilinear2d.default aten.upsample_bilinear2d.vec
        aten.upsample_linear1d.default aten.upsample_nearest1d.default aten.upsample_nearest2d.default
        aten.upsample_nearest2d.vec aten.upsample_nearest3d.default aten.upsample_trilinear3d.default
        aten.upsample_trilinear3d.vec
    """,
    "it draws random numbers: only the operator itself draws those that eager draws": """
        aten.bernoulli.default aten.cauchy.default aten.exponential.default aten.geometric.default
        aten.log_normal.default aten.native_dropout.default aten.normal.Tensor_Tensor aten.normal.Tensor_float
        aten.normal.float_Tensor aten.normal.float_float aten.uniform.default
    """,
}
"""Operators that are not decomposed because torch's decomposition is worse than the operator itself, by the reason."""


def _decomposed_by_torch(names: str) -> frozenset[Op]:
    """Return the operators of these names (separated by spaces) that this version of torch can decompose."""
    table = torch._decomp.decomposition_table
    by_name = {str(op): op for op in table if isinstance(op, OpOverload)}
    return frozenset(by_name[name] for name in names.split() if name in by_name)


_CORE: Final = frozenset(
    op
    for op in torch._decomp._core_aten_decompositions_post_autograd()
    if isinstance(op, OpOverload) and not op._schema.is_mutable
)
"""The functional operators, except composites, that torch decomposes to core ATen in a functionalized graph."""

_WHOLE: Final = (
    "TensorRT has a layer for it, which takes every case",
    "TensorRT normalises in one layer, which accumulates in fp32",
)

torch_disabled_decompositions: Final = _decomposed_by_torch(" ".join(DISABLED.values()))
"""Operators that torch can decompose, but that are not decomposed by default: a converter or PyTorch runs them."""

torch_whole_decompositions: Final = _decomposed_by_torch(" ".join(DISABLED[why] for why in _WHOLE))
"""Operators whose disabled decomposition is correct: it is used if it leads to an operator with a user's converter."""

torch_enabled_decompositions: Final = (_CORE | _decomposed_by_torch(NOT_CORE)) - torch_disabled_decompositions
"""Operators that are decomposed by torch's own decomposition if no converter accepts the node."""


def get_decompositions(table: DecompositionTable) -> Mapping[Op, Decomposition]:
    """Return the decompositions in ``table``; for other operators in `torch_enabled_decompositions`, torch's."""
    torchs = {op: torch._decomp.decomposition_table[op] for op in sorted(torch_enabled_decompositions, key=str)}
    return FrozenDict({**torchs, **table})
