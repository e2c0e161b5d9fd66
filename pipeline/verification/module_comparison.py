"""Compare a captured graph with the original model: run a copy of the module from which the graph was captured."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from attrs import evolve
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument, Leaf, Target
from pipeline.capture.origin import SourceModel, origin_of, training_modes
from pipeline.compose.events import report
from pipeline.errors import error_text
from pipeline.program import Program
from pipeline.records.agreement import Agreement, OutputAgreement
from pipeline.runtime.autocast_context import autocast_with_dtypes, without_autocast
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.eager import use_tf32
from pipeline.verification.measure import Comparison, call_on_copies, compared_outputs
from pipeline.verification.reference import NotComparableError, Reference, output_bounds


def add_module_rows(
    agreement: Agreement, comparison: Comparison, program: Program, multiple: float = MULTIPLE
) -> Agreement:
    """Compare the program's captured graph with the original module, both in eager; return ``agreement`` with a row
    more (``source="module"``) for each output and sample, or with the reason in `Agreement.module` if the module cannot
    run. ``comparison``: the graph's results. ``multiple``: the factor by which errors may exceed the graph's."""
    rows, reason = list[OutputAgreement](), ""
    if not comparison.references:
        return agreement
    if len(comparison.unjudged) == len(comparison.names):
        return evolve(agreement, module="; ".join(sorted(set(comparison.unjudged.values()))) or "there are no outputs")
    try:
        model = original_module(program)
        tensors = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
        device = next((t.device for t in tensors), comparison.references[0].device)
        for i, reference in enumerate(_references_on(comparison, device, multiple)):
            report(i, len(comparison.references), f"the module, {reference.sample.name}")
            values = _run_copy(comparison, program, reference, _copy_module(model, program))
            rows += comparison.compare_sample(reference, values, "module")
    except NotComparableError as error:
        reason = error.message
    return evolve(agreement, rows=(*agreement.rows, *rows), module=reason)


def _references_on(comparison: Comparison, device: torch.device, multiple: float) -> Iterator[Reference]:
    """Yield the captured graph's eager results on ``device``, the module's: those of ``comparison`` if it ran on such a
    device; else new ones, for one sample. ``multiple``: the factor by which errors may exceed the graph's."""
    for reference in comparison.references:
        if device.type == reference.device.type:
            yield reference
    others = [r for r in comparison.references if device.type != r.device.type]
    for reference in sorted(others, key=lambda r: r.sample.name != "optimal")[:1]:
        sample = evolve(reference.sample, leaves=reference.inputs, others=None)
        tf32 = comparison.tf32 and device.type == "cuda"
        bounds = output_bounds(reference.source, device, tf32, multiple)
        yield Reference.compute(sample, reference.source, reference.parameters, device, tf32, bounds)


def original_module(program: Program) -> SourceModel:
    """Return the module from which a program was captured, if its state is still as it was at capture.

    Raises:
        NotComparableError: the module no longer exists, or was changed since.
    """
    origin = origin_of(program)
    if origin is None:
        raise NotComparableError("the program was loaded, or captured from an ExportedProgram: it has no module")
    if origin.changed:
        raise NotComparableError("a stage changed the captured graph, so that the module may compute something else")
    model = origin.model
    if model is None:
        raise NotComparableError("the module was deleted after its capture")
    if training_modes(model) != origin.modes:
        raise NotComparableError("the module's submodules, or their training mode, changed since it was captured")
    tensors = () if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction) else _named_tensors(model)
    if any(program.parameters.get(name, tensor) is not tensor for name, tensor in tensors):
        raise NotComparableError("the module and the program have different weights: one of them was moved or refitted")
    return model


def _named_tensors(model: SourceModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module; a shared tensor is yielded once for each of its names."""
    for path, part in model.named_modules(remove_duplicate=False) if isinstance(model, torch.nn.Module) else ():
        yield from part.named_parameters(path, recurse=False, remove_duplicate=False)
        yield from part.named_buffers(path, recurse=False, remove_duplicate=False)


def _run_copy(comparison: Comparison, program: Program, reference: Reference, module: SourceModel) -> list[Leaf]:
    """Run a copy of the module on the sample of ``reference``, with the TF32 setting of ``comparison``; return results
    and mutated tensors, in the order of ``program.outputs``."""
    on_gpu = reference.device.type == "cuda"

    def call(*args: Leaf, **kwargs: Leaf) -> list[Leaf]:
        try:
            with (  # as at capture
                torch.no_grad(),
                torch.random.fork_rng([reference.device] if on_gpu else []),
                use_tf32(comparison.tf32 and on_gpu),
                without_autocast(),
                autocast_with_dtypes(program.origin.autocast),
            ):
                returned = tree_leaves(module(*args, **kwargs))
        except Exception as error:  # it is the user's code, on inputs that it may refuse
            message = next(iter(error_text(error).splitlines()), "")
            raise NotComparableError(f"the module raises {message} (inputs: {reference.sample.name})") from error
        expected = sum(output.kind == "user" for output in compared_outputs(program))
        if len(returned) != expected:
            raise NotComparableError(
                f"the module returns {len(returned)} values, but its captured graph returns {expected}"
            )
        return returned

    def mutated_buffer(buffer: str) -> Leaf:
        named = module.named_buffers(remove_duplicate=False) if isinstance(module, torch.nn.Module) else ()
        return dict(named).get(buffer)

    return call_on_copies(call, program, reference, mutated_buffer)


def _copy_module(module: SourceModel, program: Program) -> SourceModel:
    """Return a copy of a module that shares its parameters, and has its own buffers and other state.

    Raises:
        NotComparableError: the module cannot be copied.
    """
    if isinstance(module, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        if program.buffers:
            raise NotComparableError("the TorchScript module writes to its buffers, so a call would change it")
        return module
    try:
        return copy_sharing_parameters(module)
    except Exception as error:  # each of its attributes may refuse to be copied
        first_line = next(iter(error_text(error).splitlines()), "")
        raise NotComparableError(f"copying the module fails: {first_line}") from error


def copy_sharing_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Return a ``copy.deepcopy`` that shares the module's parameters."""
    with _DetachComputed():
        return copy.deepcopy(module, {id(p): p for p in module.parameters()})


class _DetachComputed(TorchFunctionMode):
    """A mode in which ``copy.deepcopy`` detaches tensors that were computed with gradients; else torch raises."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
