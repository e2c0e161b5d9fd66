"""Define the rules of mixed precision: which operators run in half precision, in float32, or in their inputs' dtype.

An operator without a rule runs in float32: only operators that are known to be safe in half precision use it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

import torch
from attrs import frozen
from torch._ops import OpOverload, OpOverloadPacket

from pipeline.aten.naming import module_path
from pipeline.aten.traits import CONTRACTIONS, PART, Kind, op_kind
from pipeline.records.executed_ops import ModulePredicate, entry_name, qualified_names
from pipeline.records.wording import items_of

Mode: TypeAlias = Literal["half", "float32", "inputs", "said"]
Excluded: TypeAlias = OpOverload[..., Any] | OpOverloadPacket[..., Any] | str | ModulePredicate


@frozen
class Rule:
    """A rule of mixed precision: how the dtype in which an operator runs is chosen (``mode``), and the reason.

    Modes: ``"half"``: float32 inputs are cast to half precision. ``"float32"``: inputs keep the dtypes that they have
    in the model, usually float32. ``"inputs"``: the widest dtype among the inputs other than parameters. ``"said"``:
    the call itself names its dtype, as a cast does, or has none.
    """

    mode: Mode
    reason: str


PRODUCTS = Rule("half", "products, accumulated in float32")
LOOKUPS = Rule("half", "a table of weights")
EXPONENTS = Rule("float32", "its range is wider than that of halves")
POINTWISE = Rule("inputs", "computed element by element")
MOVES = Rule("inputs", "it moves or selects elements")
WINDOWS = Rule("inputs", "sums of a few elements")
SAID = Rule("said", "it says its dtype")
OTHERS = Rule("float32", "norms, softmax, long sums, and what no rule names")

BY_TRAIT: Final[Mapping[Kind, Rule]] = {
    **dict.fromkeys(CONTRACTIONS, PRODUCTS),
    **dict.fromkeys((*PART, Kind.MIXES), MOVES),
    **dict.fromkeys((Kind.CASTS, Kind.READS), SAID),
    Kind.LOOKS_UP: LOOKUPS,
    Kind.RESAMPLES: WINDOWS,
    Kind.POINTWISE: POINTWISE,
}
"""The rule of mixed precision for each kind of operator."""

TABLE: Final[Mapping[Rule, str]] = {
    EXPONENTS: """
        exp exp2 expm1 log log2 log10 log1p pow float_power rsqrt reciprocal sinh cosh tan acos asin acosh erfinv
        softplus lgamma digamma polygamma logit xlogy special_xlog1py logaddexp logaddexp2
    """,
    POINTWISE: "prelu glu threshold",
    MOVES: """
        dropout feature_dropout alpha_dropout amax amin max min argmax argmin argsort max_pool1d max_pool2d max_pool3d
        max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
        slice_scatter select_scatter zeros_like ones_like full_like new_zeros new_ones new_full
    """,
    WINDOWS: "avg_pool1d avg_pool2d avg_pool3d batch_norm _native_batch_norm_legit_no_training",
    OTHERS: "grid_sampler grid_sampler_2d grid_sampler_3d",
}
"""The operators with a rule that differs from the rule of their kind, by rule."""

BY_NAME: Final = {name: rule for rule, names in TABLE.items() for name in names.split()}

STATISTICS: Final = ("batch_norm", "_native_batch_norm_legit_no_training")
"""Batch norms, whose statistics stay in their own dtype: they are folded into one multiplication and one addition."""


def op_name(target: object) -> str:
    """Return an operator's name without namespace and overload (``softmax``); an empty string for other targets."""
    return target._schema.name.removeprefix("aten::") if isinstance(target, OpOverload) else ""


def rule_for(node: torch.fx.Node) -> Rule:
    """Return the rule of mixed precision for a call in a graph."""
    target, name = node.target, op_name(node.target)
    if not isinstance(target, OpOverload | torch._ops.HigherOrderOperator):
        return SAID
    if name == "batch_norm" and node.args[5]:
        return OTHERS
    kind = op_kind(target)
    rule = BY_NAME.get(name) or (OTHERS if kind is None else BY_TRAIT.get(kind, OTHERS))
    if rule.mode == "inputs" and isinstance(node.meta.get("val"), torch.Tensor):
        numbers = (v for v in (*node.args, *node.kwargs.values()) if isinstance(v, float | int))
        if any(torch.finfo(torch.float16).max < abs(v) < math.inf for v in numbers):
            return EXPONENTS  # a mask of -3.4e38, say
    return rule


def check_exclude(value: object) -> tuple[Excluded, ...]:
    """Check the setting ``exclude``; raise a `TypeError` for any entry but an operator, pattern or predicate."""
    entries = tuple(items_of(value, "exclude must be a collection of operators, patterns or predicates"))
    for entry in entries:
        if not isinstance(entry, OpOverload | OpOverloadPacket | str) and not callable(entry):
            raise TypeError(
                f"exclude: {entry!r} is not an operator, a pattern such as 'layers.*', or a function of a module path"
            )
    return entries


def excludes(entry: Excluded, target: object, path: str) -> bool:
    """Return whether an entry of ``exclude`` matches an operator, the module at a path, or a module around it."""
    if isinstance(entry, OpOverload):
        return target is entry
    if isinstance(entry, OpOverloadPacket):
        return isinstance(target, OpOverload) and target.overloadpacket is entry
    if isinstance(entry, str):
        names = set(qualified_names(target))
        if isinstance(target, OpOverload):
            names |= qualified_names(str(target.overloadpacket))
        for above in accumulate(path.split("."), "{}.{}".format) if path else ():
            names |= {above, f".{above}"}  # ``*.head`` matches ``head`` too
        return any(fnmatchcase(name, entry) for name in names)
    return bool(entry(path))


def warn_of_unmatched(exclude: Iterable[Excluded], graph: torch.fx.Graph, stage: str, log: logging.Logger) -> None:
    """Log a warning for each entry of a stage's ``exclude`` that matches no operator or module of the graph."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    for entry in exclude:
        if not any(excludes(entry, node.target, module_path(node)) for node in calls):
            log.warning("%s: %s in exclude matches no operator or module of this program", stage, entry_name(entry))
