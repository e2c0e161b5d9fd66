"""Export a module with torch.export, with the requested ranges or the closest ranges that the model allows."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain

import torch
from attrs import evolve, frozen
from torch._dynamo.exc import UserError, UserErrorType
from torch._ops import OpOverload
from torch.export import ExportedProgram, _trace
from torch.utils._pytree import tree_flatten, tree_leaves

from pipeline.aten.arguments import argument
from pipeline.aten.types import Spec
from pipeline.errors import CaptureError, PipelineError, error_text, source_line
from pipeline.export_fixes import branches, input_checks, module_methods, packed_sequence
from pipeline.export_fixes import dynamic_shapes as ranges
from pipeline.export_fixes.attempts import ATTEMPTS, NUMBERS, First, Way, forgotten
from pipeline.export_fixes.error_attribution import BRANCHES, Inputs, blamed
from pipeline.export_fixes.example_guards import Decisions, decisions, with_outputs
from pipeline.export_fixes.export_steps import collected_violations, has_transforms
from pipeline.export_fixes.fake_device_copy import attributes, fake_copy_on, is_elsewhere
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.known_values import tracked
from pipeline.export_fixes.model_state import Kept, keeps, noted, watched
from pipeline.export_fixes.patch_contexts import by_the_example, exported_quantizers, exporting, exporting_by
from pipeline.export_fixes.requests import ExportNotes, requested
from pipeline.export_fixes.restore_model_state import untouched
from pipeline.export_fixes.runtime_asserts import Checks, checks, none_is_caught
from pipeline.export_fixes.torchscript.module import interpreted
from pipeline.export_fixes.value_hooks import exported_again
from pipeline.inputs import Constant, is_input
from pipeline.records.parameter import Parameter
from pipeline.records.wording import kind_of
from pipeline.runtime.autocast_context import is_autocast_on, under_autocast, without_autocast
from pipeline.settings import CompilationSettings
from pipeline.shapes.guards import fixed_numbers

log = logging.getLogger(__name__)


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
        CaptureError: torch.export cannot export the module; the error contains torch's message.
        TypeError: ``model`` is not a module, or ``forward`` does not accept the inputs.
    """
    module: torch.nn.Module = interpreted(model)
    request = requested(module, args, kwargs, dynamic_shapes, profiles)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model is {kind_of(module)}: pass an nn.Module, an ExportedProgram or TorchScript")
    input_checks.check_module(module)
    inside, inputs = under_autocast(module) if is_autocast_on() else module, (request.args, request.kwargs)
    with without_autocast():
        shapes = ranges.merged_dynamic_shapes(inside, *inputs, request.dynamic_shapes)
        exported, notes = _traced(_Export(inside, inputs, settings.device), shapes, request.constants, settings)
    held = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return exported, evolve(
        notes,
        inputs=request.leaves,
        profiles=request.profiles,
        ranges=ranges.asked(ranges.wishes(exported, inside, inputs, shapes)),
        constants=request.constants,
        tensors={**attributes(module), **dict(held)},
    )


def signature_of(model: object) -> tuple[Parameter, ...]:
    """Return the parameters of ``forward`` or of an export, without ``*args`` and ``**kwargs``. A compiled program
    has the same signature."""
    inner = interpreted(model.module() if isinstance(model, ExportedProgram) else model)
    if not isinstance(inner, torch.nn.Module):
        return ()
    try:
        rows = inspect.signature(inner.forward).parameters.values()
    except (TypeError, ValueError):  # a builtin, which has none
        return ()
    found = []
    for row in rows:
        if row.kind not in (row.VAR_POSITIONAL, row.VAR_KEYWORD):
            plain = type(row.default) in (type(None), bool, int, float, str)
            found.append(Parameter(row.name, row.kind != row.KEYWORD_ONLY, plain, row.default if plain else None))
    return tuple(found)


def _traced(
    export: _Export, shapes: Spec, constants: Mapping[int, Constant], settings: CompilationSettings
) -> tuple[ExportedProgram, ExportNotes]:
    """Return the export and the notes; as a last resort, if settings allow it, the example decides branches."""
    try:
        return _noted(export, shapes, constants, "python")
    except CaptureError:
        has_values = not any(map(is_input, tree_leaves(export.inputs, is_leaf=is_input)))
        if settings.decisions != "example" or export.is_elsewhere or not has_values:
            raise
    return _noted(export, shapes, constants, "example")


def _noted(
    export: _Export, shapes: Spec, constants: Mapping[int, Constant], way: Way
) -> tuple[ExportedProgram, ExportNotes]:
    with (
        set_to(keeps, Kept(export.model)) as kept,
        set_to(checks, Checks()) as found,
        tracked(constants) as known,
        set_to(module_methods.gradients, torch.is_grad_enabled()),
        set_to(decisions, Decisions()) as decided,
    ):
        exported = export.first_success(shapes, way)
        kept.check()
        if found.caught and way == "python":
            why = f"the model checks its data at {found.caught}, and may catch the error: data decides a branch"
            raise CaptureError(why, BRANCHES)
    _check_training(export.model, exported)
    places = with_outputs(exported, decided) if way == "example" else ()
    return exported, ExportNotes(checks=tuple(found.places), reads=known.names, decisions=places)


def _check_training(model: torch.nn.Module, exported: ExportedProgram) -> None:
    """Warn of the first operator that runs in training mode, which is rarely intended."""
    for node in exported.graph.nodes if getattr(model, "training", False) else ():
        if isinstance(node.target, OpOverload):
            given = {each.name: argument(node, each.name) for each in node.target._schema.arguments}
            dropped = next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), 1)
            if dropped and (given.get("train") is True or given.get("training") is True or "dropout_p" in given):
                at, name = source_line(node), type(model).__name__
                why = "capture: %s is in training mode: %s (%s) computes as in training; call model.eval() first"
                log.warning(why, name, node.target, at or "of the model")
                return


@frozen(eq=False)
class _Export:
    """A model and example inputs, which are exported as on ``device``; None: on their own devices."""

    model: torch.nn.Module
    inputs: Inputs
    device: str | None

    @property
    def is_elsewhere(self) -> bool:
        return self.device is not None and is_elsewhere(self.device, self.model, self.inputs)

    def first_success(self, shapes: Spec, way: Way) -> ExportedProgram:
        """Return the export of the first attempt that succeeds."""
        with collected_violations() as violations:
            exported, error = self.first(shapes, way, violations)
            ours = any(map(ranges.is_dynamic, tree_flatten(self.inputs, is_leaf=is_input)[0]))
            fixed = exported is not None and ranges.specialised(exported, shapes)
            narrower = bool(violations) and not ranges.has_derived(shapes)
            first = First(self.model, shapes, way, error, ours, fixed, narrower)
            if exported is not None and error is None:
                count = fixed_numbers(exported.graph) if way == "python" else 0
                return (self.attempted(first, count) if count else None) or exported
        assert error is not None
        found = self.attempted(first)
        if found is None:
            raise blamed(
                error, self.model, self.inputs, lambda given: evolve(self, inputs=given).exported(shapes, way)
            ) from error
        return found

    def first(
        self, shapes: Spec, way: Way, violations: Sequence[Exception]
    ) -> tuple[ExportedProgram | None, Exception | None]:
        """Return the first export or None, and the error why it failed or lacks the requested ranges, or None."""
        try:
            exported = self.exported(shapes, way)
            kept = not ranges.has_derived(shapes) or all(ranges.is_of_plain_dims(each, shapes) for each in violations)
            if violations and not (kept and self.has_ranges(exported, shapes)):
                return exported, UserError(UserErrorType.CONSTRAINT_VIOLATION, str(violations[0]))
        except PipelineError:  # the model's interpreter, in words of our own
            raise
        except Exception as error:  # the range, or torch's own words about it, fail in many ways
            return None, error
        return exported, None

    def attempted(self, first: First, fixed: int | None = None) -> ExportedProgram | None:
        """Return the first export by an attempt of the table that has the requested ranges and fewer than ``fixed``
        specialized numbers; None if no attempt succeeds."""
        name = type(self.model).__name__
        for attempt in ATTEMPTS if fixed is None else (NUMBERS,):
            for shapes, way in attempt.tries(first):
                try:
                    exported = self.exported(shapes, way)
                    fewer = fixed is None or fixed_numbers(exported.graph) < fixed
                    if self.has_ranges(exported, first.shapes) and fewer:
                        log.info("%s is exported by the attempt %r: %s", name, attempt.name, attempt.changes)
                        return exported
                    log.debug("%s: the attempt %r gave other ranges, or fixed a number", name, attempt.name)
                except Exception as error:
                    log.debug("%s: the attempt %r failed: %s", name, attempt.name, error_text(error))
        return None

    def has_ranges(self, exported: ExportedProgram, shapes: Spec) -> bool:
        """Return whether dims that have ranges in ``shapes`` are dynamic in an export with relaxed ranges."""
        wishes = ranges.wishes(exported, self.model, self.inputs, shapes)
        return not ranges.specialised(exported, shapes) and ranges.unified(wishes)

    def exported(self, shapes: Spec, way: Way) -> ExportedProgram:
        """Return the export with these dynamic shapes and this trace mode."""
        model, place = self.model, input_checks.places(self.model, self.inputs, self.device)
        inputs = ranges.examples(model, self.inputs, shapes, place)
        if self.device is not None and is_elsewhere(self.device, model, inputs):
            model, inputs = fake_copy_on(self.device, model, inputs)
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            exporting(),
            untouched(model),
            _way_context(way, model),
            exported_quantizers(),
            nullcontext() if way == "bytecode" else watched(model, way == "example"),
            none_is_caught(),
            set_to(branches.trace, branches.Trace()),
        ):
            warnings.simplefilter("ignore")
            if way == "autograd":
                export = partial(_trace._export, model, *inputs, shapes, strict=False, pre_dispatch=False)
            else:
                by = {"dynamic_shapes": shapes, "strict": way == "bytecode"}
                export = partial(torch.export.export, model, *inputs, **by)
            exported: ExportedProgram = exported_again(export, model)
        if way != "autograd" and has_transforms(exported.graph_module):
            return self.exported(shapes, "autograd")
        ranges.attended(exported)
        packed_sequence.settled(exported)
        noted(partial(self.exported, shapes, way))
        return exported


def _way_context(way: Way, model: torch.nn.Module) -> AbstractContextManager[None]:
    if way == "anew":
        return forgotten(model)
    if way == "example":
        return by_the_example()
    return exporting_by(way) if way in ("called", "comparing") else nullcontext()
