"""Change steps inside torch.export: remove buffer copies, collect range errors, redirect logs, trace calls."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import sympy
import torch
from torch._C import _functorch
from torch._functorch import predispatch
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from pipeline.aten.tracing_thread import is_tracing
from pipeline.aten.types import Argument
from pipeline.export_fixes.error_attribution import FIXES_HEADING, NOT_MODEL_CODE, source_line_text
from pipeline.export_fixes.interrupts import set_contextvar, undo_at_exit
from pipeline.export_fixes.patching import Kernel
from pipeline.shapes.environment import shape_of

log = logging.getLogger("pipeline.torch")


def remove_redundant_copies(
    _: Kernel, module: torch.fx.GraphModule, signature: Any
) -> tuple[torch.fx.GraphModule, object]:
    """Replace torch's pass that removes each ``copy_`` into a buffer, even one that casts or expands its source
    (torch 2.11 to 2.13): remove only a ``copy_`` between equal dtypes and shapes."""
    written = signature.buffers_to_mutate.keys() | signature.parameters_to_mutate.keys()
    with module._set_replace_hook(signature.get_replace_hook()):
        for node in [n for n in module.graph.nodes if n.name in written and _is_redundant_copy(n)]:
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)
        module.recompile()
    return module, signature


def _is_redundant_copy(node: torch.fx.Node) -> bool:
    """Return whether a ``copy`` node keeps its source's dtype and shape, and the graph does not return the source."""
    source = node.args[1] if node.target is torch.ops.aten.copy.default else None
    if not isinstance(source, torch.fx.Node) or any(user.op == "output" for user in source.users):
        return False  # what is returned beside the buffer is another tensor
    made, given = node.meta["val"], source.meta["val"]
    return made.dtype == given.dtype and shape_of(made) == shape_of(given)


_violations: ContextVar[list[ConstraintViolationError] | None] = ContextVar("violations", default=None)


def collect_range_violations() -> AbstractContextManager[list[ConstraintViolationError]]:
    """Return a context in which an export completes although a requested range is wider than the model accepts. It
    yields a list that receives the errors that torch.export would raise at the end of the trace."""
    return set_contextvar(_violations, [])


def store_range_violations(orig: Callable[..., object], fake_mode: Any, *args: object, **kwargs: object) -> Argument:
    """Replace torch's ``produce_guards_and_solve_constraints`` (``orig``), which raises an error if a range is wider
    than the model accepts. Within `collect_range_violations`, append the error to its list instead."""
    try:
        return orig(fake_mode, *args, **kwargs)
    except ConstraintViolationError as error:
        kept = _violations.get()
        if kept is None or fake_mode.shape_env.dim_constraints is None:  # it gave up at the first
            raise
        words, *fixes = str(error).partition(FIXES_HEADING)  # which torch reads from the message
        kept.append(type(error)("".join((words, _specializing_lines(fake_mode.shape_env), *fixes))))


def _specializing_lines(shape_env: Any) -> str:
    """Return the lines of the model that specialize a size to its value in the example, as text."""
    found: dict[str, None] = {}
    for guard in shape_env.guards:
        sides = guard.expr.args if isinstance(guard.expr, sympy.Eq) else ()
        frame = getattr(guard.sloc, "framework_loc", None)
        if not isinstance(frame, traceback.FrameSummary) or not any(side.is_Integer for side in sides):
            continue
        if not frame.filename.startswith(NOT_MODEL_CODE):
            found[source_line_text(frame.filename, frame.lineno or 0)] = None
    places = "".join(f"\n  - {place}" for place in found)
    why = "The model converts sizes to numbers, or compares sizes with numbers, which may be from its last call:"
    return f"\n{why}{places}" if places else ""


def redirect_log(orig: Callable[..., None], logger: logging.Logger, record: logging.LogRecord) -> None:
    """Replace `logging.Logger.handle`: log torch's warnings and errors as ``pipeline.torch`` at DEBUG, since torch also
    raises the important errors. If ``TORCH_LOGS`` is set, torch's logger handles all records as usual."""
    is_torchs = record.name.partition(".")[0] == "torch" and record.levelno >= logging.WARNING
    if is_torchs and not os.environ.get("TORCH_LOGS"):
        log.debug("%s: %s", record.name, record.getMessage(), exc_info=record.exc_info)
    else:
        orig(logger, record)


def suppress_error_advice(_: Callable[..., object], error: Argument) -> None:
    """Replace `get_class_if_classified_error`, so that torch prints no advice and no graph before an error."""
    if hasattr(error, "partial_fx_graph"):
        log.debug("what was traced before the error:\n%s", error.partial_fx_graph)
        del error.partial_fx_graph


def suppress_repeated_warning(reason: str) -> None:
    """Suppress the warning in which Dynamo repeats the reason of a graph break, unless ``TORCH_LOGS`` is set."""
    if not os.environ.get("TORCH_LOGS"):
        dynamos = logging.getLogger("torch._dynamo.exc")

        def repeats(record: logging.LogRecord) -> bool:
            """Return whether to log this record: drop the repeated warning once, then remove this filter."""
            if reason not in record.getMessage():
                return True
            dynamos.removeFilter(repeats)
            return False

        dynamos.addFilter(repeats)


def trace_call(
    orig: Kernel, tracer: Argument, module: Argument, forward: Kernel, args: Argument, kwargs: Argument
) -> object:
    """Replace the tracer's `call_module`: calls by threads that do not trace run untraced. The tracer replaces
    `Module.__call__` and `Module.__getattr__` in the whole process, and treats every call as a call in the model."""
    return orig(tracer, module, forward, args, kwargs) if is_tracing() else forward(*args, **kwargs)


def trace_getattr(orig: Kernel, tracer: Argument, name: str, value: object, proxies: Argument) -> object:
    """Replace the tracer's `getattr`: threads that do not trace get a module's own attribute ``value``, not a proxy."""
    return orig(tracer, name, value, proxies) if is_tracing() else value


def has_transforms(module: torch.fx.GraphModule) -> bool:
    """Return whether a graph, or a graph that it calls, enters or leaves ``torch.vmap``, a transform of ``torch.func``
    or forward-mode derivatives. Such a graph cannot be run as it is: operators between these calls act on the
    transform's wrapped tensors. The trace mode ``"autograd"`` records the plain operators that the transform calls."""
    graphs = (m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule))
    return any(getattr(n.target, "__module__", None) == predispatch.__name__ for graph in graphs for n in graph.nodes)


def exit_transforms() -> AbstractContextManager[None]:
    """Return a context that, at its end, exits the ``torch.func`` transforms that a failed export has left active."""
    depth, is_forward = _functorch.get_dynamic_layer_stack_depth(), _is_forward_mode_active()

    def leave() -> None:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if _is_forward_mode_active() and not is_forward:
            torch._C._exit_dual_level(level=0)
            forward_ad._current_level = -1

    return undo_at_exit(leave)


def _is_forward_mode_active() -> bool:
    """Return whether forward-mode automatic differentiation is active, also if a failed export left it active."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=level)
    return False
