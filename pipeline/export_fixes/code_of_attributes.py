"""Find in the code of a model's classes which attributes it reads, and the line that assigns one."""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType

import torch

from pipeline.export_fixes.error_attribution import NOT_THE_MODELS, place_of
from pipeline.export_fixes.restore_model_state import others

READS = ("LOAD_ATTR", "LOAD_METHOD")
CREATE = ("__init__", "__new__", "__setstate__")


def names_read(model: torch.nn.Module) -> frozenset[str]:
    """Return the attributes that the model's code may read: by name, or by a string (``getattr``)."""
    found: set[str] = set()
    for code in _codes(model):
        found.update(i.argval for i in dis.get_instructions(code) if i.opname in READS)
        found.update(value for value in code.co_consts if isinstance(value, str))
    return frozenset(found)


def assigned_at(model: torch.nn.Module, place: str) -> str:
    """Return the line that assigns an attribute, or one that reads what may be changed; empty if none does."""
    path, _, name = place.rpartition(".")
    owner = dict(model.named_modules()).get(path, model)
    codes = [code for code in (*_codes(owner), *_codes(model)) if code.co_name not in CREATE]
    for operations in (("STORE_ATTR",), READS):
        for code in codes:
            line = code.co_firstlineno
            for instruction in dis.get_instructions(code):
                line = instruction.positions.lineno if instruction.positions and instruction.positions.lineno else line
                if instruction.opname in operations and instruction.argval == name:
                    return place_of(code.co_filename, line)
    return ""


def _codes(model: torch.nn.Module) -> Iterator[CodeType]:
    """Yield the code, except torch's own, that may read a model's attributes: of the classes of its modules and of the
    objects in them, of the files that define these classes, and of functions in modules."""
    kinds = dict.fromkeys(type(each) for each in (*model.modules(), *(each for _, each in others(model))))
    own = dict.fromkeys(each for kind in kinds for each in kind.__mro__)
    files = {kind.__module__: sys.modules.get(kind.__module__) for kind in own}
    spaces = [vars(each) for each in (*own, *model.modules(), *files.values()) if each is not None]
    left = deque(code for space in spaces for value in [*space.values()] for code in _of(value))
    while left:
        code = left.popleft()
        if not code.co_filename.startswith(NOT_THE_MODELS[0]):
            yield code
            left.extendleft(each for each in code.co_consts if isinstance(each, CodeType))


def _of(value: object) -> Iterator[CodeType]:
    """Yield the code of a method, of a property's, and of what a decorator wraps."""
    functions = (value, *(getattr(value, name, None) for name in ("fget", "fset", "func", "__func__")))
    for function in functions:
        while function is not None:
            if isinstance(function, FunctionType):
                yield function.__code__
            function = getattr(function, "__wrapped__", None)
