"""Record the conditions on sizes (guards) that a model itself evaluates while it is traced.

torch records a condition once, with the code that evaluated it first. If an operator was first, to decide a memory
layout (``x.mT.reshape(-1)`` checks whether a size is 1), torch does not record that the model evaluates it again later,
although the model's results may depend on it. (With ``strict=True`` torch.export refuses such a range itself.)

torch's operators also check whether a data-dependent size is 0 or 1, to skip work (``logsumexp``, ``roll``, attention);
torch.export then fails. Here the condition is false, as in torch's ``size_oblivious`` mode: the operators do all the
work, which is also right for 0 and 1.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from weakref import WeakKeyDictionary

import sympy
import torch
from sympy.core.relational import Rel
from sympy.logic.boolalg import Boolean
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.aten.types import Argument

TORCH = Path(torch.__file__).parent
_PIPELINE = Path(__file__).parents[1]
MODULE_FILE = f"{TORCH}/nn/modules/module.py"
"""The file of ``nn.Module.__call__``, from which torch.export asserts conditions that it has recorded before."""

_FRAMEWORK_FILES = {
    *(f"{TORCH}/{name}.py" for name in ("__init__", "fx/experimental/sym_node", "fx/experimental/symbolic_shapes")),
    *(f"{TORCH}/{name}.py" for name in ("fx/experimental/recording", "_guards")),
    __file__,
    f"{_PIPELINE}/export_fixes/patching.py",
    "<string>",
}
"""Source files whose frames are skipped to find the code that evaluates a condition: those of symbolic numbers, their
nodes, the shape environment, and torch.export's assertions."""

_MODEL_CODE = (f"{TORCH}/nn/", f"{TORCH}/functional.py")
"""The parts of torch that run on behalf of a model; all other parts run for an operator or for torch.export."""

_DYNAMO = f"{TORCH}/_dynamo/"
"""The folder of Dynamo, which evaluates conditions on behalf of the model whose bytecode it reads."""

ATTENTION = "transformers/integrations/sdpa_attention.py:"
"""The file in transformers that checks whether there is a single query: to merge the heads of a group, which does not
change the result, and to omit ``is_causal``, which does not change the result if there is a single key."""

MASKS = "transformers/masking_utils.py:_preprocess_mask_arguments"
"""The function in transformers that checks whether the batch is 1 if positions have a single row, to expand them to
the batch, which does not change the result."""

data_dependent_errors: ContextVar[list[Exception] | None] = ContextVar("data-dependent errors", default=None)
"""Collects torch's errors about data-dependent conditions during a trace, even if other code catches them."""

_model_conditions: WeakKeyDictionary[object, dict[sympy.Basic, str]] = WeakKeyDictionary()


def record_model_conditions(
    evaluate: Callable[..., Argument], self: Argument, expr: Argument, *args: object, **kwargs: object
) -> Argument:
    """Return the value of the condition ``expr``, by ``evaluate`` (the patched `ShapeEnv.evaluate_expr`). If the model
    evaluates the condition, and torch adds no guard for it, record it for `model_conditions`."""
    known = len(self.guards)
    try:
        answer = evaluate(self, expr, *args, **kwargs)
    except GuardOnDataDependentSymNode as error:
        answer = self._maybe_evaluate_static(expr, size_oblivious=True) if _is_zero_or_one_check(self, expr) else None
        if answer is None or not _torch_evaluates_for_itself():
            if (errors := data_dependent_errors.get()) is not None:
                errors.append(error)
            raise
        return answer
    if len(self.guards) == known and isinstance(expr, Boolean) and expr.free_symbols and (place := _model_call_site()):
        places, holds = _model_conditions.setdefault(self, {}), expr if answer else sympy.Not(expr)
        if holds not in places or any(exempt in places[holds] for exempt in (ATTENTION, MASKS)):
            places[holds] = place
    return answer


@functools.cache
def add_framework_files(torch_files: Callable[[], set[str]]) -> set[str]:
    """Return ``torch_files()`` and `_FRAMEWORK_FILES`: files that torch skips to find the model's source line."""
    return torch_files() | _FRAMEWORK_FILES


def model_conditions(shape_env: object) -> Mapping[sympy.Basic, str]:
    """Return the conditions on sizes that the model evaluated and torch did not record, in the order of evaluation. The
    values are code locations (``file:function``): where the condition was evaluated first. A location in transformers'
    code for `ATTENTION` or `MASKS` is returned only if the condition was evaluated nowhere else."""
    return _model_conditions.get(shape_env, {})


def _is_zero_or_one_check(shape_env: Argument, expr: Argument) -> bool:
    """Return whether a condition compares data-dependent sizes with 0 or 1."""
    if not isinstance(expr, Rel) or not expr.free_symbols or not expr.free_symbols <= shape_env.size_like:
        return False
    return any(side in (0, 1) for side in expr.args)


def _model_call_site() -> str:
    """Return ``file:function`` of the model's code that evaluates the current condition; empty if other code does."""
    in_python, place = _evaluating_call_site()
    is_torch = place.startswith(f"{TORCH}/") and not place.startswith(_MODEL_CODE)
    return "" if not in_python or is_torch or place.startswith(f"{MODULE_FILE}:") else place


def _torch_evaluates_for_itself() -> bool:
    """Return whether, by the call stack, an operator of torch evaluates the current condition, and not a model."""
    in_python, place = _evaluating_call_site()
    is_torch = place.startswith(f"{TORCH}/") if in_python else not place.startswith(f"{_PIPELINE}/")
    return is_torch and not place.startswith(_DYNAMO)


def _evaluating_call_site() -> tuple[bool, str]:
    """Return two facts from the call stack about the code that evaluates the current condition (the ``bool`` of a
    symbolic number): whether it is Python code, not C++ called from there; and its ``file:function``."""
    frame: FrameType | None = sys._getframe(3)
    in_python = False
    while frame is not None and frame.f_code.co_filename in _FRAMEWORK_FILES:
        in_python = in_python or frame.f_code.co_filename == torch.__file__
        frame = frame.f_back
    return in_python, "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
