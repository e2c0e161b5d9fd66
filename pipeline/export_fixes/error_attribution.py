"""Convert errors of torch.export to errors that name the inputs whose dtype or device the model does not accept."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from itertools import chain, product
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypeAlias

import torch
from attrs import evolve
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from pipeline.aten.dtypes import short_name
from pipeline.aten.types import Argument
from pipeline.errors import CaptureError, DtypeError, error_text, package_folder
from pipeline.inputs import Input, is_input
from pipeline.records.wording import kind_of

Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
PathsAndLeaves: TypeAlias = Sequence[tuple[tuple[Any, ...], object]]
"""PathsAndLeaves of (path, leaf) for the leaves of the inputs."""

NOT_MODEL_CODE: Final = (package_folder("torch"), package_folder("pipeline"), "<")
"""Path prefixes of files that are not a model's code: those of torch and of this package, and generated code."""

GENERATOR_MESSAGE: Final = (
    "the model draws with a torch.Generator of its own, which a program cannot hold: use the default generator "
    "(torch.manual_seed before a call sets its state), or give the numbers as an input"
)

VALUE_HINT: Final = (
    "a value that never changes can be an attribute, a buffer of one element, or an input as pipeline.Constant(value); "
    'decisions="example" takes the branches of this example, and checks each call'
)
"""The hint in the error for Python code that reads the value of a tensor."""
BRANCH_HINT: Final = (
    f"torch.where(condition, one, other) chooses between values, torch.cond runs one branch; {VALUE_HINT}"
)
"""The hint in the error for a data-dependent Python branch."""

FIXES_HEADING: Final = "\nSuggested fixes:"
"""The heading of the suggestions in an error message of torch.export."""
SIZE_HINT: Final = (
    "sizes stay dynamic in + - * / // % **, abs, min, max, round, math.sqrt, floor and ceil; for other "
    "functions, compute with a tensor, as torch.tensor(n).log() for math.log(n), or pass the size as static"
)
"""The hint in the error for a model that converts a dynamic size to a constant number."""

_FIXED_SIZE = re.compile(
    r"  - You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)[^\n]*"
)
_MENTIONS_DTYPES = re.compile(
    r"dtype|(data|scalar) type|[Tt]ype \(|Half|Float|Double|Long|[Bb]ool|\blong\b|tensors used as indices"
)
_NOT_ABOUT_DTYPES = re.compile(r"[Dd]ata-dependent|alias")
"""A pattern for errors that a cast of the inputs may avoid although their dtype is not the cause: data-dependent
branches (which clamp float16) and aliases (since a cast copies)."""


def error_with_cause(
    error: Exception, model: torch.nn.Module, inputs: Inputs, export: Callable[[Inputs], object]
) -> Exception:
    """Return the error to raise for a failed export; it names the inputs of a wrong device or dtype. To find inputs of
    a wrong dtype, repeat the export with all inputs of one dtype cast to another. If that succeeds, cast all but one:
    the inputs without which it fails are those to name."""
    if nameless := unnamed_fields_error(error):
        return nameless
    rows = tree_flatten_with_path(inputs, is_leaf=is_input)[0]
    if _MENTIONS_DTYPES.search(str(error)) and not _NOT_ABOUT_DTYPES.search(str(error)):
        leaves = [(path, value) for path, value in rows if hasattr(value, "dtype")]
        own = [t.dtype for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()]
        usual = [*dict.fromkeys([*own, torch.float32, torch.int64, torch.bool, *(v.dtype for _, v in leaves)])]
        found = dict.fromkeys(sorted((v.dtype for _, v in leaves), key=lambda dtype: dtype in (own or usual[:1])))
        for dtype, due in product(found, usual):
            wrong = [keystr(path) for path, value in leaves if value.dtype == dtype]
            if dtype != due and _exports_with_dtype(export, inputs, wrong, due):
                names = [
                    path
                    for path in wrong
                    if not _exports_with_dtype(export, inputs, [w for w in wrong if w != path], due)
                ]
                said = [_input_name(model, path) for path, _ in leaves if keystr(path) in (names or wrong)]
                return DtypeError(
                    input=", ".join(said), found=short_name(dtype), due=short_name(due), why=error_text(error)
                )
    return (
        _device_error(error, model, rows)
        or _data_branch_error(error, model)
        or _unsupported_type_error(error, model, rows)
        or _not_a_tensor_error(error, model, inputs)
        or _specialized_size_error(error, model)
        or CaptureError(
            f"torch.export cannot capture {type(model).__name__}{_model_line_suffix(error)}: {error_text(error)}"
        )
    )


def unnamed_fields_error(error: Exception) -> CaptureError | None:
    """Convert torch's error for an input of a class whose fields it cannot name; return None for other errors."""
    found = re.search(r"flatten_with_keys_fn for type: <class '(.+?)'>", str(error))
    if found is None:
        return None
    hint = "pass flatten_with_keys_fn to torch.utils._pytree.register_pytree_node"
    return CaptureError(f"an input is a {found[1]}, a pytree class registered without names of its fields", hint)


def innermost_model_line(error: BaseException) -> tuple[CodeType, int] | None:
    """Return the innermost function of the model in an error's traceback, and the line in it."""
    found = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((each for each in reversed(found) if not each[0].co_filename.startswith(NOT_MODEL_CODE)), None)


def source_line_text(file: str, line: int) -> str:
    """Return a source line as error messages print it: ``model.py:41, if x.sum() > 0:``."""
    return f"{Path(file).name}:{line}, {linecache.getline(file, line).strip()}".rstrip(", ")


def _model_line_suffix(error: Exception) -> str:
    """Return as text the model's line that raised an error; empty if it is unknown or already in the message."""
    found = innermost_model_line(error)
    is_in_message = found is None or Path(found[0].co_filename).name in str(error)
    return "" if found is None or is_in_message else f" at {source_line_text(found[0].co_filename, found[1])}"


def _specialized_size_error(error: Exception, model: torch.nn.Module) -> CaptureError | None:
    """Convert torch's error for a dynamic size that the model makes constant; return None for other errors."""
    found = _FIXED_SIZE.findall(str(error))
    if not found:
        return None
    _, *lines = _FIXED_SIZE.sub("", str(error).partition(FIXES_HEADING)[0]).split("\n")
    why = (
        "".join(f"\n{line}" for line in lines if line)
        or " An operator needs a constant there, or combines the input with a tensor of that size."
    )
    sizes = ", ".join(f"{name} is {size}" for name, size in found)
    return CaptureError(
        f"{type(model).__name__} specializes dynamic sizes to those of the example: {sizes}.{why}", SIZE_HINT
    )


def _data_branch_error(error: Exception, model: torch.nn.Module) -> CaptureError | None:
    """Convert torch's error for a data-dependent Python branch, and name its line; return None for other errors."""
    is_key = isinstance(error, TypeError) and "unhashable type: non-nested Sym" in str(error)
    found = innermost_model_line(error) if is_key or isinstance(error, GuardOnDataDependentSymNode) else None
    if found is None:
        return None
    code, number = found
    place = source_line_text(code.co_filename, number)
    if indexed := _index_error(error, type(model).__name__, place):
        return indexed
    does = "uses a tensor's value in a set or as a dict key" if is_key else "branches on a tensor's value"
    why = f"{type(model).__name__} {does}, which is unknown until it runs: {place} (torch.export: data-dependent)"
    return CaptureError(why, BRANCH_HINT)


def _index_error(error: Exception, model_name: str, line: str) -> CaptureError | None:
    """Convert torch's error for ``a_list[n]`` or ``range(n)`` if ``n`` is read from a tensor; None for other errors."""
    if not any(frame.f_code.co_name == "__index__" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return None
    why = (
        f"{model_name} reads a number from a tensor, and uses it as a Python index or count: {line} "
        "(torch.export: data-dependent)"
    )
    index = "index a tensor with a tensor instead: x[:, i], x.index_select(0, i), torch.stack(a_list)[i]"
    decides = re.search(r"\b(if|while)\b", line)
    return CaptureError(why, f"{index}; {BRANCH_HINT if decides else VALUE_HINT}")


def _device_error(error: Exception, model: torch.nn.Module, leaves: PathsAndLeaves) -> CaptureError | None:
    """Convert torch's error for tensors on two devices; name the inputs' and the model's devices. Else return None."""
    if not re.search("different devices|same device", str(error)):
        return None
    given = [(path, v.device) for path, v in leaves if isinstance(v, torch.Tensor)]
    found = [f"input {_input_name(model, path)} is on {device}" for path, device in given]
    homes = dict.fromkeys(str(tensor.device) for tensor in chain(model.parameters(), model.buffers()))
    every, line = {*homes, *(str(device) for _, device in given)}, innermost_model_line(error)
    if len(every) == 1 and line is not None:
        place = source_line_text(line[0].co_filename, line[1])
        why = f"a tensor that the model creates or holds is on another device than the model and its inputs: {place}"
        return CaptureError(f"{why}: {error_text(error)}", "create it on that device: torch.tensor(…, device=x.device)")
    found += [f"the model is on {' and '.join(homes)}"] if homes else []
    hint = "move them to one device: model.to(…), x.to(…), Input(…, device=…)"
    return CaptureError(f"tensors are on different devices: {', '.join(found)}: {error_text(error)}", hint)


def _unsupported_type_error(error: Exception, model: torch.nn.Module, leaves: PathsAndLeaves) -> CaptureError | None:
    """Convert torch's error for an input or output of an unsupported type; return None for other errors."""
    for path, value in leaves:
        if f"Unsupported input type {type(value)}" in str(error):
            hint = "pass tensors, numbers, strings or containers of these; a constant can be an attribute of the model"
            if isinstance(value, type):
                return CaptureError(f"input {_input_name(model, path)} is the class {value.__name__} itself", hint)
            if type(value).__module__ == "numpy":
                hint = f"pass a tensor: torch.{'from_numpy' if type(value).__name__ == 'ndarray' else 'tensor'}(…)"
            elif is_dataclass(value):
                hint = f"call torch.export.register_dataclass({type(value).__name__}) so that torch reads its fields"
            return CaptureError(
                f"input {_input_name(model, path)} is {kind_of(value)}, which torch.export does not take", hint
            )
    if "argument of type: <class 'torch._C.Generator'>" in str(error):  # before 2.13, which captures it
        return CaptureError(GENERATOR_MESSAGE)
    if (returned := _unsupported_output_type(error)) is not None:
        known = f"call torch.export.register_dataclass({returned}) if it is a dataclass"
        hint = f"return tensors, numbers or containers of these; {known}"
        return CaptureError(f"{type(model).__name__} returns a {returned}, which torch.export does not know", hint)
    return None


def _not_a_tensor_error(error: Exception, model: torch.nn.Module, inputs: Inputs) -> CaptureError | None:
    """Convert an error caused by an input that is a shape, numbers or a string, not a tensor; else return None."""
    found = re.search(
        r"must be Tensor, not (\w+)|'(\w+)' object has no|int of type '(\w+)'|for \S+ '(\w+)'", str(error)
    )
    kind = found and next(filter(None, found.groups()))
    if kind not in ("tuple", "list", "int", "float", "str"):
        return None
    for is_leaf in (_is_nested_numbers, _is_shape):
        for path, value in _leaves_with_paths(inputs, is_leaf):
            if kind in {each.__name__ for each in type(value).__mro__} and (
                is_leaf(value) or kind in ("int", "float", "str")
            ):
                shown = repr(value) if len(repr(value)) <= 60 else kind_of(value)
                why = f"input {_input_name(model, path)} is {shown}, and the model expects a tensor"
                return CaptureError(why, _hint_to_make_tensor(value))
    return None


def _leaves_with_paths(inputs: Inputs, is_leaf: Callable[[object], bool]) -> PathsAndLeaves:
    """Return the leaves of each input, with their paths. The tuple of all positional inputs is not a leaf."""
    return tree_flatten_with_path(inputs, is_leaf=lambda value: value is not inputs[0] and is_leaf(value))[0]


def _is_shape(value: object) -> bool:
    """Return whether a value is a list or tuple of numbers, as a shape is."""
    return isinstance(value, tuple | list) and {*map(type, value)} in ({int}, {float}, {int, float})


def _is_nested_numbers(value: object) -> bool:
    """Return whether a value is a list or tuple of numbers, also nested."""
    return _is_shape(value) or (isinstance(value, tuple | list) and bool(value) and all(map(_is_nested_numbers, value)))


def _hint_to_make_tensor(value: object) -> str:
    """Return a hint with code that makes a tensor from a string, a shape or numbers."""
    if isinstance(value, str):
        return "pipeline.Input.parse reads a text such as '1..8x3x224x224:float16'"
    if isinstance(value, tuple | list) and {*map(type, value)} == {int}:
        return f"for a tensor of this shape, pass pipeline.Input(shape={tuple(value)})"
    return "convert it to a tensor: torch.tensor(…)"


def _unsupported_output_type(error: Exception) -> str | None:
    """Return the type of an output that torch.export does not support; None if the error is not about an output. Before
    2.13, torch looks the output up in a table, which fails for unhashable types."""
    found = re.search(r"Found <class '(?:.*\.)?(.+?)'> in output", str(error))
    if found is None and any(f.f_code.co_name == "is_opaque_type" for f, _ in traceback.walk_tb(error.__traceback__)):
        found = re.search(r"unhashable type: '(?:.*\.)?(.+?)'", str(error))
    return None if found is None else found[1]


def _exports_with_dtype(
    export: Callable[[Inputs], object], inputs: Inputs, paths: Sequence[str], dtype: torch.dtype
) -> bool:
    """Return whether the export succeeds if the inputs at these paths are cast to ``dtype``."""

    def cast(path: Any, value: Argument) -> Argument:
        if keystr(path) not in paths:
            return value
        return evolve(value, dtype=dtype) if isinstance(value, Input) else value.to(dtype)

    try:
        leaves, spec = tree_flatten_with_path(inputs, is_leaf=is_input)
        export(tree_unflatten([cast(*each) for each in leaves], spec))
    except Exception:
        return False
    return bool(paths)


def _input_name(model: torch.nn.Module, path: Sequence[Any]) -> str:
    """Return an input's name for messages, by ``forward``'s parameters and the path within: ``x``, ``by['a']``."""
    _, first, *rest = path
    if hasattr(first, "key"):
        return f"{first.key}{keystr(tuple(rest))}"
    parameters = list(inspect.signature(model.forward).parameters.values())
    single = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    names = single + [f"{name}[{i}]" for name in several for i in range(first.idx + 1)]
    return f"{names[first.idx]}{keystr(tuple(rest))}"
