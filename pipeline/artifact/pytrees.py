"""Convert pytree structures to JSON and back.
Classes are saved by name and looked up only in imported modules; a `Record` replaces a class that is not imported."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from attrs import frozen
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from pipeline.artifact import json_values as values
from pipeline.artifact.json_data import JsonData, MalformedError
from pipeline.aten.types import Spec
from pipeline.errors import ArtifactError
from pipeline.runtime.inputs import child_specs

_leaf: Any = getattr(pytree, "treespec_leaf", pytree.LeafSpec)  # torch up to 2.11 has only the class
CONTAINERS: Mapping[str, object] = {
    **{kind.__name__: kind for kind in (tuple, list, dict, OrderedDict, deque)},
    **{kind.__name__: kind for kind in (immutable_dict, immutable_list)},
}
FACTORIES: Mapping[str, object] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}


@frozen
class RecordShape:
    """The description of a class of inputs or outputs, such as a named tuple, which a `Record` replaces in processes
    that have not imported it. ``names``: the names of the elements. ``absent``: the names of fields that were None."""

    cls: str
    kind: Literal["namedtuple", "mapping", "object"] = "object"
    names: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class Record:
    """A read-only object whose class this process lacks. Its elements are available by position (``r[0]``), key
    (``r["logits"]``) and attribute (``r.logits``), as in the original."""

    __slots__ = ("_shape", "_values")
    _shape: RecordShape
    _values: tuple[Any, ...]

    def __init__(self, shape: RecordShape, values: Iterable[object]) -> None:
        object.__setattr__(self, "_shape", shape)
        object.__setattr__(self, "_values", tuple(values))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in (*self._shape.names, *self._shape.absent):
            raise AttributeError(f"{self._shape.cls} has no field {name!r}, only {', '.join(self._shape.names)}")
        return self._values[self._shape.names.index(name)] if name in self._shape.names else None

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self._values[key]
        if key not in self._shape.names:
            raise KeyError(key)
        return self._values[self._shape.names.index(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._shape.names if self._shape.kind == "mapping" else self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, item: object) -> bool:
        return item in self._shape.names

    def keys(self) -> tuple[str, ...]:
        return self._shape.names

    def values(self) -> tuple[Any, ...]:
        return self._values

    def items(self) -> tuple[tuple[str, Any], ...]:
        return tuple(zip(self._shape.names, self._values, strict=False))

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the elements in order, as outputs of transformers' models do."""
        return self._values

    def get(self, key: str, default: object = None) -> Any:
        return self[key] if key in self._shape.names else default

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} cannot be set: a loaded program's {self._shape.cls} is read-only")

    def __reduce__(self) -> Any:
        return Record, (self._shape, self._values)

    def __repr__(self) -> str:
        named = self._shape.names or range(len(self._values))
        parts = ", ".join(f"{name}={value!r}" for name, value in zip(named, self._values, strict=False))
        return f"{self._shape.cls.rpartition(':')[2]}({parts})"


pytree.register_pytree_node(
    Record,
    lambda record: (list(record._values), record._shape),
    lambda parts, shape: Record(shape, parts),
    serialized_type_name="pipeline.Record",
)


def to_json(spec: Spec) -> JsonData:
    """Convert a pytree structure to JSON; a leaf is None. Raise an `ArtifactError` if the structure cannot be saved."""
    if spec.type is None:
        return None
    parts = [to_json(child) for child in child_specs(spec)]
    if name := next((name for name, kind in CONTAINERS.items() if spec.type is kind), ""):
        return {"type": name, "context": values.to_json(spec.context), "children": parts}
    if spec.type is defaultdict:
        factory, keys = spec.context
        if factory is not None and FACTORIES.get(factory.__name__) is not factory:
            raise ArtifactError(f"a defaultdict with the default factory {factory!r} cannot be saved: pass a dict")
        context = [getattr(factory, "__name__", None), values.to_json(keys)]
        return {"type": "defaultdict", "context": context, "children": parts}
    return {"type": "class", **_class_to_json(spec), "children": parts}


def _class_to_json(spec: Spec) -> dict[str, JsonData]:
    """Convert the class of a pytree node to JSON: its name, kind and field names, and its pytree context."""
    shape = spec.context if spec.type is Record else _record_shape(spec)
    named = {"class": shape.cls, "kind": shape.kind, "names": list(shape.names), "absent": list(shape.absent)}
    try:
        return named | {"context": None if spec.type in (Record, namedtuple) else values.to_json(spec.context)}
    except ArtifactError as error:
        raise ArtifactError(f"inputs or outputs of the class {shape.cls} cannot be saved: {error.message}") from None


def _record_shape(spec: Spec) -> RecordShape:
    """Return the name of a pytree node's class, its kind, and its field names if the node has them."""
    context, count = spec.context, spec.num_children
    kind = context if spec.type is namedtuple else spec.type
    name = f"{kind.__module__}:{kind.__qualname__}"
    if spec.type is namedtuple:
        return RecordShape(name, "namedtuple", tuple(context._fields))
    if issubclass(kind, tuple) and hasattr(kind, "__match_args__"):
        return RecordShape(name, "namedtuple", tuple(kind.__match_args__)[:count])
    if _are_field_names(context, count):
        return RecordShape(name, "mapping" if issubclass(kind, Mapping) else "object", tuple(context))
    if isinstance(context, list) and len(context) == 2 and _are_field_names(context[0], count):
        return RecordShape(name, "object", tuple(context[0]), tuple(context[1] or ()))
    return RecordShape(name)


def _are_field_names(context: object, count: int) -> bool:
    """Return whether a pytree node's context is a list or tuple of ``count`` strings."""
    return isinstance(context, (list, tuple)) and len(context) == count and all(isinstance(n, str) for n in context)


def from_json(data: JsonData) -> Any:
    """Convert JSON to a pytree structure; raise a `MalformedError` if it is malformed."""
    if data is None:
        return _leaf()
    if not isinstance(data, dict) or not isinstance(data.get("children"), list):
        raise MalformedError(f"expected a pytree structure, not {str(data)[:60]!r}")
    parts, kind = [from_json(child) for child in data["children"]], str(data.get("type"))
    if kind == "class":
        return pytree.TreeSpec(*_class_and_context_from_json(data, len(parts)), parts)
    if kind == "defaultdict":
        return pytree.TreeSpec(defaultdict, _defaultdict_context_from_json(data.get("context"), len(parts)), parts)
    if kind not in CONTAINERS:
        raise MalformedError(f"{kind[:60]!r} is not a pytree container such as dict")
    return pytree.TreeSpec(CONTAINERS[kind], _context_from_json(kind, data.get("context"), len(parts)), parts)


def _context_from_json(kind: str, data: JsonData, child_count: int) -> Any:
    """Return the pytree context of a container, such as the keys of a dict; ``kind`` is the container's type."""
    context = values.from_json(data)
    if kind == "deque":
        wrong = context is not None and type(context) is not int
    elif CONTAINERS[kind] in (dict, OrderedDict, immutable_dict):
        wrong = not isinstance(context, list) or len(context) != child_count or not all(map(_is_hashable, context))
    else:
        wrong = context is not None
    if wrong:
        raise MalformedError(f"a {kind} of {child_count} elements cannot have the pytree context {str(context)[:60]}")
    return context


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _defaultdict_context_from_json(data: JsonData, child_count: int) -> Any:
    """Return the pytree context of a defaultdict: its default factory, and the list of its keys."""
    if not isinstance(data, list) or len(data) != 2 or (data[0] is not None and str(data[0]) not in FACTORIES):
        raise MalformedError(f"expected a default factory and the keys of a defaultdict, not {str(data)[:60]!r}")
    return [FACTORIES.get(str(data[0])), _context_from_json("dict", data[1], child_count)]


def _class_and_context_from_json(data: Mapping[str, JsonData], child_count: int) -> tuple[Any, Any]:
    """Return a class of ``child_count`` elements, and its pytree context; `Record` if this process lacks the class."""
    shape = _record_shape_from_json(data, child_count)
    found = _find_imported_class(shape.cls)
    if found is not None and pytree.is_namedtuple_class(found) and found._fields == shape.names:
        return namedtuple, found
    if found in pytree.SUPPORTED_NODES and found is not Record and not shape.cls.startswith("torch._"):
        return found, values.from_json(data.get("context"))
    return Record, shape


def _record_shape_from_json(data: Mapping[str, JsonData], child_count: int) -> RecordShape:
    """Convert JSON from `_class_to_json` to a `RecordShape`; raise an error if the number of fields is wrong."""
    cls, kind, names, absent = (data.get(key) for key in ("class", "kind", "names", "absent"))
    lists = isinstance(names, list) and isinstance(absent, list) and all(isinstance(n, str) for n in [*names, *absent])
    if not lists or not isinstance(cls, str) or kind not in ("namedtuple", "mapping", "object"):
        raise MalformedError(f"the description of the pytree class {str(cls)[:60]!r} is malformed")
    if names and len(names) != child_count:
        raise MalformedError(f"the class {cls[:60]} has {child_count} elements, but {len(names)} field names")
    return RecordShape(cls, kind, tuple(names or ()), tuple(absent or ()))


def _find_imported_class(name: str) -> Any:
    """Return the class of this name if its module is already imported; else None."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None
