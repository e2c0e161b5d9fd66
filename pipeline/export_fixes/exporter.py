"""Export a module with torch.export, with the requested ranges or the nearest that the model allows."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import TypeAlias

import torch
from attrs import evolve
from torch._dynamo.exc import UserError, UserErrorType
from torch._ops import OpOverload
from torch.export import ExportedProgram, _trace
from torch.utils._pytree import tree_flatten

from pipeline.aten.arguments import argument
from pipeline.aten.types import Argument, Spec
from pipeline.errors import CaptureError, PipelineError, source_line, worded
from pipeline.export_fixes import branches, module_methods, packed_sequence, remembered
from pipeline.export_fixes import dynamic_shapes as ranges
from pipeline.export_fixes import example_guards as decisions
from pipeline.export_fixes import input_checks as checks
from pipeline.export_fixes.attempts import ATTEMPTS, NUMBERS, First, Way
from pipeline.export_fixes.error_attribution import BRANCHES, blamed
from pipeline.export_fixes.example_guards import has_values, with_outputs
from pipeline.export_fixes.export_steps import collected_violations
from pipeline.export_fixes.fake_device_copy import attributes, fake_copy_on, is_elsewhere
from pipeline.export_fixes.functorch import has_transforms
from pipeline.export_fixes.known_values import tracked
from pipeline.export_fixes.model_state import noted, state_kept, watched
from pipeline.export_fixes.patch_contexts import by_the_example, exported_quantizers, exporting, exporting_by
from pipeline.export_fixes.requests import ExportNotes, Request, requested
from pipeline.export_fixes.restore_model_state import untouched
from pipeline.export_fixes.runtime_asserts import collected, none_is_caught
from pipeline.export_fixes.torchscript.module import interpreted
from pipeline.export_fixes.value_hooks import exported_again
from pipeline.inputs import Constant, is_input
from pipeline.records.wording import kind_of
from pipeline.runtime.autocast_context import is_autocast_on, under_autocast, without_autocast
from pipeline.settings import CompilationSettings
from pipeline.shapes.guards import fixed_numbers

log = logging.getLogger(__name__)

Export: TypeAlias = Callable[[Spec, Way], ExportedProgram]
"""Export a model with some dynamic shapes, in a way."""


def export(
    model: object,
    args: object,
    kwargs: object,
    dynamic_shapes: object,
    settings: CompilationSettings,
    profiles: Sequence[Spec] | None = None,
) -> tuple[ExportedProgram, ExportNotes]:
    """Export a module or TorchScript, under the autocast that is active around the call.

    Raises:
        CaptureError: torch.export cannot export it; torch's message is kept.
        TypeError: it is no module, or the inputs do not fit it.
    """
    module: torch.nn.Module = interpreted(model)
    request = requested(module, args, kwargs, dynamic_shapes, profiles)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model is {kind_of(module)}: pass an nn.Module, an ExportedProgram or TorchScript")
    checks.check_module(module)
    inside = under_autocast(module) if is_autocast_on() else module
    with without_autocast():
        exported, shapes, notes = _traced(inside, request, settings)
    wishes = ranges.wishes(exported, inside, request.args, request.kwargs, shapes)
    held = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return exported, evolve(
        notes,
        inputs=request.leaves,
        profiles=request.profiles,
        ranges=ranges.asked(wishes),
        constants=request.constants,
        tensors={**attributes(module), **dict(held)},
    )


def _traced(
    model: torch.nn.Module, request: Request, settings: CompilationSettings
) -> tuple[ExportedProgram, object, ExportNotes]:
    """Return the export, the requested ranges of its dims, and the notes, by the example if settings allow."""
    export = partial(_export, model, request.args, request.kwargs, request.dynamic_shapes, settings.device)
    inputs = (request.args, request.kwargs)
    elsewhere = settings.device is not None and is_elsewhere(settings.device, model, inputs)
    try:
        return _noted(model, export, request.constants, "python")
    except CaptureError:
        if settings.decisions != "example" or elsewhere or not has_values(inputs):
            raise
    return _noted(model, export, request.constants, "example")


def _noted(
    model: torch.nn.Module,
    export: Callable[[Way], tuple[ExportedProgram, object]],
    constants: Mapping[int, Constant],
    way: Way,
) -> tuple[ExportedProgram, object, ExportNotes]:
    with (
        state_kept(model) as kept,
        collected() as found,
        tracked(constants) as known,
        module_methods.as_called(),
        decisions.collected() as decided,
    ):
        exported, shapes = export(way)
        kept.check()
        if found.caught and way == "python":
            why = f"the model checks its data at {found.caught}, and may catch the error: data decides a branch"
            raise CaptureError(why, BRANCHES)
    _check_training(model, exported)
    places = with_outputs(exported, decided) if way == "example" else ()
    return exported, shapes, ExportNotes(checks=tuple(found.places), reads=known.names, decisions=places)


def _check_training(model: torch.nn.Module, exported: ExportedProgram) -> None:
    """Warn of the first operator in training mode, which is rarely intended."""
    for node in exported.graph.nodes if getattr(model, "training", False) else ():
        if isinstance(node.target, OpOverload):
            given = {each.name: argument(node, each.name) for each in node.target._schema.arguments}
            dropped = next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), 1)
            if dropped and (given.get("train") is True or given.get("training") is True or "dropout_p" in given):
                at, name = source_line(node), type(model).__name__
                why = "capture: %s is in training mode: %s (%s) computes as in training; call model.eval() first"
                log.warning(why, name, node.target, at or "of the model")
                return


def _export(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Argument],
    dynamic_shapes: object,
    device: str | None,
    way: Way,
) -> tuple[ExportedProgram, object]:
    """Return the export of the first attempt that succeeds, and the requested ranges of its dims."""
    shapes = ranges.merged_dynamic_shapes(model, args, kwargs, dynamic_shapes)

    def export(other: Spec, another: Way) -> ExportedProgram:
        return _exported(model, args, kwargs, other, device, another)

    def is_taken(exported: ExportedProgram) -> bool:
        return _relaxed(exported, model, args, kwargs, shapes)

    with collected_violations() as violations:
        exported, error = _first(export, is_taken, shapes, way, violations)
        derived = any(hasattr(dim, "root") for dim in tree_flatten(shapes)[0])
        ours = any(map(ranges.is_dynamic, tree_flatten((args, kwargs), is_leaf=is_input)[0]))
        fixed = exported is not None and ranges.specialised(exported, shapes)
        first = First(model, shapes, way, error, ours, fixed, bool(violations) and not derived)
        if exported is not None and error is None:
            count = fixed_numbers(exported.graph) if way == "python" else 0

            def has_fewer(other: ExportedProgram) -> bool:
                return is_taken(other) and fixed_numbers(other.graph) < count

            return (_first_success(first, export, has_fewer) if count else None) or exported, shapes
    assert error is not None
    found = _first_success(first, export, is_taken)
    if found is None:
        raise blamed(
            error, model, (args, kwargs), lambda given: _exported(model, *given, shapes, device, way)
        ) from error
    return found, shapes


def _first(
    export: Export, is_taken: Callable[[ExportedProgram], bool], shapes: Spec, way: Way, violations: Sequence[Exception]
) -> tuple[ExportedProgram | None, Exception | None]:
    """Return the first export, and why it does not have the requested ranges."""
    derived = any(hasattr(dim, "root") for dim in tree_flatten(shapes)[0])
    try:
        exported = export(shapes, way)
        kept = not derived or all(ranges.is_of_plain_dims(error, shapes) for error in violations)
        if violations and not (kept and is_taken(exported)):
            return exported, UserError(UserErrorType.CONSTRAINT_VIOLATION, str(violations[0]))
    except PipelineError:  # the model's interpreter, in words of our own
        raise
    except Exception as error:  # the range, or torch's own words about it, fail in many ways
        return None, error
    return exported, None


def _first_success(first: First, export: Export, is_taken: Callable[[ExportedProgram], bool]) -> ExportedProgram | None:
    """Return the export of the first attempt in the table that has the requested ranges; None if none has."""
    name = type(first.model).__name__
    for attempt in (NUMBERS,) if first.error is None else ATTEMPTS:
        for shapes, way in attempt.tries(first):
            try:
                exported = export(shapes, way)
                if is_taken(exported):
                    log.info("%s is exported by the attempt %r: %s", name, attempt.name, attempt.changes)
                    return exported
                log.debug("%s: the attempt %r gave other ranges, or fixed a number", name, attempt.name)
            except Exception as error:
                log.debug("%s: the attempt %r failed: %s", name, attempt.name, worded(error))
    return None


def _exported(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Argument],
    shapes: Spec,
    device: str | None,
    way: Way = "python",
) -> ExportedProgram:
    place = checks.places(model, (args, kwargs), device)
    positional, named = ranges.examples(model, args, kwargs, shapes, place)
    if device is not None and is_elsewhere(device, model, (positional, named)):
        model, positional, named = fake_copy_on(device, model, positional, named)
    watch = nullcontext() if way == "bytecode" else watched(model, way == "example")
    quiet = warnings.catch_warnings()
    with (
        torch.no_grad(),
        quiet,
        exporting(),
        untouched(model),
        _strategy_context(way, model),
        exported_quantizers(),
        watch,
    ):
        warnings.simplefilter("ignore")
        exported: ExportedProgram
        if way == "autograd":
            export = partial(_trace._export, model, positional, named, shapes, strict=False, pre_dispatch=False)
        else:
            by = {"dynamic_shapes": shapes, "strict": way == "bytecode"}
            export = partial(torch.export.export, model, positional, named, **by)
        with none_is_caught(), branches.traced():
            exported = exported_again(export, model)
    if way != "autograd" and has_transforms(exported.graph_module):
        return _exported(model, args, kwargs, shapes, device, "autograd")
    ranges.attended(exported)
    packed_sequence.settled(exported)
    noted(partial(_exported, model, args, kwargs, shapes, device, way))
    return exported


def _strategy_context(way: Way, model: torch.nn.Module) -> AbstractContextManager[None]:
    """Return the context of an export by this strategy."""
    if way == "anew":
        return remembered.forgotten(model)
    if way == "example":
        return by_the_example()
    return exporting_by(way) if way in ("called", "comparing") else nullcontext()


def _relaxed(
    exported: ExportedProgram,
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Argument],
    shapes: object,
) -> bool:
    """Return whether an export with relaxed ranges still has dynamic sizes for these dims."""
    wishes = ranges.wishes(exported, model, args, kwargs, shapes)
    return not ranges.specialised(exported, shapes) and ranges.unified(wishes)
