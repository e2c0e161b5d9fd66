"""Validators that ask whether sizes vary, as Torch-TensorRT's converters name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.aten.types import Node
from pipeline.converters.lookup import symbolic_places


def has_dynamic_shapes(node: Node) -> bool:
    """Return whether a size of the node's result or of one of its arguments varies."""
    return any(symbolic_places(node.args, node.kwargs, node.meta.get("val")))


def has_static_shapes(node: Node) -> bool:
    """Return whether no size of the node's result and arguments varies."""
    return not has_dynamic_shapes(node)


def has_dynamic_shapes_in_args(arg_positions_to_check: Sequence[int] | None = None) -> Callable[[Node], bool]:
    """Return a validator that accepts calls in which a size of the arguments at these positions (None: of any)
    varies."""

    def dynamic(node: Node) -> bool:
        """Sizes of these arguments vary."""
        positions = range(len(node.args)) if arg_positions_to_check is None else arg_positions_to_check
        return any(symbolic_places([node.args[i] for i in positions], {}, None))

    return dynamic


def has_static_shapes_in_args(arg_positions_to_check: Sequence[int] | None = None) -> Callable[[Node], bool]:
    """Return a validator that accepts calls in which no size of the arguments at these positions (None: of any)
    varies."""
    dynamic = has_dynamic_shapes_in_args(arg_positions_to_check)

    def static(node: Node) -> bool:
        """Sizes of these arguments do not vary."""
        return not dynamic(node)

    return static
