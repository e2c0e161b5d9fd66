"""Compare the captured graph with the module that it was captured from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from attrs import evolve
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_unflatten

from pipeline.agreement import Agreement, OutputAgreement
from pipeline.aten.types import Argument, Leaf, Target
from pipeline.compose.events import report
from pipeline.errors import worded
from pipeline.frontend.origin import Original, modes, origin_of
from pipeline.program import Output, Program
from pipeline.runtime.ambient import autocast_in, without_autocast
from pipeline.verification.bounds import MULTIPLE, judged
from pipeline.verification.eager import products_in_tf32
from pipeline.verification.measure import Comparison
from pipeline.verification.reference import NotComparableError, Reference


def beside_module(
    agreement: Agreement, comparison: Comparison, program: Program, multiple: float = MULTIPLE
) -> Agreement:
    """The agreement, with a row of source ``module`` for each output and sample that the module itself gives. Where it
    is not comparable, `Agreement.module` says why."""
    rows, why = list[OutputAgreement](), list[str]()
    if not comparison.references:
        return agreement
    if len(comparison.unjudged) == len(comparison.names):
        return evolve(agreement, module="; ".join(sorted(set(comparison.unjudged.values()))) or "it gives nothing")
    try:
        module = None if program.buffers else _copied(original(program), program)  # one for all, unless a call writes
        for i, reference in enumerate(_references(comparison, program, multiple)):
            report(i, len(comparison.references), f"the module, {reference.sample.name}")
            found = _rows(comparison, program, reference, module)
            kept = module is not None and i and not all(row.holds for row in found)
            rows += _rows(comparison, program, reference) if kept else found  # of a call before, maybe: in a new copy
    except NotComparableError as error:
        why.append(error.message)
    return evolve(agreement, rows=(*agreement.rows, *rows), module="; ".join(why))


def _references(comparison: Comparison, program: Program, multiple: float) -> Iterator[Reference]:
    """What the graph gives for the samples, on the module's own device; where others ran elsewhere, for one."""
    device = _device(original(program), comparison)
    for reference in comparison.references:
        if device.type == reference.device.type:
            yield reference
    others = [r for r in comparison.references if device.type != r.device.type]
    for reference in sorted(others, key=lambda r: r.sample.name != "optimal")[:1]:
        sample = evolve(reference.sample, leaves=reference.inputs, others=None)
        tf32 = comparison.tf32 and device.type == "cuda"
        yield Reference.of(sample, reference.source, reference.parameters, device, tf32, multiple)


def _device(module: Original, comparison: Comparison) -> torch.device:
    tensors = (*module.parameters(), *module.buffers()) if isinstance(module, torch.nn.Module) else ()
    return next((t.device for t in tensors), comparison.references[0].device)


def original(program: Program) -> Original:
    """The module that a program was captured from, as it was then.

    Raises:
        NotComparableError: it is not there, or was changed since.
    """
    origin = origin_of(program)
    if origin is None:
        raise NotComparableError("the program was captured from none, or loaded")
    if origin.changed:
        raise NotComparableError("a stage changed the graph before it was decomposed")
    model = origin.model
    if model is None:
        raise NotComparableError("it does not exist any more")
    if modes(model) != origin.modes:
        raise NotComparableError("its parts, or whether they are in training, changed since it was captured")
    if _others(model, program):
        raise NotComparableError("its weights are others than the program's")
    return model


def _others(model: Original, program: Program) -> bool:
    """Whether a parameter or buffer is another tensor than the program has by this name."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return False
    rows = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return any(program.parameters.get(name, tensor) is not tensor for name, tensor in rows)


def _rows(
    comparison: Comparison, program: Program, reference: Reference, module: Original | None = None
) -> list[OutputAgreement]:
    """The rows of a sample, by this copy of the module or a new one."""
    given = _results(comparison, program, reference, module)
    exact = reference.exact or (None,) * len(given)
    rows = list[OutputAgreement]()
    for i, (a, b, c) in enumerate(zip(given, reference.eager, exact, strict=True)):
        row = OutputAgreement(comparison.names[i], reference.sample.name, exact=reference.against, source="module")
        if i in comparison.unjudged:
            rows.append(evolve(row, unjudged=comparison.unjudged[i]))
        else:
            rows.append(judged(row, reference.bounds[i], a, b, c, partial(reference.varies, i)))
    return rows


def _results(comparison: Comparison, program: Program, reference: Reference, module: Original | None) -> list[Leaf]:
    """What a copy of the module gives, and writes to buffers and inputs, in the order of the program's outputs."""
    leaves = [v.to(reference.device, copy=True) if isinstance(v, torch.Tensor) else v for v in reference.inputs]
    args, kwargs = tree_unflatten(leaves, program.in_spec)
    module = _copied(original(program), program) if module is None else module
    try:
        with _as_eager(program, reference.device, comparison.tf32):
            returned = tree_leaves(module(*args, **kwargs))
    except Exception as error:  # it is the user's code, on inputs that it may refuse
        said = next(iter(worded(error).splitlines()), "")
        raise NotComparableError(f"it raises {said} (inputs: {reference.sample.name})") from error
    outputs = [output for output in program.outputs if output.kind != "check"]
    due = sum(output.kind == "user" for output in outputs)
    if len(returned) != due:
        raise NotComparableError(f"it returns {len(returned)} values, and the captured graph {due}")
    values, state = iter(returned), _state(module)
    written = dict(zip((port.name for port in program.inputs), leaves, strict=True))

    def value(output: Output) -> Argument:
        if output.kind == "user":
            return next(values)
        return written[output.target] if output.kind == "input" else state.get(output.target)

    return [value(output) for output in outputs]


@contextmanager
def _as_eager(program: Program, device: torch.device, tf32: bool) -> Iterator[None]:
    """While a module is called as it was captured: without gradients, with its autocast; random numbers are drawn as
    if it had not been called."""
    gpu = device.type == "cuda"
    with ExitStack() as around:
        around.enter_context(torch.no_grad())
        around.enter_context(torch.random.fork_rng([device] if gpu else []))
        around.enter_context(products_in_tf32(tf32 and gpu))
        around.enter_context(without_autocast())
        around.enter_context(autocast_in(program.origin.autocast))
        yield


def _state(module: Original) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers(remove_duplicate=False)) if isinstance(module, torch.nn.Module) else {}


def _copied(module: Original, program: Program) -> Original:
    """A copy to call: over the same parameters, with buffers and other state of its own.

    Raises:
        NotComparableError: it cannot be copied.
    """
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        if program.buffers:
            raise NotComparableError("it is TorchScript that writes to its buffers, and a call would change it")
        return module
    try:
        with _Detached():
            return copy.deepcopy(module, {id(p): p for p in module.parameters()})
    except Exception as error:  # each of its attributes may refuse to be copied
        raise NotComparableError(f"it cannot be copied: {next(iter(worded(error).splitlines()), '')}") from error


class _Detached(TorchFunctionMode):
    """While a module is copied: what was computed from parameters, which torch does not copy, is detached first."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
