"""``Request``: the inputs and ranges that a model is captured for, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.types import Argument, Spec
from pipeline.export_fixes.input_checks import arguments
from pipeline.export_fixes.profiles import Wish, stated
from pipeline.inputs import Constant, is_input


@frozen(eq=False)
class Request:
    """The checked inputs and ranges of a capture.

    Attributes:
        args: the example inputs by position: tensors, `Input` s, other values; tensors in place of constants.
        kwargs: the same by keyword.
        constants: the inputs that have one value, by the places of their leaves.
        dynamic_shapes: as in torch.export, over all profiles.
        profiles: for each profile the ranges of inputs.
    """

    args: tuple[object, ...]
    kwargs: dict[str, Argument]
    constants: Mapping[int, Constant]
    dynamic_shapes: Spec
    profiles: tuple[tuple[Wish, ...], ...]

    @property
    def leaves(self) -> tuple[Argument, ...]:
        """The example inputs, in order."""
        return tuple(tree_leaves((self.args, self.kwargs), is_leaf=is_input))


def is_constant(value: object) -> bool:
    """Return whether an input is a `Constant`."""
    return isinstance(value, Constant)


def taken_out(
    args: tuple[object, ...], kwargs: dict[str, Argument]
) -> tuple[tuple[object, ...], dict[str, Argument], dict[int, Constant]]:
    """Return the inputs with tensors in place of constants, and the constants by leaf index."""
    leaves, structure = tree_flatten((args, kwargs), is_leaf=is_constant)
    found = {i: leaf for i, leaf in enumerate(leaves) if is_constant(leaf)}
    if not found:
        return args, kwargs, {}
    positional, named = tree_unflatten([x.value.clone() if is_constant(x) else x for x in leaves], structure)
    return positional, named, found


def requested(
    model: object, args: object, kwargs: object, dynamic_shapes: Spec, profiles: Sequence[Spec] | None
) -> Request:
    """Return the request for a model, a module or an ``ExportedProgram``.

    Raises:
        TypeError: the inputs have the wrong form, or profiles are given twice.
        ValueError: inputs have different numbers of profiles.
    """
    positional, named, constants = taken_out(*arguments(args, kwargs))
    shapes, wishes = stated(model, positional, named, dynamic_shapes, profiles)
    return Request(positional, named, constants, shapes, tuple(map(tuple, wishes)))
