"""Define ``Rewriting``: a copy of a program's graph, with the changes that a pass may apply to it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeAlias, overload

import torch
from attrs import frozen
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.aten import graphs
from pipeline.aten.arguments import argument as argument
from pipeline.aten.naming import origin_of
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Argument as Argument
from pipeline.aten.types import Function, Target
from pipeline.capture.fake_tensors import fake_mode, fake_result, fake_result_key
from pipeline.converters import DECOMPOSITIONS
from pipeline.converters.attention import is_slow_attention
from pipeline.converters.registry import ConverterRegistry
from pipeline.converters.user_registrations import UserRegistrations
from pipeline.decomposition.fold import NEVER_FOLDED, fold_constants, is_pure
from pipeline.decomposition.templates import Templates, argument_nodes
from pipeline.program import Program
from pipeline.shapes.environment import expression
from pipeline.shapes.environment import shape_of as shape_of

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

SMALL = 1 << 22
"""Passes examine the values of a constant only if it has at most this number of elements."""


class Rewriting:
    """A copy of a program's graph, for passes to change; ``changed_program`` returns the changed program."""

    def __init__(self, program: Program, registry: ConverterRegistry) -> None:
        self.program = program
        self.claims = UserRegistrations.of(registry, DECOMPOSITIONS, program.settings)
        self.graph = graphs.copy_graph(program.graph)
        self.mode = fake_mode(program.graph)
        self.templates = Templates(self.mode)
        self.made: dict[str, Argument] = {}
        self.created: list[Node] = []
        self._constant: dict[tuple[Argument, ...], bool] = {}

    def run_keeping_users_calls(self, improvement: Improvement) -> None:
        """Apply a pass, but not to calls that a user's converter of HIGH priority may accept: meanwhile their target is
        ``partial(target)``, which passes do not recognise. Undo the pass if it leaves such a call without readers."""
        if not self.claims.high_priority:
            return self._run(improvement)
        for node in self.graph.nodes:
            call = (node.target, node.args, node.kwargs, node.meta.get("val"))
            if node.op == "call_function" and self.claims.may_convert(*call):
                node.target = partial(node.target)
        before, program, needed = graphs.copy_graph(self.graph), self.program, self._names_of_read_user_calls()
        self._run(improvement)
        if self._names_of_read_user_calls() != needed:
            self.graph, self.program = before, program
        for node in self.graph.nodes:
            if isinstance(node.target, partial):
                node.target = node.target.func

    def _run(self, improvement: Improvement) -> None:
        """Apply a pass, but stop it before a change that would need the value of a data-dependent size; then erase the
        nodes that it created and that no node reads."""
        self.created.clear()
        self._constant.clear()
        with suppress(GuardOnDataDependentSymNode):
            improvement.apply(self)
        for node in reversed(self.created):
            self.erase(node)

    def _names_of_read_user_calls(self) -> list[str]:
        """Return the names of the calls that passes must not change (targets are `partial`) and that nodes read."""
        return [node.name for node in self.graph.nodes if isinstance(node.target, partial) and node.users]

    def nodes(self, *targets: object) -> Iterator[Node]:
        """Yield the calls of these operators in graph order; the caller may change the graph meanwhile."""
        for node in list(self.graph.nodes):
            if node.op == "call_function" and node.target in targets and not node._erased:
                yield node

    def create(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Argument], before: Node) -> Node:
        """Create a call before a node, with the node's module and source line as metadata, and with a fake value."""
        key = f"{target} {fake_result_key(args)} {fake_result_key(kwargs)}"
        if key not in self.made:
            self.made[key] = fake_result(self.mode, target, args, kwargs)
        with self.graph.inserting_before(before):
            node = self.graph.create_node("call_function", target, args, kwargs)
        node.meta = {**origin_of(before.meta), "val": self.made[key]}
        self.created.append(node)
        return node

    def before(self, node: Node) -> CallBuilder:
        """Return a builder of calls before a node; they get the node's module and source line as metadata."""
        return CallBuilder(self, node)

    def offer(
        self, old: Node, target: object, args: tuple[object, ...], kwargs: dict[str, Argument] | None = None
    ) -> Node | None:
        """Replace ``old`` by a call; return None and change nothing if no converter accepts it or its type differs."""
        new = self.create(target, args, kwargs or {}, old)
        if self.accepted(new) and self.replace(old, new):
            return new
        self.erase(new)
        return None

    def accepted(self, node: Node) -> bool:
        """Return whether a converter accepts a node, or PyTorch executes it because PyTorch is faster."""
        return self.claims.accepts_surely(node) or self.is_slow_attention(node)

    def is_slow_attention(self, node: Node) -> bool:
        """Return whether a node is an attention that PyTorch executes because its kernel is faster than TensorRT's."""
        return is_slow_attention(node, self.program.settings)

    def replace(self, old: Node, new: Node) -> bool:
        """Replace ``old`` by ``new`` in all readers, if dtype and shape are equal, and erase unread nodes. Return
        whether ``old`` was replaced.

        An output remains a separate tensor: ``new`` must not be an input, a constant or another output.
        """
        returned = is_output(old)
        if not have_same_type(old, new) or (returned and (new.op == "placeholder" or is_output(new))):
            return False
        old.replace_all_uses_with(new)
        name = old.name
        self.erase(old)
        if returned:
            new.name = name
        return True

    def erase(self, node: Node) -> None:
        """Erase a node without readers, and the nodes that only it read."""
        waiting = [node]
        while waiting:
            dead = waiting.pop()
            if dead.op == "call_function" and not dead.users and not dead._erased:
                waiting += dead.all_input_nodes
                self.graph.erase_node(dead)

    def is_constant(self, node: object) -> bool:
        """Return whether a value is a number, or depends only on the model's tensors, so that it can be folded."""
        return graphs.evaluate_recursively(self._is_constant, node, known_results=self._constant)

    def _is_constant(self, node: object) -> graphs.Steps[bool]:
        """Return, through `evaluate_recursively`, whether a node depends only on the model's tensors."""
        if not isinstance(node, Node):
            return True
        if node.op == "placeholder":
            return node.name in self.program.constants
        found = node.target not in NEVER_FOLDED and is_pure(node.target)
        for source in node.all_input_nodes:
            found = found and (yield self._is_constant, source)
        return found

    def owns_constant(self, node: Node, value: object) -> bool:
        """Return whether a value is a constant of the model that only ``node`` reads."""
        return isinstance(value, Node) and only_reader(value) is node and self.is_constant(value)

    def known_value(self, node: Argument) -> torch.Tensor | None:
        """Return the value of a node that is a small constant, but no parameter or buffer; None for any other node."""
        recipe = self.program.constants.get(node.name) if isinstance(node, Node) and node.op == "placeholder" else None
        if recipe is None or node.meta["val"].numel() > SMALL or not self.program.written.issuperset(recipe.parameters):
            return None
        return recipe.evaluate(self.program.parameters)

    def known_number(self, value: object) -> float | None:
        """Return a Python number, or the element of a node that is a constant of one element; None for other values."""
        if isinstance(value, bool | int | float):
            return float(value)
        found = self.known_value(value)
        return float(found) if found is not None and found.numel() == 1 else None

    def changed_program(self) -> Program:
        """Return the program with the changed graph; nodes that have become constant are folded (`fold_constants`)."""
        return fold_constants(self.program.with_graph(self.graph))


class CallBuilder(list[Node]):
    """Creates calls before a node, with the node's module and source line, and lists them until they replace the
    node."""

    def __init__(self, rewriting: Rewriting, node: Node) -> None:
        super().__init__()
        self.rewriting, self.node = rewriting, node

    def __call__(self, target: Target, *args: Argument, **kwargs: Argument) -> Node:
        self.append(self.rewriting.create(target, args, kwargs, self.node))
        return self[-1]

    def cast(self, x: Node, dtype: torch.dtype | None) -> Node:
        """Return a node cast to a dtype, or the node itself if it has the dtype already."""
        return x if dtype_of(x) == dtype else self(aten._to_copy.default, x, dtype=dtype)

    def size(self, x: Node, dim: int) -> Argument:
        """Return the size of one dim of a node: an int, or a node that computes the dynamic size."""
        size = x.meta["val"].shape[dim]
        return size if isinstance(size, int) else self(aten.sym_size.int, x, dim)

    def add_traced(self, function: Function, *args: Argument) -> Argument:
        """Trace a torch function for these arguments, add the calls that it makes, and return its result; None if the
        trace needs the value of a data-dependent size."""
        template = self.rewriting.templates.find(function, None, args, {}, None)

        def emit(node: Node, args: Argument, kwargs: Argument) -> Node:
            return self(node.target, *args, **kwargs)

        return template and graphs.call_graph(template.graph, argument_nodes(args, {}), emit)

    @property
    def accepted(self) -> bool:
        """Return whether converters accept all of the new calls."""
        return all(map(self.rewriting.accepted, self))

    def replace(self, new: Node) -> bool:
        """Replace the node before which calls were added by ``new``, if converters accept all new calls and if dtypes
        and shapes are equal. Erase unread calls; return whether the node was replaced."""
        done = self.accepted and self.rewriting.replace(self.node, new)
        self.erase_unread()
        return done

    def erase_unread(self) -> None:
        """Erase the new calls that no node reads."""
        for node in reversed(self):
            self.rewriting.erase(node)


@frozen
class Improvement:
    """A pass: its name, the function that changes a graph, and the name of the pass that it follows. A pass changes
    only patterns that it recognises with certainty."""

    name: str
    apply: Callable[[Rewriting], None]
    after: str = ""

    def __str__(self) -> str:
        return self.name


@overload
def improvement(function: Callable[[Rewriting], None], /) -> Improvement: ...


@overload
def improvement(*, after: str) -> Callable[[Callable[[Rewriting], None]], Improvement]: ...


def improvement(
    function: Callable[[Rewriting], None] | None = None, /, *, after: str = ""
) -> Improvement | Callable[[Callable[[Rewriting], None]], Improvement]:
    """Declare a function as a pass with its name; ``@improvement(after="fuse_gelu")`` runs it after that pass."""
    if function is None:
        return lambda function: Improvement(function.__name__, function, after)
    return Improvement(function.__name__, function, after)


def have_same_type(a: Node, b: Node) -> bool:
    """Return whether two nodes are tensors of equal dtype, device and shape, or other values with equal text."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return x.dtype == y.dtype and x.device == y.device and shape_of(x) == shape_of(y)
    if isinstance(x, torch.SymInt) or isinstance(y, torch.SymInt):
        sizes = isinstance(x, int | torch.SymInt) and isinstance(y, int | torch.SymInt)
        return sizes and bool(expression(x) == expression(y))
    return str(x) == str(y)


def dtype_of(node: object) -> torch.dtype | None:
    """Return the dtype of a node's tensor; None if its value is not a tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def is_copy(node: Node) -> bool:
    """Return whether a node copies its input, as also a slice of a whole dim does (torch 2.11 emits one for ``:``)."""
    if node.target is aten.slice.Tensor:
        return argument(node, "step") == 1 and have_same_type(node, source_of(node))
    return op_kind(node.target) is Kind.COPIES


def copy_source(node: Node) -> Node:
    """Return the node that this node copies, or the node itself if it is not a copy."""
    while is_copy(node):
        node = source_of(node)
    return node


def is_cast(node: Node) -> bool:
    """Return whether a node casts to a floating-point dtype that networks support."""
    return op_kind(node.target) is Kind.CASTS and dtype_of(node) in FLOATS


def rank_of(node: Node) -> int:
    """Return the rank of a node's tensor."""
    return int(node.meta["val"].dim())


def source_of(node: Node) -> Argument:
    """Return the first argument of a node."""
    return node.args[0]


def both_orders(node: Node) -> Iterator[tuple[Argument, Argument]]:
    """Yield the two operands of a node as pairs (first, second) and (second, first)."""
    a, b = node.args[:2]
    yield from ((a, b), (b, a))


def only_reader(node: Node) -> Node | None:
    """Return the node that is the only reader of a node; None if there are several, or if it is the graph's output."""
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and readers[0].op != "output" else None


def is_output(node: Node) -> bool:
    """Return whether a node is an output of the program."""
    return any(user.op == "output" for user in node.users)


def is_item(node: Node) -> bool:
    """Return whether a node gets an item of a tuple."""
    return node.target is operator.getitem


def is_permutation(node: Node) -> bool:
    """Return whether a node permutes the dims of its input."""
    return op_kind(node.target) is Kind.TRANSPOSES


def permuted_dims(node: Node) -> list[int]:
    """Return, for each dim of a transposing node's result, the dim of its input that it comes from."""
    sizes = range(2, rank_of(node) + 2)
    turned = node.target(torch.empty(tuple(sizes), device="meta"), *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return [sizes.index(size) for size in turned.shape]
