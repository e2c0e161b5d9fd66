"""Compare a captured graph with the original model: run a copy of the module from which the graph was captured."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

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

ATOMS: Final = (type(None), bool, int, float, str, torch.dtype, torch.device)
HOOKS: Final = ("__deepcopy__", "__copy__", "__getnewargs__", "__getnewargs_ex__")
STATE: Final = ("__new__", "__reduce_ex__", "__reduce__", "__getstate__")
"""The methods by which a class defines how it is copied and what its state is."""


def add_module_rows(
    agreement: Agreement, comparison: Comparison, program: Program, multiple: float = MULTIPLE
) -> Agreement:
    """Compare the program's captured graph with the original module, both in eager; return ``agreement`` with a row
    more (``source="module"``) for each output and sample, or with the reason in `Agreement.module` if the module cannot
    run. ``comparison``: the graph's results. ``multiple``: the factor by which errors may exceed the graph's."""
    rows, reasons = list[OutputAgreement](), list[str]()
    if not comparison.references:
        return agreement
    if len(comparison.unjudged) == len(comparison.names):
        return evolve(agreement, module="; ".join(sorted(set(comparison.unjudged.values()))) or "there are no outputs")
    try:
        model = original_module(program)
        shared = _copy_module(model, program)  # one copy for all samples, unless a call writes
        for i, reference in enumerate(_references_on(comparison, _device_of_module(model, comparison), multiple)):
            report(i, len(comparison.references), f"the module, {reference.sample.name}")
            module = _copy_module(model, program) if i and program.buffers else shared
            found = comparison.compare_sample(reference, _run_copy(comparison, program, reference, module), "module")
            if i and module is shared and not all(row.holds for row in found):  # perhaps due to an earlier call: retry
                module = _copy_module(model, program)
                found = comparison.compare_sample(
                    reference, _run_copy(comparison, program, reference, module), "module"
                )
            rows += found
    except NotComparableError as error:
        reasons.append(error.message)
    return evolve(agreement, rows=(*agreement.rows, *rows), module="; ".join(reasons))


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


def _device_of_module(module: SourceModel, comparison: Comparison) -> torch.device:
    tensors = (*module.parameters(), *module.buffers()) if isinstance(module, torch.nn.Module) else ()
    return next((t.device for t in tensors), comparison.references[0].device)


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

    def call(*args: Leaf, **kwargs: Leaf) -> list[Leaf]:
        try:
            with _eager_context(program, reference.device, comparison.tf32):
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


@contextmanager
def _eager_context(program: Program, device: torch.device, tf32: bool) -> Iterator[None]:
    """Return a context in which a module runs as it did at capture: without gradients, and with the same autocast;
    ``tf32``: with TF32 matmuls on a GPU. At the end, the state of random generators is restored."""
    gpu = device.type == "cuda"
    with ExitStack() as around:
        around.enter_context(torch.no_grad())
        around.enter_context(torch.random.fork_rng([device] if gpu else []))
        around.enter_context(use_tf32(tf32 and gpu))
        around.enter_context(without_autocast())
        around.enter_context(autocast_with_dtypes(program.origin.autocast))
        yield


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
    """Return a ``copy.deepcopy`` that shares the module's parameters.

    deepcopy copies twenty fields of each submodule, most of which are empty hook mappings. For submodules without a
    custom copy method, this function creates empty mappings instead, which takes a third of the time.
    """
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    parts = [part for part in module.modules() if _copies_by_default(type(part))]
    memo |= {id(part): object.__new__(type(part)) for part in parts}
    with _DetachComputed():
        for part in parts:
            memo[id(part)].__setstate__({name: _copy_field(value, memo) for name, value in part.__getstate__().items()})
        return copy.deepcopy(module, memo)


def _copies_by_default(module_class: type) -> bool:
    """Return whether a module class has Python's default copy protocol, and only ``torch.nn.Module``'s state."""
    known = all(getattr(module_class, name) is getattr(torch.nn.Module, name) for name in STATE)
    return known and not any(hasattr(module_class, name) for name in HOOKS)


def _copy_field(value: object, memo: dict[int, Any]) -> object:
    """Return ``copy.deepcopy(value, memo)``, the copy of a module's attribute; it takes less time for empty dicts."""
    if type(value) in ATOMS:
        return value
    if type(value) in (dict, OrderedDict) and not value:
        return memo.setdefault(id(value), type(value)())
    return copy.deepcopy(value, memo)


class _DetachComputed(TorchFunctionMode):
    """A mode in which ``copy.deepcopy`` detaches tensors that were computed with gradients; else torch raises."""

    def __torch_function__(self, func: Target, types: object, args: Argument = (), kwargs: Argument = None) -> object:
        if func is torch.Tensor.__deepcopy__ and not args[0].is_leaf:
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))
