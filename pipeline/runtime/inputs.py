"""Check the inputs of a call before it runs: pytree structure, types, dtypes, sizes, ranges, relations."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from textwrap import shorten

import sympy
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from pipeline.aten.dtypes import short_name
from pipeline.aten.types import Leaf, Spec
from pipeline.errors import DtypeError, ExecutionError, ShapeError
from pipeline.inputs import Constant
from pipeline.program import Port, Program, tensor_version
from pipeline.records.wording import did_you_mean, kind_of
from pipeline.runtime.call_signature import arrange_arguments, is_same_value
from pipeline.shapes.environment import Relation, evaluate_size
from pipeline.shapes.linear import solve_for


def flatten_inputs(program: Program, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[Leaf]:
    """Return the call's inputs in the program's order. As for the model, arguments may be passed by position or
    keyword, and keyword arguments and dict keys may be in any order. This function takes about 30 µs.

    Raises:
        DtypeError: an input's dtype differs from the compiled one; a subclass of `TypeError`.
        TypeError: the structure or a type differs from the compiled one.
    """
    positional, named = child_specs(program.in_spec)
    if len(args) != positional.num_children or kwargs.keys() != {*(named.context or ())}:
        args, kwargs = arrange_arguments(program, positional, named, args, kwargs) or (args, kwargs)
    try:
        given: list[Leaf] = program.in_spec.flatten_up_to((args, dict(kwargs)))
    except ValueError as error:
        leaves, structure = tree_flatten((args, dict(kwargs)), is_leaf=lambda value: isinstance(value, torch.Size))
        plain = [tuple(v) if isinstance(v, torch.Size) else v for v in leaves]
        if any(a is not b for a, b in zip(plain, leaves, strict=True)):  # torch.export turns torch.Size into tuples
            return flatten_inputs(program, *tree_unflatten(plain, structure))
        raise TypeError(_structure_error(program, args, kwargs, error)) from None
    for port, value in zip(program.inputs, given, strict=True):
        _check_input(port, value)
    return given


def _structure_error(
    program: Program, args: tuple[object, ...], kwargs: Mapping[str, object], error: ValueError
) -> str:
    """Return the error text for arguments whose structure differs from the compiled inputs' structure.

    error: pytree's error.
    """
    positional, named = child_specs(program.in_spec)
    keywords = list(named.context or ())
    if len(args) == positional.num_children and set(kwargs) == set(keywords):
        given = {**{f"positional input {i}": v for i, v in enumerate(args)}, **{k: kwargs[k] for k in keywords}}
        specs = [*child_specs(positional), *child_specs(named)]
        found = (_structure_difference(*row) for row in zip(given, given.values(), specs, strict=True))
        return next(filter(None, found), f"the inputs have another structure than was compiled: {error}")
    names = [port.name for port in program.inputs[: positional.num_leaves]]
    expected = names if len(names) == positional.num_children else [""] * positional.num_children
    missing, extra = [k for k in keywords if k not in kwargs], [k for k in kwargs if k not in keywords]
    close = [did_you_mean(word, [*names, *keywords], "") for word in extra[:1]]
    parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"not known: {', '.join(extra)}"] * bool(extra) + close
    differ = ": " + "; ".join(filter(None, parts)) if missing or extra else ""
    called, compiled = _format_signature([""] * len(args), kwargs), _format_signature(expected, keywords)
    return f"called with {called}; the program was compiled for {compiled}{differ}"


def _structure_difference(path: str, value: Leaf, spec: Spec) -> str:
    """Return the first difference between an input's structure and the compiled structure; empty if they are equal."""
    parts, kind = child_specs(spec), spec.type
    if kind not in (list, tuple, dict):
        return ""
    if not isinstance(value, kind):
        return f"{path} is {kind_of(value)}, expected a {kind.__name__}"
    known = list(spec.context) if kind is dict else list(range(len(parts)))
    keys = list(value) if kind is dict else list(range(len(value)))
    if {*keys} != {*known}:
        what = f"the keys {keys}, not {known}" if kind is dict else f"{len(keys)} elements, not {len(known)}"
        return f"{path} has {what}"
    rows = (_structure_difference(f"{path}[{key!r}]", value[key], part) for key, part in zip(known, parts, strict=True))
    return next(filter(None, rows), "")


def _format_signature(positional: Sequence[str], keywords: Iterable[str]) -> str:
    names = ", ".join(filter(None, positional))
    first = f"{len(positional) or 'no'} positional input{'s'[: len(positional) != 1]}{names and f' ({names})'}"
    return f"{first} and {f'the keywords {words}' if (words := ', '.join(keywords)) else 'no keywords'}"


def child_specs(spec: Spec) -> Sequence[Leaf]:
    """Return the specs of a container's elements; this works with every supported version of torch."""
    return spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs  # type: ignore[no-any-return]


def _check_input(port: Port, value: object) -> None:
    if isinstance(value, Constant):
        raise TypeError(f"input {port.name} is a pipeline.Constant, which is only for compiling: pass its tensor")
    if port.kind == "constant":
        compiled = port.value  # NaN equals NaN
        if not (compiled.equals(value) if isinstance(compiled, Constant) else is_same_value(value, compiled)):
            raise TypeError(
                f"input {port.name} is {_format_value(value)}, but the program was compiled for the value {compiled!r}"
            )
    elif port.kind == "symint":
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"input {port.name} is {_format_value(value)}, expected an int")
    elif not isinstance(value, torch.Tensor):
        array = ": convert it with torch.from_numpy" if type(value).__name__ == "ndarray" else ""
        raise TypeError(f"input {port.name} is {kind_of(value)}, expected a tensor{array}")
    elif port.dtype is not None and value.dtype != port.dtype:
        raise DtypeError(port.name, short_name(value.dtype), short_name(port.dtype), "as in the compiled program")
    elif value.layout != port.layout:
        raise TypeError(f"input {port.name} has layout {value.layout}, expected {port.layout}")
    elif value.is_meta:
        raise TypeError(f"input {port.name} is on the meta device, without values: pass a tensor on the CPU or GPU")


class ConstantInputs:
    """The constant inputs of a program: each call must pass the value that the program was compiled for.

    A GPU tensor that had the value is not read again while its version counter stays the same, since a read would
    synchronize. CPU memory is always compared, since other libraries such as NumPy may write to it.
    """

    def __init__(self, program: Program) -> None:
        values = ((i, port.value) for i, port in enumerate(program.inputs) if port.kind == "constant")
        self._values = [(i, value) for i, value in values if isinstance(value, Constant)]
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def match(self, leaves: Sequence[Leaf]) -> bool:
        """Return whether the inputs of a call have the values that the program was compiled for."""
        return all(self._matches(i, value, leaves[i]) for i, value in self._values)

    def _matches(self, index: int, constant: Constant, value: Leaf) -> bool:
        seen, number = self._known.get(index, (None, -1))
        before = None if seen is None else seen()
        if before is not None and before is value and tensor_version(before) == number:
            return True
        if not constant.equals(value):
            return False
        if _is_on_gpu(value) and not value.is_inference():
            self._known[index] = weakref.ref(value), tensor_version(value)
        return True


def _is_on_gpu(value: torch.Tensor) -> bool:
    return value.device.type != "cpu"


def _format_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor, {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return shorten(repr(value), 80)


def bind_symbols(program: Program, inputs: Sequence[Leaf]) -> dict[str, int]:
    """Return each symbol's value as given by the inputs' sizes; check every size against its range and expression.

    The check takes about 2 µs for each dim and each relation; it reads only the shapes of tensors, and Python ints.

    Raises:
        ShapeError: a size is outside its range, does not match another input's size, or breaks a relation.
    """
    sizes = _SymbolValues()
    symbols = sizes.symbols
    for port, value in zip(program.inputs, inputs, strict=True):
        if port.kind == "symint":
            sizes.bind_size(port, None, port.value, value)
        elif port.kind == "tensor":
            if value.dim() != len(port.shape):
                raise ShapeError(port.name, None, value.dim(), (len(port.shape), len(port.shape)), rank=True)
            for dim, (expr, size) in enumerate(zip(port.shape, value.shape, strict=True)):
                sizes.bind_size(port, dim, expr, size)
    sizes.solve_all()
    for relation in program.shapes.relations:
        if relation.symbols <= symbols.keys() and not relation.holds(symbols):
            raise _relation_error(program, relation, symbols)
    if program.profiles and find_profile(program, symbols) is None:
        raise _no_profile_error(program, symbols)
    return symbols


def find_profile(program: Program, symbols: Mapping[str, int]) -> int | None:
    """Return the index of the first optimization profile that fits these sizes; None if no profile fits."""
    for i, profile in enumerate(program.profiles):
        if all(r.min <= symbols[name] <= r.max for name, r in profile.items() if name in symbols):
            return i
    return None


def _no_profile_error(program: Program, symbols: Mapping[str, int]) -> ShapeError:
    """Return the error for sizes that fit no optimization profile; it names an input and the allowed sizes."""
    names = {name for profile in program.profiles for name in profile}
    port, dim, name = next(
        (port, dim, size.name)
        for port in program.inputs
        for dim, size in enumerate(port.shape)
        if not isinstance(size, int) and size.is_Symbol and size.name in names
    )
    ranges = [profile[name] for profile in program.profiles if name in profile]
    words = " or ".join(f"{r.min} to {r.max}" if r.min < r.max else f"{r.min}" for r in ranges)
    allowed = (min(r.min for r in ranges), max(r.max for r in ranges))
    return ShapeError(port.name, dim, symbols[name], allowed, f"and one profile must fit all inputs; profiles: {words}")


def check_learnt_sizes(program: Program, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Check the ranges of the data-dependent sizes that a segment has determined, and return the sizes.

    Raises:
        ExecutionError: a size is outside its range. Nothing that depends on the size has run yet.
    """
    for name, size in sizes.items():
        symbol = program.shapes.symbols.get(name)
        if symbol is not None and not symbol.range.min <= size <= symbol.range.max:
            allowed = f"compiled for {symbol.range.min} to {symbol.range.max}"
            source = symbol.places[0] if symbol.places else name
            bound = f"state a larger bound in the model: torch._check({source}.shape[0] <= …)"
            fewer = (
                f"avoid such inputs: the model's next operator does not accept a smaller size than {symbol.range.min}"
            )
            raise ExecutionError(
                f"{source} has the data-dependent size {size}; {allowed}",
                bound if size > symbol.range.max else fewer,
            )
    return sizes


class _SymbolValues:
    """The values of a program's symbols (``symbols``), determined by the sizes of a call's inputs. ``found``: the input
    and dim that determined each symbol, as text. ``later``: (input, dim, expression, size) for each size whose
    expression is no symbol, such as ``2*s``; `solve_all` handles these."""

    def __init__(self) -> None:
        self.symbols: dict[str, int] = {}
        self.found: dict[str, str] = {}
        self.later: list[tuple[Port, int | None, sympy.Expr, int]] = []

    def bind_size(self, port: Port, dim: int | None, expr: sympy.Expr, size: int) -> None:
        """Check that a ``size`` (of ``dim``; None for an int input) is in range; store it if ``expr`` is a symbol."""
        allowed = port.ranges[dim or 0]
        if not allowed.min <= size <= allowed.max:
            raise ShapeError(port.name, dim, size, (allowed.min, allowed.max))
        if isinstance(expr, int):
            return
        if not expr.is_Symbol:
            self.later.append((port, dim, expr, size))
        elif self.symbols.setdefault(expr.name, size) != size:
            raise ShapeError(port.name, dim, size, (self.symbols[expr.name],) * 2, f"as the {self.found[expr.name]}")
        else:
            self.found.setdefault(expr.name, _describe_size(port, dim))

    def solve_all(self) -> None:
        """Solve each expression in ``later`` for its unknown symbol, or check the size if all its symbols are known."""
        while self.later:
            row = min(self.later, key=lambda row: len(self._unknown_symbols(row[2])))
            self.later.remove(row)
            self._check_or_solve(*row)

    def _unknown_symbols(self, expr: sympy.Expr) -> list[str]:
        return [s.name for s in expr.free_symbols if s.name not in self.symbols]

    def _check_or_solve(self, port: Port, dim: int | None, expr: sympy.Expr, size: int) -> None:
        """Check a size's expression (``2*s``) if its symbols are known, else solve it for the unknown symbol."""
        unknown = self._unknown_symbols(expr)
        if not unknown:
            wanted = evaluate_size(expr, self.symbols)
            if wanted != size:
                why = " and ".join(sorted({self.found[s.name] for s in expr.free_symbols if s.name in self.found}))
                raise ShapeError(port.name, dim, size, (wanted, wanted), f"as the {why} requires" if why else "")
            return
        value = solve_for(expr, unknown[0], size) if len(expr.free_symbols) == 1 else None
        if value is None:
            allowed = port.ranges[dim or 0]
            raise ShapeError(port.name, dim, size, (allowed.min, allowed.max), f"sizes of the form {expr}")
        self.symbols[unknown[0]] = value
        self.found[unknown[0]] = _describe_size(port, dim)


def _describe_size(port: Port, dim: int | None) -> str:
    return f"value of input {port.name}" if dim is None else f"size of input {port.name} in dimension {dim}"


def _relation_error(program: Program, relation: Relation, symbols: Mapping[str, int]) -> ShapeError:
    """Return the error for sizes that violate a relation; it names the first input with a symbol of the relation."""
    for port in program.inputs:
        for dim, expr in enumerate(port.shape if port.kind == "tensor" else (port.value,)):
            names = set() if isinstance(expr, int) or port.kind == "constant" else {s.name for s in expr.free_symbols}
            if names & relation.symbols:
                allowed, size = port.ranges[dim], evaluate_size(expr, symbols)
                at = None if port.kind == "symint" else dim
                return ShapeError(port.name, at, size, (allowed.min, allowed.max), f"sizes that obey {relation.words}")
    raise AssertionError(f"no input has a size that the relation {relation.words} contains")
