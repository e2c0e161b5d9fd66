"""Whether stages fit, and what is said where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from pipeline.compose.annotations import accepts, is_instance, type_name
from pipeline.compose.stage_signature import Stage


def what(model: object) -> str:
    """What was passed for a model, as an error calls it."""
    if isinstance(model, type):
        return f"the class {model.__name__} (an instance is {model.__name__}(…))"
    return f"the function {model.__name__}" if isinstance(model, FunctionType) else f"a {type(model).__name__}"


def empty(arguments: object) -> bool:
    """Whether there are none; a tensor in their place is not asked what it holds."""
    return arguments is None or (isinstance(arguments, Sequence | Mapping) and not arguments)


def checked(step: Stage, record: Any) -> Any:
    result = step(record)
    if not is_instance(result, step.gives):
        raise TypeError(
            f"stage {step.name!r} gave a {type(result).__name__}, not the {type_name(step.gives)} it declares"
        )
    return result


def check_join(before: Stage, after: Stage) -> None:
    if not accepts(after.takes, before.gives):
        raise TypeError(
            f"stage {before.name!r} gives {type_name(before.gives)}, "
            f"but the next stage, {after.name!r}, takes {type_name(after.takes)}"
        )


def check_names(names: tuple[str, ...]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two stages are called {twice[0]!r} in {', '.join(names)}: "
            'swap the first with replace(), or give one another name with @stage(name="…")'
        )
