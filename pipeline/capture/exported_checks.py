"""Check exports: a user's ``ExportedProgram``, the inputs that are passed with it, and what a program assumes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any, Final

import torch
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from pipeline.aten.dtypes import DtypeViolation, find_dtype_violations, short_name
from pipeline.aten.types import Spec, aten
from pipeline.errors import CaptureError, DtypeError, source_line, source_line_in
from pipeline.export_fixes import ExportNotes, check_request, check_values, requested_bounds
from pipeline.inputs import Input
from pipeline.program import Program
from pipeline.shapes.environment import Range, bounds, expression

log = logging.getLogger(__name__)


def check_export(
    exported: ExportedProgram,
    args: object,
    kwargs: object,
    dynamic_shapes: object,
    profiles: Sequence[Spec] | None,
    device: str | None,
) -> ExportNotes:
    """Check a user's ``ExportedProgram`` and the other arguments of `capture`; return its `ExportNotes`: the inputs,
    the ranges that they request, and the profiles.

    Raises:
        TypeError: an input is a `pipeline.Constant`, or ``dynamic_shapes`` is given: both apply to modules only.
        CaptureError: a tensor of the ``ExportedProgram`` has no value.
        ValueError: it was exported on another device than ``device``, or the inputs do not fit it.
    """
    request = check_request(exported, args, kwargs, dynamic_shapes, profiles)
    if request.constants:
        raise TypeError("an ExportedProgram takes no pipeline.Constant as an input: pass the module, or a tensor")
    if request.dynamic_shapes is not None:
        raise TypeError("dynamic_shapes cannot change an ExportedProgram: pass dynamic_shapes to torch.export.export")
    check_values(chain(exported.named_parameters(), exported.named_buffers()))
    _warn_of_shared_inputs(exported)
    for name, value in (exported.state_dict | exported.constants).items():  # fake, or wrapped for a derivative
        is_wrapped = isinstance(value, torch.Tensor) and _functorch.is_gradtrackingtensor(value)
        if is_wrapped or isinstance(value, FakeTensor):
            raise CaptureError(f"the tensor {name} of the ExportedProgram has no readable data", "pass the module")
    values = (node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder")
    found = {v.device.type for v in values if isinstance(v, torch.Tensor)}
    if device is not None and found - {device}:
        was = f"the program was exported on {', '.join(sorted(found))}"
        raise ValueError(f"device is {device!r}, but {was}: pass the module, or export it on that device")
    inputs, ranges = flatten_inputs(exported, request.args, request.kwargs)
    return ExportNotes(inputs, profiles=request.profiles, ranges=ranges)


def flatten_inputs(
    exported: ExportedProgram, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], Mapping[str, tuple[int, int | None]]]:
    """Return the inputs in ``args`` and ``kwargs`` as a flat tuple, and the range that they request for each symbol.

    The tuple is in the order of the ExportedProgram's inputs. A range is (minimum, maximum), or (minimum, None).

    Raises:
        TypeError: the inputs' structure differs from that of the exported inputs.
        ValueError: an input has another dtype or rank, or a size or range that exceeds the exported range.
    """
    if not args and not kwargs:
        return (), {}
    names = [str(name) for name in exported.graph_signature.user_inputs]
    values = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    try:
        found: list[Any] = exported.call_spec.in_spec.flatten_up_to((args, dict(kwargs)))
    except ValueError as error:
        raise TypeError(f"the inputs do not fit the exported inputs ({', '.join(names) or 'none'}): {error}") from None
    wishes = list[tuple[Any, Any]]()
    for name, value in zip(names, found, strict=True):
        expected = values.get(name)
        if isinstance(expected, torch.Tensor) and isinstance(value, torch.Tensor | Input):
            given = value if isinstance(value, Input) else Input.from_tensor(value)
            check_input_fits(name, given, expected, exported)
            ends = ((dim, given.ranges[dim]) for dim in given.dynamic_dims)
            wishes += [(expected.shape[dim], Dim.DYNAMIC(min=low, max=high)) for dim, (low, _, high) in ends]
    return tuple(found), requested_bounds(wishes)


def _warn_of_shared_inputs(exported: ExportedProgram) -> None:
    """Warn if a program was exported with the same tensor for two inputs: torch.export treats them as one input."""
    if exported.example_inputs is None:
        return
    signature = exported.graph_signature
    weights = {**dict(exported.named_parameters()), **dict(exported.named_buffers()), **exported.constants}
    examples = exported.call_spec.in_spec.flatten_up_to(exported.example_inputs)
    rows = [(spec.arg.name, str(spec.target), weights.get(str(spec.target))) for spec in signature.input_specs]
    rows += [(str(name), str(name), value) for name, value in zip(signature.user_inputs, examples, strict=True)]
    read = {node.name for node in exported.graph.nodes if node.op == "placeholder" and node.users}
    inputs = set(map(str, signature.user_inputs))
    first = dict[int, tuple[str, str]]()
    for name, called, value in rows:
        other, known = first.setdefault(id(value), (name, called))
        if isinstance(value, torch.Tensor) and name in inputs and other != name and not {other, name} <= read:
            why = "one tensor was exported as the inputs %s and %s, which torch.export treats as a single input: "
            log.warning(why + "export the model with two tensors", known, called)


def check_input_fits(name: str, value: Input, exported_tensor: torch.Tensor, exported: ExportedProgram) -> None:
    """Raise `ValueError` if an input differs in dtype or rank from the exported input, or exceeds its size ranges.

    A range that begins at 2 includes 1: torch.export treats minimums of 1 and 2 alike, and its module accepts size 1.
    """
    was = _input_with_exported_ranges(exported_tensor, exported)
    fits = (
        value.dtype == was.dtype
        and len(value.ranges) == len(was.ranges)
        and all(
            (1 if least == 2 < most else least) <= low and high <= most
            for (low, _, high), (least, _, most) in zip(value.ranges, was.ranges, strict=True)
        )
    )
    if not fits:
        hint = "pass the module, or export it with this dtype and these sizes"
        raise ValueError(f"input {name} was exported as {was}, not {value}: {hint}")


def _input_with_exported_ranges(fake_input: torch.Tensor, exported: ExportedProgram) -> Input:
    """Return an `Input` with the dtype of an exported input, and with the range of each of its sizes."""

    def limit(end: Any) -> int:
        return int(max(min(end, 2**31 - 1), 0))

    given = exported.range_constraints.items()
    ranges = {str(symbol): Range(limit(r.lower), limit(r.upper), limit(r.upper)) for symbol, r in given}
    ends = [bounds(expression(size), ranges) for size in fake_input.shape]
    low, high = tuple(each.min for each in ends), tuple(each.max for each in ends)
    if low == high:
        return Input(low, dtype=fake_input.dtype)
    return Input(min_shape=low, opt_shape=high, max_shape=high, dtype=fake_input.dtype)


DATA_ASSERTIONS: Final = (aten._assert_async.default, aten._assert_async.msg)
"""The operators that assert conditions on tensor values in an exported graph; programs omit them."""
MASK_SELECTIONS: Final = (aten.index.Tensor, aten.masked_select.default)
"""Operators whose result has as many elements as a bool mask selects."""


def check_assumptions(exported: ExportedProgram, notes: ExportNotes) -> None:
    """Refuse norms that update statistics, and warn of data-dependent conditions that the program assumes to hold:
    asserts in the model, and masks that must select a fixed number of elements. Eager raises an error if one is false.

    Raises:
        CaptureError: a norm updates running statistics in training.
    """
    _check_norms(exported)
    checks, picks = dict.fromkeys(notes.checks), dict[str, None]()
    given = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT}
    data: set[torch.fx.Node] = set()
    for node in exported.graph.nodes:
        if node.name in given or not data.isdisjoint(node.all_input_nodes):
            data.add(node)
        if node.target in DATA_ASSERTIONS or _assumes_selected_count(node, data):
            place = source_line_in(node.meta).partition(",")[0] or node.name
            (checks if node.target in DATA_ASSERTIONS else picks)[place] = None
    if checks:
        log.warning("the model asserts tensor values at %s: engines assume that the asserts hold", ", ".join(checks))
    if picks:
        why = "the model works only for a fixed number of selected elements at %s: engines assume it, without a check"
        log.warning(why, ", ".join(picks))


def _check_norms(exported: ExportedProgram) -> None:
    """Raise a `CaptureError` if a norm updates running statistics in training: its schema does not declare that it
    writes them, so torch.export loses the update."""
    norms = (aten.native_batch_norm.default, aten.instance_norm.default)
    modules = (each for each in exported.graph_module.modules() if isinstance(each, torch.fx.GraphModule))
    for node in (node for module in modules for node in module.graph.nodes if node.target in norms):
        if node.args[5] and node.args[3] is not None:  # training, with running statistics
            why = f"{node.target} at {source_line_in(node.meta) or node.name} updates running statistics in training"
            raise CaptureError(f"{why}, and torch.export does not record that", "call model.eval() first")


def _assumes_selected_count(node: torch.fx.Node, data_dependent: Set[torch.fx.Node]) -> bool:
    """Return whether a node selects elements by a mask in ``data_dependent``, and the model works for one number of
    selected elements only: ``x[mask]`` in ``x[mask].view(4, 8)``."""
    if node.target not in MASK_SELECTIONS or free_unbacked_symbols(node.meta["val"]):
        return False
    values = [each.meta.get("val") for each in tree_leaves(node.args[1]) if each in data_dependent]
    return any(isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8) for value in values)


def check_dtypes(program: Program, _: ExportNotes) -> Program:
    """Return the program unchanged if eager accepts its dtypes; torch's fake tensors accept more combinations.

    Raises:
        DtypeError: an input has a wrong dtype; the message names the input, the operator and its line.
        CaptureError: the model itself combines tensors of two dtypes.
    """
    inputs = {port.name for port in program.inputs}
    usual = {torch.float32, *(tensor.dtype for tensor in program.parameters.values())}
    for node in program.graph.nodes:
        found = sorted(find_dtype_violations(node), key=lambda misfit: misfit.actual in usual)
        for misfit in found:
            sources = _placeholders_of_wrong_dtype(misfit)
            if sources and sources <= inputs:
                name = next(port.name for port in program.inputs if port.name in sources)
                raise DtypeError(name, short_name(misfit.actual), misfit.expected, _violation_text(node, misfit))
        if first := next(iter(found), None):
            text, actual = _violation_text(node, first), short_name(first.actual)
            have = f"the model has a dtype error: {text}: found {actual}, expected {first.expected}"
            raise CaptureError(have, "cast the value in the model: eager also fails")
    return program


def check_resizes(program: Program, _: ExportNotes) -> Program:
    """Return the program unchanged if it resizes no input or buffer, as torch resizes ``out=`` tensors of another size.

    Raises:
        CaptureError: the program resizes an input or buffer.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    held = {target: values.get(name) for name, target in program.buffers.items()}
    for output in program.outputs:
        before = held.get(output.target) if output.kind == "buffer" else values.get(output.target)
        after = values.get(output.value)
        if output.kind in ("buffer", "input") and isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            old, new = ([expression(size) for size in value.shape] for value in (before, after))
            differ = [a != b and isinstance(a, int) and isinstance(b, int) for a, b in zip(old, new, strict=False)]
            if len(old) != len(new) or any(differ):
                why = f"the model resizes its {output.kind} {output.target} from {old} to {new}"
                raise CaptureError(why, "pass a tensor of the final size, or return the result instead of resizing")
    return program


def _placeholders_of_wrong_dtype(violation: DtypeViolation) -> set[str]:
    """Return the names of the inputs and weights from which the operand ``violation.node`` got its wrong dtype."""
    seen, todo = set[torch.fx.Node](), [violation.node]
    while todo:
        node = todo.pop()
        value = node.meta.get("val")
        if node not in seen and isinstance(value, torch.Tensor) and value.dtype == violation.actual:
            seen.add(node)
            todo += node.all_input_nodes
    return {node.name for node in seen if node.op == "placeholder"}


def _violation_text(node: torch.fx.Node, violation: DtypeViolation) -> str:
    """Return the operator, its source line and the violated rule as one line of text."""
    where = source_line(node)
    return f"{node.target}{where and f' ({where})'} {violation.reason}"
