"""Keep what a model itself asks about sizes while it is traced.

torch notes a condition once, with the place that asked first. If that was an operator that decides on a memory layout
(``x.mT.reshape(-1)`` asks whether a size is 1), the answer that it gives to the model later leaves no trace, though
there the results may depend on it. (With ``strict=True`` torch.export refuses such a range itself.)

Where only data has a size, torch's operators ask too, whether it is 0 or 1, to leave work out (``logsumexp``, ``roll``,
attention): torch.export gives no program then. They are told that it is neither, as torch tells those of its operators
that ask it so (``size_oblivious``), and do all the work, which is right for 0 and 1 as well.
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
_OWN = Path(__file__).parents[1]
MODULE = f"{TORCH}/nn/modules/module.py"
"""Where torch.export calls a module, and asserts what was found before it."""

_PASSES = {
    *(f"{TORCH}/{name}.py" for name in ("__init__", "fx/experimental/sym_node", "fx/experimental/symbolic_shapes")),
    *(f"{TORCH}/{name}.py" for name in ("fx/experimental/recording", "_guards")),
    *(f"{_OWN}/{name}.py" for name in ("shapes/questions", "frontend/replacement")),
    "<string>",
}
"""Where a question passes by: the number in Python, its node, and the shape environment; and torch.export's code that
asserts what was found."""

_MODELS = (f"{TORCH}/nn/", f"{TORCH}/functional.py")
"""The parts of torch that ask as a model does; all others ask for an operator, or for torch.export."""

_DYNAMO = f"{TORCH}/_dynamo/"
"""Asks for the model, whose bytecode it reads."""

ATTENTION = "transformers/integrations/sdpa_attention.py:"
"""Asks whether there is one query: to take the heads of a group together, which gives the same, and not to say
``is_causal``, which gives the same where there is one key too."""

MASKS = "transformers/masking_utils.py:_preprocess_mask_arguments"
"""Asks whether there is one row where positions have one row, to expand them to as many, which gives the same."""

unanswered: ContextVar[list[Exception] | None] = ContextVar("questions that only data answers", default=None)
"""Collects torch's errors about them, whoever catches these."""

_asked: WeakKeyDictionary[object, dict[sympy.Basic, str]] = WeakKeyDictionary()


def noting(evaluate: Callable[..., Argument]) -> Callable[..., Argument]:
    """Wrap `ShapeEnv.evaluate_expr` to keep a model's questions that torch can answer, and so notes no condition of."""

    def evaluate_and_note(self: Argument, expr: Argument, *args: object, **kwargs: object) -> Argument:
        known = len(self.guards)
        try:
            answer = evaluate(self, expr, *args, **kwargs)
        except GuardOnDataDependentSymNode as error:
            answer = self._maybe_evaluate_static(expr, size_oblivious=True) if _is_none_or_one(self, expr) else None
            if answer is None or not _is_torch():
                if (errors := unanswered.get()) is not None:
                    errors.append(error)
                raise
            return answer
        if len(self.guards) == known and isinstance(expr, Boolean) and expr.free_symbols and (place := _model()):
            places, holds = _asked.setdefault(self, {}), expr if answer else sympy.Not(expr)
            if holds not in places or any(exempt in places[holds] for exempt in (ATTENTION, MASKS)):
                places[holds] = place
        return answer

    return evaluate_and_note


def placing(files: Callable[[], set[str]]) -> Callable[[], set[str]]:
    """Wrap torch's list of files that ask for others, so that a condition's place is not `noting`."""
    return functools.cache(lambda: files() | _PASSES)


def asked(shape_env: object) -> Mapping[sympy.Basic, str]:
    """The conditions that a model asked for, in order, of those torch knew the answer to; with the place that asked
    first, `ATTENTION` and `MASKS` apart."""
    return _asked.get(shape_env, {})


def _is_none_or_one(shape_env: Argument, expr: Argument) -> bool:
    """Whether a question is whether sizes that data has are 0, or 1."""
    if not isinstance(expr, Rel) or not expr.free_symbols or not expr.free_symbols <= shape_env.size_like:
        return False
    return any(side in (0, 1) for side in expr.args)


def _model() -> str:
    """The place, a file and a function, where a model asks in Python; empty for others, and for what C++ asks."""
    in_python, place = _place()
    is_torch = place.startswith(f"{TORCH}/") and not place.startswith(_MODELS)
    return "" if not in_python or is_torch or place.startswith(f"{MODULE}:") else place


def _is_torch() -> bool:
    """Whether a part of torch asks for itself, in Python or C++."""
    in_python, place = _place()
    is_torch = place.startswith(f"{TORCH}/") if in_python else not place.startswith(f"{_OWN}/")
    return is_torch and not place.startswith(_DYNAMO)


def _place() -> tuple[bool, str]:
    """Whether Python asks, and not C++; and the place, a file and a function, where it does."""
    frame: FrameType | None = sys._getframe(3)
    in_python = False
    while frame is not None and frame.f_code.co_filename in _PASSES:
        in_python = in_python or frame.f_code.co_filename == torch.__file__
        frame = frame.f_back
    return in_python, "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
