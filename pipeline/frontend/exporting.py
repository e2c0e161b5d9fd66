"""Export a module with torch.export: its ranges as they were requested, or as near as the model lets them be."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Literal, TypeAlias

import torch
from attrs import frozen
from torch._dynamo.exc import UserError, UserErrorType
from torch._guards import CompileContext
from torch._ops import OpOverload
from torch.export import ExportedProgram, _trace
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_flatten

from pipeline.aten.arguments import argument
from pipeline.aten.types import Argument, Spec
from pipeline.errors import CaptureError, PipelineError, source_line
from pipeline.frontend import branches, decisions, packed, padded, remembered
from pipeline.frontend import dynamic_shapes as ranges
from pipeline.frontend import input_checks as checks
from pipeline.frontend.blame import BRANCHES, blamed
from pipeline.frontend.data_checks import collected, is_caught, none_is_caught
from pipeline.frontend.decisions import has_values, with_outputs
from pipeline.frontend.dynamic_shapes import is_input
from pipeline.frontend.held_numbers import exported_again, held_numbers
from pipeline.frontend.kept_state import noted, state_kept, watched
from pipeline.frontend.modelopt import quantizers_whole
from pipeline.frontend.stand_ins import is_elsewhere, shown_on
from pipeline.frontend.tracing import by_the_example, exporting, exporting_by
from pipeline.frontend.transforms import has_transforms
from pipeline.frontend.untouched import untouched
from pipeline.frontend.violations import kept_violations
from pipeline.frozen import FrozenDict
from pipeline.settings import CompilationSettings
from pipeline.shapes.guards import fixes_numbers

log = logging.getLogger(__name__)

Way: TypeAlias = Literal["python", "called", "comparing", "anew", "bytecode", "autograd", "example"]
"""How torch.export traces. ``"python"``: it runs Python. ``"called"``: so too, and the model is not told that it is
exported (`untold`). ``"comparing"``: as ``"python"``, and where several sizes are compared the example decides.
``"anew"``: as ``"python"``, and the model forgets the shapes of its last call (`remembered`).
``"bytecode"``: it reads bytecode, and so what Python keeps, as caches do, and numbers that ``int`` makes of sizes (not
while ``torch.compile`` does so, which it would crash). ``"autograd"``: below autograd, where ``torch.func`` has done
its work. ``"example"``: as ``"python"``, with the branches of the example where data decides."""


@frozen
class Traced:
    """The export of a module: with the ranges requested for its dims, where it checks its data, which of its buffers
    Python read, and where its example decided, for the last of its outputs."""

    exported: ExportedProgram
    shapes: object
    checks: Mapping[str, None] = FrozenDict()
    reads: frozenset[str] = frozenset()
    decisions: tuple[str, ...] = ()


def traced(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Argument],
    dynamic_shapes: object,
    settings: CompilationSettings,
) -> Traced:
    """Export a module; where its branches depend on data, with those of the example, if the settings say so."""
    checks.check_module(model)
    export = partial(_export, model, args, kwargs, dynamic_shapes, settings.device)
    elsewhere = settings.device is not None and is_elsewhere(settings.device, model, (args, kwargs))
    by_example = settings.decisions == "example" and not elsewhere and has_values(args, kwargs)
    with (
        state_kept(model) as kept,
        collected() as found,
        held_numbers() as held,
        padded.as_called(),
    ):
        try:
            exported, shapes = export("python")
            kept.check()
            if found.caught:
                why = f"the model checks its data at {found.caught}, and may catch the error: data decides a branch"
                raise CaptureError(why, BRANCHES)
        except CaptureError:
            if not by_example:
                raise
        else:
            _check_training(model, exported)
            return Traced(exported, shapes, found.places, held.names)
    with state_kept(model) as kept, collected() as found, held_numbers() as held, padded.as_called():
        with decisions.collected() as decided:
            exported, shapes = export("example")
        kept.check()
    _check_training(model, exported)
    return Traced(exported, shapes, found.places, held.names, with_outputs(exported, decided))


def _check_training(model: torch.nn.Module, exported: ExportedProgram) -> None:
    """Warn of the first operator that computes as in training, which few want of a program."""
    for node in exported.graph.nodes if getattr(model, "training", False) else ():
        if isinstance(node.target, OpOverload):
            given = {each.name: argument(node, each.name) for each in node.target._schema.arguments}
            dropped = next((given[name] for name in ("p", "dropout", "dropout_p") if name in given), 1)
            if dropped and (given.get("train") is True or given.get("training") is True or "dropout_p" in given):
                at, name = source_line(node), type(model).__name__
                why = "%s is in training mode: %s (%s) computes as in training; call model.eval() first"
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
    """The export, and the ranges requested for its dims."""
    shapes = ranges.merged_dynamic_shapes(model, args, kwargs, dynamic_shapes)
    derived, fixed = any(hasattr(dim, "root") for dim in tree_flatten(shapes)[0]), False
    with kept_violations() as violations:
        try:
            exported = _exported(model, args, kwargs, shapes, device, way)
            fixed = ranges.specialised(exported, shapes)
            kept = not derived or all(ranges.is_of_plain_dims(error, shapes) for error in violations)
            if not violations or (kept and _relaxed(exported, model, args, kwargs, shapes)):
                if way == "python" and fixes_numbers(exported.graph):
                    exported = _with_numbers(model, args, kwargs, shapes, device) or exported
                return exported, shapes
            first: Exception = UserError(UserErrorType.CONSTRAINT_VIOLATION, str(violations[0]))
        except PipelineError:  # the model's interpreter, in words of our own
            raise
        except Exception as error:  # the range, or torch's own words about it, fail in many ways
            first = error
    ours = any(map(ranges.is_dynamic, tree_flatten((args, kwargs), is_leaf=is_input)[0]))
    tied = _tied(first, shapes) if ours and isinstance(first, UserError) else None
    looser = () if violations and not derived else ranges.relaxed(shapes)
    others: list[tuple[Spec, Way]] = [(other, way) for other in (tied, *looser) if other is not None]
    by_dynamo = way == "python" and _may_read_bytecode()
    dynamo: list[tuple[Spec, Way]] = [(shapes, "bytecode")] if by_dynamo else []
    is_its_own = way == "python" and not isinstance(first, UserError | GuardOnDataDependentSymNode)
    called: list[tuple[Spec, Way]] = [(shapes, "called"), (shapes, "comparing")] if is_its_own else []
    roomier: list[tuple[Spec, Way]] = [(other, way) for other in ranges.roomier(shapes)]
    anew: list[tuple[Spec, Way]] = [(shapes, "anew")] if way == "python" and remembered.shapes(model) else []
    tries = (*roomier, *dynamo, *others) if fixed else (*roomier, *called, *others, *dynamo)
    for other, another in (*anew, *tries, *([(shapes, "autograd")] if way == "python" else ())):
        with suppress(Exception):
            exported = _exported(model, args, kwargs, other, device, another)
            if _relaxed(exported, model, args, kwargs, shapes):
                return exported, shapes
    raise blamed(first, model, (args, kwargs), lambda given: _exported(model, *given, shapes, device, way)) from first


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
        model, positional, named = shown_on(device, model, positional, named)
    watch = nullcontext() if way == "bytecode" else watched(model, way == "example")
    forget = remembered.forgotten(model) if way == "anew" else nullcontext()
    quiet = warnings.catch_warnings()
    with torch.no_grad(), quiet, exporting(), untouched(model), forget, quantizers_whole(), watch:
        warnings.simplefilter("ignore")
        exported: ExportedProgram
        if way == "autograd":
            export = partial(_trace._export, model, positional, named, shapes, strict=False, pre_dispatch=False)
        else:
            by = {"dynamic_shapes": shapes, "strict": way == "bytecode"}
            export = partial(torch.export.export, model, positional, named, **by)
        its_way = exporting_by(way) if way in ("called", "comparing") else nullcontext()
        with by_the_example() if way == "example" else its_way, none_is_caught(), branches.traced():
            exported = exported_again(export, model)
    if way != "autograd" and has_transforms(exported.graph_module):
        return _exported(model, args, kwargs, shapes, device, "autograd")
    ranges.attended(exported)
    packed.settled(exported)
    noted(partial(_exported, model, args, kwargs, shapes, device, way))
    return exported


def _with_numbers(
    model: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Argument], shapes: Spec, device: str | None
) -> ExportedProgram | None:
    """The export in which ints that the model makes of quotients of sizes vary as these do; None if there is none."""
    for other in (shapes, *ranges.relaxed(shapes)) if _may_read_bytecode() else ():
        with suppress(Exception):
            exported = _exported(model, args, kwargs, other, device, "bytecode")
            if not fixes_numbers(exported.graph) and _relaxed(exported, model, args, kwargs, shapes):
                return exported
    return None


def _may_read_bytecode() -> bool:
    """Whether Dynamo may trace: it is not tracing already, and no check was met whose error the model may catch."""
    return CompileContext.try_get() is None and not is_caught()


def _relaxed(
    exported: ExportedProgram,
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, Argument],
    shapes: object,
) -> bool:
    """Whether an export with relaxed ranges is still one for these dims."""
    wishes = ranges.wishes(exported, model, args, kwargs, shapes)
    return not ranges.specialised(exported, shapes) and ranges.unified(wishes)


def _tied(error: UserError, shapes: Spec) -> object:
    """The shapes with dims tied that the model needs equal, as torch.export suggests; None if it suggests more.

    Inputs give each dim a name of its own, while a model may need two of them to be one (a mask and what it masks).
    Their ranges stay as requested: a suggestion that narrows one, or makes it a number, is not taken.
    """
    try:
        tied = refine_dynamic_shapes_from_suggested_fixes(error.msg, shapes)
    except Exception:  # it parses the message, which may suggest nothing that it understands
        return None
    return tied if _ends(tied) == _ends(shapes) else None


def _ends(shapes: object) -> list[Argument]:
    """The least and the greatest size of each dim."""
    return [(dim.min, dim.max) if hasattr(dim, "min") else dim for dim in tree_flatten(shapes)[0]]
