"""Compare and print annotated record types: may one be passed where another is expected?

A union fits if each of its members does. Types that cannot be checked at run time (Any, a type variable, a protocol
that is not runtime-checkable) fit everywhere.
"""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin


def accepts(takes: object, gives: object) -> bool:
    """Return whether every record annotated as `gives` may be passed to a parameter annotated as `takes`."""
    return all(any(_fits(one, other) for other in _members(takes)) for one in _members(gives))


def is_instance(record: object, annotation: object) -> bool:
    """Return whether the record is of the annotated type."""
    classes = [_class(member) for member in _members(annotation)]
    return any(known is None or isinstance(record, known) for known in classes)


def type_name(annotation: object) -> str:
    """Return the name of a type in errors and reprs."""
    return " | ".join("None" if member is NoneType else _member_name(member) for member in _members(annotation))


def _member_name(member: object) -> str:
    return str(getattr(member, "__name__", member)) if get_origin(member) is None else str(member)


def _members(annotation: object) -> tuple[object, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _class(member: object) -> type | None:
    """Return the class to check against; None for a type that cannot be checked."""
    known = get_origin(member) or member
    unchecked = getattr(known, "_is_protocol", False) and not getattr(known, "_is_runtime_protocol", False)
    return known if isinstance(known, type) and known is not Any and not unchecked else None


def _fits(gives: object, takes: object) -> bool:
    given, taken = _class(gives), _class(takes)
    return given is None or taken is None or issubclass(given, taken)
