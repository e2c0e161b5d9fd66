"""Create the building blocks of converters (`impl`): functions that each add the layers of an ATen call.
Their first four parameters are the same as in Torch-TensorRT."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Final, NoReturn

from pipeline.aten.types import Argument, Function, Operator, aten
from pipeline.compat.torch_tensorrt.emit import Call, Expression, add_layers_of, call
from pipeline.compat.torch_tensorrt.values import as_context
from pipeline.errors import PipelineError

__all__ = ["Argument", "BlockError", "Call", "Expression", "aten"]
__all__ += ["block", "call", "op_block", "require", "unsupported"]

FIRST: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("ctx", "target", "source_ir", "name")
)


class BlockError(PipelineError, NotImplementedError):
    """A building block (a helper such as ``impl.conv.convNd``) does not exist here, or does not accept these arguments;
    the message has the reason and an alternative."""


def block(function: Callable[..., Expression], description: str = "") -> Function:
    """Create a building block, which adds layers for a converter, from a function that returns ATen calls (`Call`).
    ``description`` is the block's docstring if the function has none.

    The block is called `(ctx, target, source_ir, name, …)` and returns the results of the ATen calls: an ``ITensor``,
    or a list. ``ctx`` is the converter's first argument: a context or, in the LEGACY calling convention, a network.
    Layers are called ``name``; ``target`` and ``source_ir`` have no effect.
    """
    own = tuple(inspect.signature(function).parameters.values())
    whole = inspect.Signature((*FIRST, *own))

    @functools.wraps(function)
    def layers(*args: Argument, **kwargs: Argument) -> Argument:
        bound = whole.bind(*args, **kwargs)
        bound.apply_defaults()
        ctx, _, _, name = (bound.arguments.pop(each.name) for each in FIRST)
        given = inspect.BoundArguments(inspect.Signature(own), bound.arguments)
        return add_layers_of(as_context(ctx), name, function(*given.args, **given.kwargs))

    layers.__signature__, layers.__doc__ = whole, function.__doc__ or description  # type: ignore[attr-defined]
    return layers


def op_block(operator: Operator, *parameter_names: str, **defaults: Argument) -> Function:
    """Create a building block (see `block`) that adds the layers of one ATen operator. Its own parameters are, in the
    order of the operator's: ``parameter_names``, then the names in ``defaults`` with these default values."""

    def convert(*args: Argument) -> Expression:
        return call(operator, *args)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    rows = [inspect.Parameter(name, kind) for name in parameter_names]
    rows += (inspect.Parameter(name, kind, default=value) for name, value in defaults.items())
    convert.__signature__ = inspect.Signature(rows)  # type: ignore[attr-defined]
    convert.__doc__ = f"{operator}"
    return block(convert)


def unsupported(block_name: str, reason: str, instead: str) -> Function:
    """Create a building block that always raises `BlockError`, with the reason and what to use instead."""

    def raise_error(*args: Argument, **kwargs: Argument) -> NoReturn:
        raise BlockError(f"{block_name} is not supported here: {reason}; {instead}")

    raise_error.__name__, raise_error.__doc__ = block_name.rpartition(".")[2], f"Refused: {reason}; {instead}."
    return raise_error


def require(allowed: bool, block_name: str, reason: str, instead: str) -> None:
    """Raise a `BlockError` if ``allowed`` is False, with the reason and what to use instead."""
    if not allowed:
        raise BlockError(f"{block_name} does not accept these arguments: {reason}; {instead}")
