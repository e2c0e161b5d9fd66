"""Merge the ranges of ``pipeline.Input`` with torch.export's ``dynamic_shapes``.

torch.export specializes dynamic dims whose example size is 0 or 1, so examples are created with larger sizes here. It
also raises the minimum of a ``Dim`` to 2 if inputs contain only dims that are derived from it (``4*s``); here such a
``Dim`` is replaced by one whose minimum is 2.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeAlias

import torch
from attrs import Factory, define, frozen
from torch.export import Dim, ExportedProgram
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from pipeline.aten.arguments import argument
from pipeline.aten.types import Argument, Spec, Target
from pipeline.errors import CaptureError
from pipeline.export_fixes import input_checks
from pipeline.export_fixes.error_attribution import Inputs
from pipeline.export_fixes.input_checks import bind_args, entries_by_dim
from pipeline.export_fixes.module_copy import distinct_tensor
from pipeline.inputs import Input, is_input
from pipeline.shapes.environment import expression
from pipeline.shapes.linear import solve_for

log = logging.getLogger(__name__)

HINT = "make the two ranges equal, or pass one of them"
STATIC = (-1, -1)
"""Stands for the bounds of a dim that ``dynamic_shapes`` declares static without stating its size."""


def is_dynamic_input(value: object) -> bool:
    """Return whether a value is a `pipeline.Input` with a dynamic size."""
    return isinstance(value, Input) and value.is_dynamic


def has_derived_dims(shapes: object) -> bool:
    """Return whether any dim in these dynamic shapes is derived from another dim, such as ``4*s``."""
    return any(hasattr(dim, "root") for dim in tree_flatten(shapes)[0])


def merge_dynamic_shapes(
    model: torch.nn.Module, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], shapes: Any
) -> object:
    """Return torch.export's ``dynamic_shapes`` for these inputs: the ranges of `Input` s merged with the user's
    ``shapes``. Raise `CaptureError` if a dim has two different ranges."""
    inputs = bind_args(model, args, kwargs)
    shapes = input_checks.group_varargs_entries(model, inputs, shapes)
    input_checks.check_dynamic_shapes(model, inputs, shapes)
    if callable(getattr(shapes, "dynamic_shapes", None)):  # a ShapesCollection
        shapes = shapes.dynamic_shapes(model, args, kwargs)
    shapes = input_checks.group_kwargs_entries(model, shapes)
    if any(map(is_dynamic_input, tree_flatten(inputs, is_leaf=is_input)[0])):
        specs = dict(zip(inputs, shapes, strict=False)) if isinstance(shapes, list | tuple) else dict(shapes or {})
        merger = _RangeMerger({dim.__name__ for dim in tree_flatten(shapes)[0] if isinstance(dim, Dim)})
        shapes = {name: merger.merge(name, value, specs.get(name)) for name, value in inputs.items()}
        shapes = tree_map(merger.apply_input_range, shapes)
    found = _set_root_minimums_to_two(shapes)
    _check_example_sizes(inputs, found)
    return found


def _check_example_sizes(inputs: Mapping[str, object], shapes: Spec) -> None:
    """Raise a `CaptureError` if an example tensor's size is outside the range that ``shapes`` has for the dim."""
    specs = dict(zip(inputs, shapes, strict=False)) if isinstance(shapes, list | tuple) else dict(shapes or {})
    rows = chain(*(input_checks.leaves_with_entries(name, value, specs.get(name)) for name, value in inputs.items()))
    given = (
        (path, x, *row) for path, x, spec in rows if isinstance(x, torch.Tensor) for row in entries_by_dim(spec).items()
    )
    for path, value, dim, entry in given:
        (low, high), size = STATIC if isinstance(entry, int) else _entry_bounds(entry), value.shape[dim]
        if (low is not None and size < low) or (high is not None and size > high >= 0):
            name = getattr(entry, "__name__", "its dynamic shape")
            ends = f"{low or 0} to {'any size' if high is None else high}"
            why = f"the example input {path} has size {size} in dimension {dim}, but {name} allows {ends}"
            raise CaptureError(why, "pass an example whose size is in the range, or a range that contains this size")


@define
class _RangeMerger:
    """Merges the ranges of `Input` s with ``dynamic_shapes``. ``names``: the names of dims that are in use."""

    names: set[str]
    ranges: dict[str, tuple[int, int, str]] = Factory(dict)
    count: int = -1

    def merge(self, path: str, value: Argument, user_entry: Spec) -> object:
        """Return one input's ``dynamic_shapes`` entry: the ranges of its `Input` s merged with the user's entry."""
        if isinstance(value, Input):
            self.count += 1
            return self.merge_input(path, value, entries_by_dim(user_entry)) or None
        if isinstance(value, torch.Tensor):
            self.count += 1
            return user_entry
        if type(value) in (list, tuple):
            given = user_entry if isinstance(user_entry, list | tuple) else [None] * len(value)
            return type(value)(
                self.merge(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(value, given, strict=True))
            )
        if type(value) is dict:
            return {k: self.merge(f"{path}[{k!r}]", v, (user_entry or {}).get(k)) for k, v in value.items()}
        parts, structure = tree_flatten(value, is_leaf=lambda part: part is not value)
        if len(parts) == 1 and parts[0] is value:
            return user_entry
        given = [] if user_entry is None else tree_flatten(user_entry, is_leaf=lambda part: part is not user_entry)[0]
        given = given if len(given) == len(parts) else [None] * len(parts)
        merged = [self.merge(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(parts, given, strict=True))]
        return nest_entries(value, merged, structure)

    def merge_input(self, path: str, value: Input, entries: dict[int, Any]) -> dict[int, Argument]:
        """Return the entries, by dim, of an `Input`: its own ranges merged with the user's ``entries``."""
        own: dict[int, Any] = {d: self.with_unique_name(dim) for d, dim in value.dynamic_shapes(self.count).items()}
        for dim, entry in entries.items():
            if value.shape is None:
                low, _, high = value.ranges[dim]
                own[dim] = self.merge_range(f"dimension {dim} of input {path}", low, high, entry)
            else:  # an Input of one shape is an example, as a tensor is
                own[dim] = entry
        return {dim: entry for dim, entry in own.items() if entry is not None}

    def with_unique_name(self, dim: Any) -> object:
        """Return the ``Dim`` by an unused name: dims of one name must be equal, but one Input may be passed twice."""
        name = dim.__name__
        while name in self.names:
            name += "_"
        self.names.add(name)
        return Dim(name, min=dim.min, max=dim.max)

    def merge_range(self, dim_name: str, low: int, high: int, entry: Spec) -> object:
        """Return a dim's ``dynamic_shapes`` entry with an Input's range; raise `CaptureError` if the ranges differ."""
        ends = _entry_bounds(entry)
        if low == high and (ends in ((low, low), STATIC) or not isinstance(entry, int | Dim)):
            return None
        if low == high or ends[0] not in (None, low) or ends[1] not in (None, high):
            both = f"{low}..{high} by pipeline.Input, {_entry_text(entry)} by dynamic_shapes"
            raise CaptureError(f"{dim_name} has two ranges: {both}", HINT)
        if isinstance(entry, Dim) and not hasattr(entry, "root"):
            other = self.ranges.setdefault(entry.__name__, (low, high, dim_name))
            if other[:2] != (low, high):
                both = f"{other[0]}..{other[1]} for {other[2]}, {low}..{high} for {dim_name}"
                raise CaptureError(f"Dim {entry.__name__!r} has two ranges by pipeline.Input: {both}", HINT)
            return entry
        return entry if isinstance(entry, Dim) else entry(min=low, max=high)

    def apply_input_range(self, entry: object) -> object:
        """Give a ``Dim`` (or ``s`` of ``4*s``) the range that an `Input` has for it; return other entries unchanged."""
        if not isinstance(entry, Dim):
            return entry
        root = getattr(entry, "root", entry)
        if root.__name__ not in self.ranges:
            return entry
        low, high, _ = self.ranges[root.__name__]
        ranged = Dim(root.__name__, min=low, max=high)
        return ranged if root is entry else _derive_from_new_root(entry, ranged, 0)


def nest_entries(container: object, entries: list[Argument], structure: Spec) -> object:
    """Return a container's ``dynamic_shapes``: its values' ``entries`` in the same Python container, or in a list for a
    library's pytree class (even transformers' dicts), as torch.export requires. ``structure``: its pytree spec."""
    own = isinstance(container, tuple) or type(container) in (list, dict, OrderedDict, defaultdict, deque)
    return tree_unflatten(entries, structure) if own else entries


def _entry_bounds(entry: Spec) -> tuple[int | None, int | None]:
    """Return the smallest and largest size that a ``dynamic_shapes`` entry allows; None for a missing bound."""
    if isinstance(entry, int):
        return entry, entry
    if isinstance(entry, Dim):
        return int(entry.min) or None, int(entry.max) if entry.max < 2**63 - 1 else None
    if entry.type.name == "STATIC":
        return STATIC
    return entry.min, entry.max


def _entry_text(entry: Spec) -> str:
    low, high = _entry_bounds(entry)
    if low == high:
        return "static" if (low, high) == STATIC else str(low)
    name = entry.__name__ if isinstance(entry, Dim) else f"Dim.{entry.type.name}"
    return f"{name} = {0 if low is None else low}..{'' if high is None else high}"


def _set_root_minimums_to_two(shapes: object) -> object:
    """Let each ``Dim`` that occurs only in derived dims (``4*s``) begin at 2, as torch.export requires."""
    dims = [d for d in tree_flatten(shapes)[0] if isinstance(d, Dim)]
    plain = {d.__name__ for d in dims if not hasattr(d, "root")}

    def shifted(entry: object) -> Argument:
        root = getattr(entry, "root", None)
        if root is None or root.__name__ in plain or root.min >= 2:
            return entry
        by = 2 - int(root.min)
        end = {"max": root.max + by} if root.max < 2**63 - 1 else {}
        return _derive_from_new_root(entry, Dim(root.__name__, min=2, **end), by)

    return tree_map(shifted, shapes)


def _derive_from_new_root(entry: Spec, root: Any, shift: int) -> object:
    """Return the derived dim ``entry`` (``4*s``) in terms of ``root``, which is ``s + shift``: ``4*root - 4*shift``."""
    start, slope = int(entry.fn(0)), int(entry.fn(1)) - int(entry.fn(0))
    scaled, offset = (slope * root if slope != 1 else root), start - slope * shift
    return scaled + offset if offset > 0 else scaled - -offset if offset < 0 else scaled


def relax_ranges(shapes: object) -> Iterator[object]:
    """Yield dynamic shapes to try in turn: with ``Dim.AUTO`` for plain dims (``s``), then also for derived ones
    (``4*s``). For ``Dim.AUTO`` torch may add constraints (``s % 4 == 0``), which become checks of each call."""
    dims = [d for d in tree_flatten(shapes)[0] if isinstance(d, Dim)]
    for derived in sorted({hasattr(d, "root") for d in dims}):
        yield tree_map(lambda entry, derived=derived: _relax_entry(entry, derived), shapes)


def extend_two_size_ranges(shapes: object) -> Iterator[object]:
    """Yield the dynamic shapes with ranges 1..2 extended to 1..3, since torch specializes dims whose range is 1..2."""
    if any((isinstance(d, Dim) or _is_dim_dynamic_hint(d)) and d.max == 2 for d in tree_flatten(shapes)[0]):
        yield tree_map(lambda entry: _relax_entry(entry, relax_derived=True, extra_size=1), shapes)


def _is_dim_dynamic_hint(entry: object) -> bool:
    """Return whether an entry is `Dim.DYNAMIC`, for which torch raises an error if it specializes the dim."""
    return isinstance(entry, type(Dim.DYNAMIC)) and entry.type == Dim.DYNAMIC.type


def _relax_entry(entry: object, relax_derived: bool, extra_size: int = 0) -> object:
    """Return `Dim.AUTO` with the range of a ``Dim``, so that torch may add constraints; derived dims (``4*s``) stay
    unless ``relax_derived``. torch specializes ranges that end at 2: these are extended by ``extra_size``."""
    if _is_dim_dynamic_hint(entry):
        return Dim.DYNAMIC(min=entry.min, max=entry.max + extra_size) if entry.max == 2 else entry  # type: ignore[attr-defined]
    if not isinstance(entry, Dim) or (hasattr(entry, "root") and not relax_derived):
        return entry
    low, high = _entry_bounds(entry)
    return Dim.AUTO(min=low, max=high + extra_size if high == 2 else high)


def is_about_plain_dims(violation: Exception, shapes: object) -> bool:
    """Return whether a constraint violation of torch is only about plain dims (``s``), not derived ones (``4*s``)."""
    dims = (d for d in tree_flatten(shapes)[0] if isinstance(d, Dim))
    plain = {d.__name__ for d in dims if not hasattr(d, "root")}
    found = re.match(r"Constraints violated \(([^)]*)\)", str(violation))
    return found is not None and set(found[1].split(", ")) <= plain


def has_specialized_dim(exported: ExportedProgram, shapes: object) -> bool:
    """Return whether the export specialized a dim, for which ``shapes`` requests several sizes, to a single size."""
    names = set(exported.graph_signature.user_inputs)
    values = [n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder" and n.name in names]
    sizes = [size for v in values if isinstance(v, torch.Tensor) for size in v.shape]
    asked = [d for d in tree_flatten(shapes)[0] if isinstance(d, Dim) and d.min < d.max]
    return sum(_is_dynamic_size(size, exported.range_constraints) for size in (*sizes, *values)) < len(asked)


SizeRequest: TypeAlias = tuple[Any, Any]
"""A size of an input in the exported graph, and the ``dynamic_shapes`` entry that was requested for it."""


def requested_bounds(requests: Iterable[SizeRequest]) -> dict[str, tuple[int, int | None]]:
    """Return {symbol: (minimum, maximum)} within all ranges of `size_requests`; a maximum of None is unbounded.

    Raises:
        ValueError: no size is in all ranges that are requested for a symbol.
    """
    found = dict[str, tuple[int, int | None]]()
    for size, entry in requests:
        for symbol, low, high in _symbol_and_range(expression(size), *_entry_bounds(entry)):
            least, most = found.get(symbol, (low, high))
            if symbol == str(size) and None not in (most, high) and (least, most) != (low, high):
                log.warning(
                    "inputs of equal size have the ranges %s to %s and %s to %s: the size must be in both ranges",
                    *(least, most, low, high),
                )
            ends = max(low, least), min((e for e in (high, most) if e is not None), default=None)
            if ends[1] is not None and ends[0] > ends[1]:
                raise ValueError(f"the ranges of equal sizes must overlap, got {least} to {most} and {low} to {high}")
            found[symbol] = ends
    return found


def size_requests(
    exported: ExportedProgram, model: torch.nn.Module, inputs: Inputs, shapes: object
) -> Iterator[SizeRequest]:
    """Yield (size in the exported graph, entry) for each dim of an input that has an entry in ``shapes``."""
    asked = _map_with_entries(lambda value, spec: _DimRequests(entries_by_dim(spec)), bind_args(model, *inputs), shapes)
    found = _to_args_and_kwargs(model, inputs, asked)
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    for name, wish in zip(exported.graph_signature.user_inputs, tree_flatten(found)[0], strict=True):
        for dim, entry in wish.entries.items() if isinstance(wish, _DimRequests) else ():
            yield values[str(name)].shape[dim], entry


def unify_shared_dims(requests: Iterable[SizeRequest]) -> bool:
    """Make the symbols of sizes that one ``Dim`` requests equal; return False if the example's sizes differ."""
    first: dict[str, Argument] = {}
    sizes = list(requests)
    plain = [(size, entry) for size, entry in sizes if isinstance(entry, Dim) and not hasattr(entry, "root")]
    pairs = [(first.setdefault(entry.__name__, size), size) for size, entry in plain]
    roots = [(size, entry, first.get(entry.root.__name__)) for size, entry in sizes if hasattr(entry, "root")]
    pairs += [(entry.fn(root), size) for size, entry, root in roots if root is not None]
    return all(bool(one == other) for one, other in pairs)


def unify_attention_lengths(exported: ExportedProgram) -> None:
    """Make the symbols for the numbers of keys and values of each attention equal; torch does not check this itself."""
    for node in exported.graph.nodes:
        if node.target is torch.ops.aten.scaled_dot_product_attention.default:
            key, value = (argument(node, name).meta["val"] for name in ("key", "value"))
            torch._check(key.shape[-2] == value.shape[-2])


def _symbol_and_range(size: Argument, low: int | None, high: int | None) -> Iterator[tuple[str, int, int | None]]:
    """Yield (name, minimum, maximum) of a size's only symbol: (s, 1, 4) if ``2*s`` is 2..8; nothing for other sizes."""
    if isinstance(size, int) or len(size.free_symbols) != 1:
        return
    name = str(*size.free_symbols)
    ends = [
        (low or 0) if size.is_Symbol else solve_for(size, name, low or 0),
        None if high is None else solve_for(size, name, high),
    ]
    if ends[0] is not None and (high is None or ends[1] is not None):
        yield name, ends[0], ends[1]


@frozen
class _DimRequests:
    """The ``dynamic_shapes`` entries of one input tensor, by dim. transformers' outputs take a mapping apart."""

    entries: Mapping[int, Any]


def _is_dynamic_size(size: Argument, ranges: Mapping[Any, Any]) -> bool:
    """Return whether a size depends on a symbol with more than one possible value in ``ranges``."""
    if not isinstance(size, torch.SymInt):
        return False
    symbols = size.node.expr.free_symbols
    known = [ranges[symbol] for symbol in symbols if symbol in ranges]
    return any(r.lower != r.upper for r in known) if known else bool(symbols)


def make_examples(
    model: torch.nn.Module, inputs: Inputs, shapes: object, device_of: Callable[[Input], torch.device]
) -> Inputs:
    """Return the example inputs for an export: an `Input` becomes a tensor with dynamic sizes of at least 2; any other
    tensor gets a storage of its own, and dynamic sizes of at least 2; other values are unchanged."""
    derived = has_derived_dims(shapes)

    def example(value: object, spec: object) -> Argument:
        if isinstance(value, Input):
            return value.example(device_of(value))
        if not isinstance(value, torch.Tensor):
            return value
        return distinct_tensor(value if derived else _enlarge_dynamic_sizes(value, entries_by_dim(spec)))

    return _to_args_and_kwargs(model, inputs, _map_with_entries(example, bind_args(model, *inputs), shapes))


def _to_args_and_kwargs(model: torch.nn.Module, inputs: Inputs, values_by_name: Mapping[str, object]) -> Inputs:
    """Arrange values, given by ``forward``'s parameter names, as positional and keyword inputs, like ``inputs``."""
    first = inspect.signature(model.forward).bind_partial(*inputs[0])
    first.arguments.update({name: values_by_name[name] for name in first.arguments})
    rest = {name: value for each in values_by_name.values() if type(each) is dict for name, value in each.items()}
    return first.args, {name: values_by_name[name] if name in values_by_name else rest[name] for name in inputs[1]}


def _map_with_entries(function: Callable[[Target, Target], Target], value: Argument, spec: Spec) -> Argument:
    """Replace each leaf by ``function(leaf, entry)``; ``spec``: the entries, nested like ``value``; None: no entry."""
    if type(value) in (list, tuple):
        given = spec if isinstance(spec, list | tuple) and len(spec) == len(value) else [None] * len(value)
        return type(value)(_map_with_entries(function, v, s) for v, s in zip(value, given, strict=True))
    if type(value) is dict:
        given = list(spec) if isinstance(spec, list | tuple) else spec
        specs = dict(zip(value, given, strict=False)) if isinstance(given, list) else (given or {})
        return {k: _map_with_entries(function, v, specs.get(k)) for k, v in value.items()}
    if is_input(value) or isinstance(value, torch.Tensor):
        return function(value, spec)
    return tree_map(lambda leaf: function(leaf, None), value, is_leaf=is_input)


def _enlarge_dynamic_sizes(tensor: torch.Tensor, entries: Mapping[int, object]) -> torch.Tensor:
    """Return the tensor or, if dynamic sizes are below 2 and their entries allow 2, zeros with these sizes set to 2."""
    sizes = list(tensor.shape)
    for dim, entry in entries.items():
        high = None if isinstance(entry, int) else _entry_bounds(entry)[1]
        if sizes[dim] < 2 and not isinstance(entry, int) and (high is None or high >= 2):
            sizes[dim] = 2
    return tensor if sizes == list(tensor.shape) else tensor.detach().new_zeros(sizes)
