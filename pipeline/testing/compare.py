"""Compare the results of a call or a whole program with eager's and float64 results.
An error may be at most eager's error plus a tolerance; integers and bools must equal eager's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_flatten

from pipeline.aten.types import Leaf
from pipeline.program import Program
from pipeline.records.wording import kind_of
from pipeline.testing.calls import Call
from pipeline.testing.memory import named_leaves
from pipeline.testing.ulps import PROGRAM, Units, tolerance_for
from pipeline.verification.bounds import largest_magnitude
from pipeline.verification.reference import coarsest_dtype

LARGEST_PLAIN_INPUT = 8.0
"""The expected magnitude of values inside a program: errors may be as large as for values of that magnitude."""


@frozen
class Expected:
    """The expected results of a call, three for each output: ``eager`` PyTorch's, the ``exact`` one in float64, and the
    ``absolute`` one, computed from the inputs' absolute values: a scale for the tolerance of sums, whose terms may
    cancel. A result that PyTorch cannot compute is None.

    Complex results are pairs of reals in a last dim of size 2; ``pairs`` says which results are complex.
    """

    call: Call
    eager: tuple[Leaf, ...] = field(eq=False, repr=False)
    exact: tuple[Leaf, ...] = field(eq=False, repr=False)
    absolute: tuple[Leaf, ...] = field(eq=False, repr=False)
    largest_input: float = 0.0
    pairs: tuple[bool, ...] = ()


def compute_expected(call: Call, sizes: Mapping[str, int], dtypes: Sequence[torch.dtype]) -> Expected:
    """Run the operator in PyTorch with the call's own dtypes, and in float64. Also run it on the absolute values of the
    inputs, if the operator's tolerance in ``ULPS`` has the scale ``"absolute"``. ``dtypes``: the dtypes of the results.

    If PyTorch has no CPU kernel for the call's dtypes, `Expected.eager` has the float64 results, rounded to ``dtypes``.
    """
    tensors = call.create_tensors(sizes)
    doubles = _inputs_in_float64(tensors, any(d.is_floating_point for d in dtypes))
    rounded = next((t.dtype for t in tensors if t.is_floating_point()), None)
    rounds = rounded is not None and tolerance_for(call.target, rounded).rounds_numbers

    def as_exact(value: Leaf) -> Leaf:
        return torch.tensor(value, dtype=rounded).item() if rounds and isinstance(value, float) else _widen_dtype(value)

    exact = _try_call(call, sizes, doubles, as_exact)
    eager = _try_call(call, sizes, tensors)
    if eager is None:
        if exact is None:
            call.run_eager(sizes)
        eager = tuple(None if e is None else e.to(d) for e, d in zip(exact or (), dtypes, strict=True))
    absolute = None
    if any(tolerance_for(call.target, d).scale == "absolute" for d in dtypes if d.is_floating_point):
        absolute = _try_call(call, sizes, [t.abs() if _is_inexact(t) else t for t in doubles], _widen_dtype)
    nothing = (None,) * len(eager)
    pairs = tuple(e is not None and e.is_complex() for e in eager)
    absolute = tuple(  # the bound of a complex number is that of each of its parts
        torch.stack((a, a), -1) if pair and a is not None else a
        for a, pair in zip(absolute or nothing, pairs, strict=True)
    )
    largest = max((_largest_finite(t) for t in doubles if _is_inexact(t)), default=0.0)
    return Expected(call, _as_real_pairs(eager), _as_real_pairs(exact or nothing), absolute, largest, pairs)


def _inputs_in_float64(tensors: Sequence[torch.Tensor], results_are_floats: bool) -> list[torch.Tensor]:
    """Return the inputs in float64 or complex128, for an exact result. Integers are kept; but if all inputs are
    integers and results are floats, eager would compute in float32, so integers are converted to float64 as well."""
    if results_are_floats and not any(map(_is_inexact, tensors)):
        return [t.float().double() for t in tensors]
    return [t.to(_widen_dtype(t.dtype)) for t in tensors]


def _is_inexact(t: torch.Tensor) -> bool:
    """Return whether a tensor's elements are floating-point or complex numbers."""
    return t.is_floating_point() or t.is_complex()


def _as_real_pairs(results: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Convert complex results to pairs of reals in a last dim of size 2; return all other results unchanged."""
    return tuple(torch.view_as_real(r.resolve_conj()) if r is not None and r.is_complex() else r for r in results)


def _widen_dtype(argument: object) -> Leaf:
    """Return float64 for a float dtype and complex128 for a complex dtype; return any other argument unchanged."""
    if not isinstance(argument, torch.dtype):
        return argument
    return torch.complex128 if argument.is_complex else torch.float64 if argument.is_floating_point else argument


def _try_call(
    call: Call,
    sizes: Mapping[str, int],
    tensors: Sequence[torch.Tensor],
    convert: Callable[[Leaf], object] = lambda value: value,
) -> tuple[Leaf, ...] | None:
    """Call the operator; return its results, or None if PyTorch raises an error. ``convert`` maps each argument."""
    args, kwargs = call.args_with(tensors, sizes)
    args, kwargs = [convert(a) for a in args], {k: convert(a) for k, a in kwargs.items()}
    try:
        with torch.no_grad():
            results = call.target(*args, **kwargs)
    except RuntimeError:
        return None
    flat = results if isinstance(results, tuple | list) else (results,)
    return tuple(flat) if call.outputs is None or flat is not results else tuple(flat[i] for i in call.outputs)


def _largest_finite(t: torch.Tensor) -> float:
    """Return the largest finite magnitude in a tensor; 0 if there is none."""
    return largest_magnitude(t[t.isfinite()])


def describe_difference(expected: Expected, index: int, result: torch.Tensor, executor: str) -> str:
    """Describe how a result differs from the expected one; empty if its errors are within the tolerance."""
    eager = expected.eager[index]
    if result.dtype != eager.dtype:
        return f"the dtype is {result.dtype}, but {eager.dtype} in eager PyTorch"
    if result.shape != eager.shape:
        return f"the shape is {list(result.shape)}, but {list(eager.shape)} in eager PyTorch"
    if not eager.is_floating_point():
        return _show_first_wrong(result != eager, result, eager, eager)
    exact = expected.exact[index]
    exact = eager.double() if exact is None or not exact.is_floating_point() else exact
    row = tolerance_for(expected.call.target, result.dtype)
    row = row.for_complex_results() if expected.pairs[index : index + 1] == (True,) else row
    allowed = _allowed_error(row, expected, index, exact, result.dtype, executor)
    wrong = _wrong_elements(result.double(), eager.double(), exact, allowed)
    fault = _show_first_wrong(wrong, result, eager, exact)
    if fault or not row.signed_zeros or row.scale != "element":
        return fault
    return _show_first_wrong((result == 0) & (eager == 0) & (result.signbit() != eager.signbit()), result, eager, eager)


def _allowed_error(
    tolerance: Units, expected: Expected, index: int, exact: torch.Tensor, dtype: torch.dtype, executor: str
) -> torch.Tensor:
    """Return, for each element, how much larger than eager's its error may be: ``tolerance``, the operator's `Units`,
    at the scale of the result. ``index``: of the result in ``expected``; ``exact``: the same result in float64."""
    info = torch.finfo(dtype)
    size = exact.abs().nan_to_num(0.0, info.max, info.max)
    if tolerance.scale == "pair":
        size = size.norm(dim=-1, keepdim=True).expand_as(size)
    elif tolerance.scale == "tensor":
        size = torch.full_like(exact, max(_largest_finite(exact), expected.largest_input))
    elif tolerance.scale == "absolute" and expected.absolute[index] is not None:
        size = expected.absolute[index].double().abs().nan_to_num(0.0, info.max, info.max)
    units = tolerance.allowed_units(executor, dtype) * info.eps * size.clamp(info.tiny, info.max)
    if tolerance.units and dtype != torch.float16:  # a subnormal number is as good as 0: kernels may flush it
        units = units + info.tiny * (exact.abs() < info.tiny)
    return units + tolerance.exponent_tolerance(executor, exact)


def _wrong_elements(
    result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor
) -> torch.Tensor:
    """Return a mask of elements whose error against the exact results exceeds eager's error plus ``tolerance``.

    NaN and infinities must equal eager's, or the exact results if eager overflows internally: the gelu of inf is NaN in
    eager for tensors of two elements or more.
    """
    eager_error = (eager - exact).abs().nan_to_num(0.0, 0.0, 0.0)
    close = (result - exact).abs() <= eager_error + tolerance
    same = (result == eager) | (result.isnan() & eager.isnan()) | (eager.isnan() & (result == exact))
    return ~(same | (close & result.isfinite() & (eager.isfinite() | exact.isfinite())))


def _show_first_wrong(wrong: torch.Tensor, result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> str:
    """Describe the first wrong element of a result, and say how many elements are wrong."""
    if not bool(wrong.any()):
        return ""
    at = tuple(int(i) for i in wrong.nonzero()[0])
    fault = f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {list(at)}: "
    values = f"{result[at].item()!r}, eager gives {eager[at].item()!r}"
    return fault + values + (f", float64 {exact[at].item()!r}" if exact is not eager else "")


def describe_outputs_difference(
    label: str, eager: object, exact: object, result: object, program: Program, executor: str
) -> str:
    """Describe how a program's outputs differ from eager's and float64's (``exact``); empty if they agree."""
    leaves, spec = named_leaves(eager)
    our_leaves, our_spec = tree_flatten(result)
    if spec != our_spec:
        return f"the {label}s have the structure {our_spec}, but {spec} in eager PyTorch"
    exact = tree_flatten(exact)[0] if exact is not None else [None] * len(our_leaves)
    dtype = coarsest_dtype(program.graph.nodes)
    for (path, eager), ours, double in zip(leaves, our_leaves, exact, strict=True):
        if fault := _describe_leaf_difference(eager, double, ours, dtype, executor):
            return f"{label}{path}: {fault}"
    return ""


def _describe_leaf_difference(eager: object, exact: object, result: object, dtype: torch.dtype, executor: str) -> str:
    if not isinstance(eager, torch.Tensor):
        return "" if type(result) is type(eager) and result == eager else f"{result!r}, eager gives {eager!r}"
    if not isinstance(result, torch.Tensor):
        return f"{kind_of(result)}, eager gives a tensor"
    for name in ("dtype", "shape", "device"):
        if getattr(result, name) != getattr(eager, name):
            return f"the {name} is {getattr(result, name)}, but {getattr(eager, name)} in eager PyTorch"
    wrong = _wrong_in_program(eager, exact, result, dtype, executor) if eager.is_floating_point() else result != eager
    return _show_first_wrong(wrong, result, eager, eager)


def _wrong_in_program(
    eager: torch.Tensor, exact: object, result: torch.Tensor, dtype: torch.dtype, executor: str
) -> torch.Tensor:
    """Return a mask of the elements of a program's ``result`` whose error exceeds twice eager's largest error plus the
    tolerance in `PROGRAM`, by ``dtype`` (the coarsest in the program) and ``executor``. ``exact``: the float64 result,
    against which errors are measured; if it is None, eager's result serves."""
    best = exact if isinstance(exact, torch.Tensor) and exact.shape == eager.shape else eager
    best, single, ours = best.double(), eager.double(), result.double()
    worst, largest = _largest_finite(single - best), _largest_finite(best)
    units = PROGRAM[dtype].allowed_units(executor, dtype) * torch.finfo(dtype).eps
    close = (ours - best).abs() <= 2 * worst + units * max(LARGEST_PLAIN_INPUT, largest)
    return ~(close | (ours == single) | (ours.isnan() & single.isnan()))
