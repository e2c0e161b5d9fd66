"""Look up the converter that accepts a node, or the reasons why every candidate rejects it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import isawaitable
from typing import Any, TypeAlias

import attrs
import torch
from torch._ops import OpOverloadPacket
from torch.fx import Node

from pipeline.aten.naming import module_path_in
from pipeline.aten.support import Choice, ConverterSupport, Declaration, Entry, Rejection, Target, function_name
from pipeline.converters.declare import targets_of_key
from pipeline.converters.unsupported import reason_without_converter
from pipeline.frozen import FrozenDict
from pipeline.recipes import qualified_name
from pipeline.settings import CompilationSettings
from pipeline.trt import CAPABILITIES

log = logging.getLogger(__name__)

Candidates: TypeAlias = FrozenDict[Any, tuple[Declaration, ...]]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@attrs.frozen
class Refusal:
    """The reasons why no converter accepts a node; its truth value is False."""

    reasons: tuple[Rejection, ...]

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "; ".join(map(str, self.reasons))


class Lookup(Mapping[Any, Entry]):
    """A mapping from targets and nodes to converters; for a node, its arguments and the settings decide which.

    A key is a node (`lookup[node]` is the converter that accepts it, `node in lookup` whether one does) or a target
    (`lookup[target]` is its first candidate, `target in lookup` whether it has any). An operator packet or a name means
    its first overload that has a converter.
    """

    __slots__ = ()

    settings: CompilationSettings
    """The compilation settings with which lookups of nodes are decided."""

    candidates: Candidates
    """For each target, its converters' declarations, in the order in which they are tried."""

    def __getitem__(self, key: Node | Target) -> Entry:
        if isinstance(key, Node):
            found = self.choose(key)
            if isinstance(found, Refusal):
                raise KeyError(f"no converter accepts {key.name}: {found}")
            return found.entry()
        if not (candidates := self._candidates_of(key)):
            raise KeyError(f"no converter for {qualified_name(key)}")
        return _make_choice(candidates[0]).entry()

    def __contains__(self, key: object) -> bool:
        return bool(self.choose(key)) if isinstance(key, Node) else bool(self._candidates_of(key))

    def _candidates_of(self, key: object) -> tuple[Declaration, ...]:
        """Return the declarations for a target, an operator packet or an operator name."""
        if not isinstance(key, OpOverloadPacket | str):
            return self.candidates.get(key, ())
        try:
            return next((self.candidates[op] for op in targets_of_key(key) if op in self.candidates), ())
        except ValueError:  # no operator has this name
            return ()

    def __iter__(self) -> Iterator[Target]:
        return iter(self.candidates)

    def __len__(self) -> int:
        return len(self.candidates)

    def choose(self, node: Node) -> Choice | Refusal:
        """Return the first converter that accepts the node, or else the reasons why each converter rejects it."""
        if node.op != "call_function":
            return Refusal((Rejection(f"{node.name} is a {node.op} node: only call_function nodes are converted"),))
        if is_kept_in_torch(node.target, node.meta, self.settings):
            return Refusal((Rejection(f"torch_executed_ops keeps {qualified_name(node.target)} in PyTorch"),))
        reasons: dict[Rejection, None] = {}
        for candidate in self.candidates.get(node.target, ()):
            rejection = find_rejection(candidate.support, node, self.settings)
            if rejection is None:
                return _make_choice(candidate)
            reasons[rejection] = None
        if not reasons:
            name, why = qualified_name(node.target), reason_without_converter(node.target)
            return Refusal((Rejection(f"{name} runs in PyTorch: {why}" if why else f"no converter for {name}"),))
        return Refusal(tuple(reasons))

    def other_choices(self, node: Node) -> tuple[Choice, ...]:
        """Return the converters that accept the node, in lookup order, without the first, which `choose` returns."""
        candidates = self.candidates.get(node.target, ()) if node.op == "call_function" else ()
        if len(candidates) < 2:
            return ()
        return tuple(_make_choice(c) for c in candidates if find_rejection(c.support, node, self.settings) is None)[1:]

    def explain(self, node: Node) -> Choice | tuple[Rejection, ...]:
        """Return the converter that accepts the node, or a tuple of the reasons why no converter does."""
        found = self.choose(node)
        return found.reasons if isinstance(found, Refusal) else found

    def unique_targets(self) -> frozenset[Target]:
        """Return all targets that have a converter."""
        return frozenset(self.candidates)

    def get_all_converters_with_target(
        self, target: Target, return_registry_info: bool = False
    ) -> tuple[ConverterSupport, ...] | tuple[tuple[ConverterSupport, ...], dict[str, int]]:
        """Return a target's converters in lookup order, without validation; optionally also their number per module."""
        converters = tuple(declaration.support for declaration in self._candidates_of(target))
        return (converters, _count_by_module(converters)) if return_registry_info else converters

    def get_converter_support_info(self) -> dict[str, dict[str, int]]:
        """Return the number of converters per module for each target, sorted by the target's name."""
        info = {
            qualified_name(target): _count_by_module(declaration.support for declaration in declarations)
            for target, declarations in self.candidates.items()
        }
        return dict(sorted(info.items()))

    def display_all_available_converters(self) -> str:
        """Return a text with a line for each target: the number of converters per module."""
        info = self.get_converter_support_info()
        rows = [
            f"  {target}: {', '.join(f'{n} in {origin}' for origin, n in where.items())}"
            for target, where in info.items()
        ]
        return "\n".join((f"{len(rows)} targets have converters", *rows))


@attrs.frozen(eq=False, repr=False)
class BoundRegistry(Lookup):
    """A registry whose lookups use given settings, as returned by `registry.bind(settings)`."""

    registry: Lookup
    settings: CompilationSettings = attrs.field(validator=attrs.validators.instance_of(CompilationSettings))
    candidates: Candidates = attrs.field(init=False)

    @candidates.default
    def _default_candidates(self) -> Candidates:
        """Return the registry's converter declarations for each target, in the order in which they are tried."""
        return self.registry.candidates

    def __repr__(self) -> str:
        return f"{self.registry!r}.bind({self.settings!r})"


def _make_choice(candidate: Declaration) -> Choice:
    """Return the `Choice` of a declared converter: its support, calling convention and priority."""
    return Choice(candidate.support, candidate.convention, candidate.priority)


def _count_by_module(converters: Iterable[ConverterSupport]) -> dict[str, int]:
    modules = [converter.name.rpartition(".")[0] for converter in converters]
    return {module: modules.count(module) for module in sorted(set(modules))}


def is_kept_in_torch(target: Any, meta: Mapping[str, Any], settings: CompilationSettings) -> bool:
    """Return whether the user's settings exclude this operator, or the module in the node's ``meta``, from engines."""
    if not settings.torch_executed_ops:
        return False
    named = qualified_name(target) in settings.torch_executed_ops
    return named or settings.runs_in_torch(target, module_path_in(meta))


def find_rejection(support: ConverterSupport, node: Node, settings: CompilationSettings) -> Rejection | None:
    """Return the reason why a converter rejects a node; None if it accepts the node. Symbolic dims are checked before
    the validator, since a validator for static shapes might add guards on symbolic dims."""
    static = reject_dynamic_sizes(support, settings, node.args, node.kwargs, node.meta.get("val"))
    if static is not None:
        return static
    verdict = _call_validator(support, node, settings) if support.capability_validator else None
    if verdict is not None or CAPABILITIES.nonzero or not support.requires_output_allocator:
        return verdict
    return Rejection(
        f"the result of the converter {support.name} has a data-dependent size, and {CAPABILITIES.flavour} has "
        "no layers whose results have such sizes"
    )


def reject_dynamic_sizes(
    support: ConverterSupport, settings: CompilationSettings, args: Any, kwargs: Any, result: Any
) -> Rejection | None:
    """Return the reason why a converter for static shapes rejects a call with symbolic sizes; None if it accepts."""
    if support.supports_dynamic_shapes or settings.assume_dynamic_shape_support:
        return None
    places = ", ".join(describe_symbolic_dims(args, kwargs, result))
    return Rejection(f"the converter {support.name} supports static shapes only, but {places}") if places else None


def _call_validator(support: ConverterSupport, node: Node, settings: CompilationSettings) -> Rejection | None:
    """Return the reason why a converter's validator rejects a node; None if it accepts the node."""
    validator = support.capability_validator
    assert validator is not None
    name = function_name(validator)
    try:
        verdict: object = validator(node, settings) if _accepts_settings(validator) else validator(node)  # type: ignore[call-arg]
    except Exception as error:  # whatever a validator of the user's raises is a reason, not our crash
        _log_once(f"{name}, the validator of {support.name}, failed: {type(error).__name__}: {error}")
        return Rejection(f"the converter's validator {name} failed: {type(error).__name__}: {error}")
    if isinstance(verdict, Rejection):
        return verdict
    if isinstance(verdict, str | None) or callable(verdict) or isawaitable(verdict):  # the last two are always true
        raise TypeError(
            f"the validator {name} of {support.name} returned {verdict!r} for {node.name}: expected True, or a reason "
            "as pipeline.Rejection(reason, hint)"
        )
    if isinstance(verdict, _SYMBOLIC):  # its truth value would add a guard on the graph's shapes
        return Rejection(f"the validator {name} returned the symbolic condition {verdict}: expected a bool")
    return None if verdict else Rejection(f"the validator {name} rejects this call", validator_summary(validator))


@lru_cache
def _accepts_settings(validator: object) -> bool:
    """Return whether a validator also takes the settings; validators written for other compilers take only the node."""
    try:
        inspect.signature(validator).bind(None, None)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # a builtin may have no signature
        return True
    return True


@lru_cache
def _log_once(text: str) -> None:
    """Log, once per process, that a validator failed. Nothing else reports it if another converter accepts the node."""
    log.warning("%s", text)


def validator_summary(validator: object) -> str:
    """Return the limit that a validator's docstring states, on one line."""
    return " ".join((getattr(validator, "__doc__", None) or "").split()) if hasattr(validator, "__name__") else ""


def describe_symbolic_dims(args: Any, kwargs: Any, result: Any) -> Iterator[str]:
    """Describe the symbolic dims of a call. Only types are examined, so no guard is added to a ShapeEnv."""
    for leaf in _flatten_containers((args, kwargs)):
        yield from (
            _describe_symbolic_sizes(leaf.meta.get("val"), leaf.name)
            if isinstance(leaf, Node)
            else _describe_symbolic_sizes(leaf, "an argument")
        )
    yield from _describe_symbolic_sizes(result, "its result")


def _describe_symbolic_sizes(value: Any, value_name: str) -> Iterator[str]:
    """Yield a text such as "dim 0 of x is s0" for each symbolic number or dim in a value, for an error message."""
    for leaf in _flatten_containers(value):
        if isinstance(leaf, _SYMBOLIC):
            yield f"{value_name} is {leaf}"
        elif isinstance(leaf, torch.Tensor):
            for dim, size in enumerate(leaf.shape):
                if isinstance(size, torch.SymInt):
                    yield f"dim {dim} of {value_name} is {size}"


def _flatten_containers(value: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists, tuples, slices and mappings (values only); other values as they are."""
    if isinstance(value, Mapping):
        value = [*value.values()]
    elif isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flatten_containers(item)
    else:
        yield value
