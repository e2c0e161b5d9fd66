"""Export a module with torch.export, with the requested ranges or the closest ranges that the model allows."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
from pipeline.export_fixes import branches, input_checks, model_queries, packed_sequence
from pipeline.export_fixes import dynamic_shapes as ranges
from pipeline.export_fixes.attempts import ATTEMPTS, NUMBERS, FirstExport, TraceMode, clear_stored_shapes
from pipeline.export_fixes.error_attribution import BRANCH_HINT, Inputs, error_with_cause
from pipeline.export_fixes.example_guards import Decisions, add_decision_outputs, decisions
from pipeline.export_fixes.export_steps import collect_range_violations, has_transforms
from pipeline.export_fixes.fake_device_copy import attribute_tensors, is_on_other_device, make_fake_copy
from pipeline.export_fixes.interrupts import set_contextvar
from pipeline.export_fixes.known_values import track_values
from pipeline.export_fixes.model_state import KeptState, kept_state, watch_state
from pipeline.export_fixes.patch_contexts import patch_for_export, patch_for_mode, patch_modelopt
from pipeline.export_fixes.requests import ExportNotes, check_request
from pipeline.export_fixes.restore_model_state import restore_model
from pipeline.export_fixes.runtime_asserts import Checks, checks, reject_caught_errors
from pipeline.export_fixes.torchscript.module import interpret_scripts
from pipeline.export_fixes.value_hooks import export_with_known_values
from pipeline.inputs import Constant, is_input
from pipeline.records.parameter import Parameter
from pipeline.records.wording import kind_of
from pipeline.runtime.autocast_context import copy_under_autocast, is_autocast_on, without_autocast
from pipeline.settings import CompilationSettings
from pipeline.shapes.guards import count_specialized_numbers

log = logging.getLogger(__name__)


def export(
    model: object,
    args: object,
    kwargs: object,
    dynamic_shapes: object,
    settings: CompilationSettings,
    profiles: Sequence[Spec] | None = None,
) -> tuple[ExportedProgram, ExportNotes]:
    """Export a module or TorchScript under the caller's autocast; return the program, and `ExportNotes` about it.

    Raises:
        CaptureError: torch.export cannot export the module; the error contains torch's message.
        TypeError: ``model`` is not a module, or ``forward`` does not accept the inputs.
    """
    module: torch.nn.Module = interpret_scripts(model)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model must be an nn.Module, an ExportedProgram or TorchScript, got {kind_of(module)}")
    request = check_request(module, args, kwargs, dynamic_shapes, profiles)
    input_checks.check_module(module)
    inside, inputs = copy_under_autocast(module) if is_autocast_on() else module, (request.args, request.kwargs)
    with without_autocast():
        shapes = ranges.merge_dynamic_shapes(inside, *inputs, request.dynamic_shapes)
        exported, notes = _export_model(_Exporter(inside, inputs, settings.device), shapes, request.constants, settings)
    held = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return exported, evolve(
        notes,
        inputs=request.leaves,
        profiles=request.profiles,
        ranges=ranges.requested_bounds(ranges.size_requests(exported, inside, inputs, shapes)),
        constants=request.constants,
        tensors={**attribute_tensors(module), **dict(held)},
    )


def signature_of(model: object) -> tuple[Parameter, ...]:
    """Return the parameters of a model's ``forward`` or of an ``ExportedProgram``, without ``*args`` and ``**kwargs``,
    as the signature of the compiled program."""
    inner = interpret_scripts(model.module() if isinstance(model, ExportedProgram) else model)
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


def _export_model(
    exporter: _Exporter, shapes: Spec, constants: Mapping[int, Constant], settings: CompilationSettings
) -> tuple[ExportedProgram, ExportNotes]:
    """Return the export and facts found in it (`ExportNotes`). If it fails, and ``settings.decisions`` is
    ``"example"``, export it so that the example inputs' values decide data-dependent branches."""
    try:
        return _export_with_notes(exporter, shapes, constants, "python")
    except CaptureError:
        has_values = not any(map(is_input, tree_leaves(exporter.inputs, is_leaf=is_input)))
        is_elsewhere = is_on_other_device(exporter.device, exporter.model, exporter.inputs)
        if settings.decisions != "example" or is_elsewhere or not has_values:
            raise
    return _export_with_notes(exporter, shapes, constants, "example")


def _export_with_notes(
    exporter: _Exporter, shapes: Spec, constants: Mapping[int, Constant], mode: TraceMode
) -> tuple[ExportedProgram, ExportNotes]:
    """Return the export by ``mode``, or else by a retry (see `first_success`), and its notes. Raise `CaptureError` if
    the model keeps state between calls. ``constants``: the `Constant` inputs, by index among the inputs' leaves."""
    with (
        set_contextvar(kept_state, KeptState(exporter.model)) as kept,
        set_contextvar(checks, Checks()) as found,
        track_values(constants) as known,
        set_contextvar(model_queries.gradients_are_on, torch.is_grad_enabled()),
        set_contextvar(decisions, Decisions()) as decided,
    ):
        exported = exporter.first_success(shapes, mode)
        kept.raise_if_stateful()
        if found.caught and mode == "python":
            why = f"the model checks its data at {found.caught}, and may catch the error: the branch is data-dependent"
            raise CaptureError(why, BRANCH_HINT)
    _warn_of_training_operator(exporter.model, exported)
    places = add_decision_outputs(exported, decided) if mode == "example" else ()
    return exported, ExportNotes(checks=tuple(found.places), reads=known.read_buffers, decisions=places)


def _warn_of_training_operator(model: torch.nn.Module, exported: ExportedProgram) -> None:
    """Warn of the first operator that computes as in training (dropout, say), which is rarely intended."""
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
class _Exporter:
    """Exports a model with example inputs, as if both were on ``device``; None: on the devices that they have."""

    model: torch.nn.Module
    inputs: Inputs
    device: str | None

    def first_success(self, shapes: Spec, mode: TraceMode) -> ExportedProgram:
        """Export with these shapes and this trace mode. If that fails, try `ATTEMPTS`; raise the first error if all of
        them fail. If numbers became constants, try `NUMBERS`, and return its export if it has fewer such constants."""
        with collect_range_violations() as violations:
            exported, error = self.export_as_requested(shapes, mode, violations)
            ours = any(map(ranges.is_dynamic_input, tree_flatten(self.inputs, is_leaf=is_input)[0]))
            fixed = exported is not None and ranges.has_specialized_dim(exported, shapes)
            narrower = bool(violations) and not ranges.has_derived_dims(shapes)
            first = FirstExport(self.model, shapes, mode, error, ours, fixed, narrower)
            if exported is not None and error is None:
                count = count_specialized_numbers(exported.graph) if mode == "python" else 0
                return (self.retry(first, count) if count else None) or exported
        assert error is not None
        found = self.retry(first)
        if found is None:
            raise error_with_cause(
                error, self.model, self.inputs, lambda given: evolve(self, inputs=given).export_once(shapes, mode)
            ) from error
        return found

    def export_as_requested(
        self, shapes: Spec, mode: TraceMode, violations: Sequence[Exception]
    ) -> tuple[ExportedProgram | None, Exception | None]:
        """Export with these shapes. Return (export, None), (None, torch's error), or (export, error) if the export is
        valid for a part of a requested range only. ``violations``: the list of `collect_range_violations`, to which
        torch appends an error for each requested range that is too wide."""
        try:
            exported = self.export_once(shapes, mode)
            kept = not ranges.has_derived_dims(shapes) or all(ranges.is_about_plain_dims(e, shapes) for e in violations)
            if violations and not (kept and self.keeps_ranges_dynamic(exported, shapes)):
                return exported, UserError(UserErrorType.CONSTRAINT_VIOLATION, str(violations[0]))
        except PipelineError:  # the model's interpreter, in words of our own
            raise
        except Exception as error:  # the range, or torch's own words about it, fail in many ways
            return None, error
        return exported, None

    def retry(self, first: FirstExport, specialized_count: int | None = None) -> ExportedProgram | None:
        """Return the first export by `ATTEMPTS`, after the failed export ``first``, that keeps the requested ranges;
        None if there is none. With ``specialized_count``, ``first`` succeeded, but made constants of this many numbers
        computed from sizes: try only `NUMBERS`, and return its export only if it has fewer such constants."""
        name = type(self.model).__name__
        for attempt in ATTEMPTS if specialized_count is None else (NUMBERS,):
            for shapes in attempt.shapes(first) if attempt.applies(first) else ():
                try:
                    exported = self.export_once(shapes, attempt.mode or first.mode)
                    fewer = specialized_count is None or count_specialized_numbers(exported.graph) < specialized_count
                    if self.keeps_ranges_dynamic(exported, first.shapes) and fewer:
                        log.info("%s is exported by the attempt %r: %s", name, attempt.name, attempt.changes)
                        return exported
                    log.debug("%s: the attempt %r gave other ranges, or fixed a number", name, attempt.name)
                except Exception as error:
                    log.debug("%s: the attempt %r failed: %s", name, attempt.name, error_text(error))
        return None

    def keeps_ranges_dynamic(self, exported: ExportedProgram, shapes: Spec) -> bool:
        """Return whether each dim that has a range in ``shapes`` is dynamic in an export made with relaxed ranges."""
        wishes = ranges.size_requests(exported, self.model, self.inputs, shapes)
        return not ranges.has_specialized_dim(exported, shapes) and ranges.unify_shared_dims(wishes)

    def export_once(self, shapes: Spec, mode: TraceMode) -> ExportedProgram:
        """Export once, with these dynamic shapes and this trace mode."""
        model, place = self.model, input_checks.device_chooser(self.model, self.inputs, self.device)
        inputs = ranges.make_examples(model, self.inputs, shapes, place)
        if self.device is not None and is_on_other_device(self.device, model, inputs):
            model, inputs = make_fake_copy(self.device, model, inputs)
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            patch_for_export(),
            restore_model(model),
            clear_stored_shapes(model) if mode == "anew" else patch_for_mode(mode),
            patch_modelopt(),
            nullcontext() if mode == "bytecode" else watch_state(model, mode == "example"),
            reject_caught_errors(),
            set_contextvar(branches.trace, branches.Trace()),
        ):
            warnings.simplefilter("ignore")
            if mode == "autograd":
                export = partial(_trace._export, model, *inputs, shapes, strict=False, pre_dispatch=False)
            else:
                by = {"dynamic_shapes": shapes, "strict": mode == "bytecode"}
                export = partial(torch.export.export, model, *inputs, **by)
            exported: ExportedProgram = export_with_known_values(export, model)
        if mode != "autograd" and has_transforms(exported.graph_module):
            return self.export_once(shapes, "autograd")
        ranges.unify_attention_lengths(exported)
        packed_sequence.remove_unused_packed_data(exported)
        kept = kept_state.get()
        if kept is not None and not kept.calls_twice:
            kept.repeat_export = partial(self.export_once, shapes, mode)
        return exported
