"""Capture a model with inputs that have one value: `pipeline.Constant`.

torch follows the values of tensors of one element that are made while it traces, and gives Python their numbers. Here
it does so for these inputs, for what is computed from them, and for tensors that are filled with numbers, of any
number of elements. The graph still computes it all from a placeholder, which then becomes a constant of the program,
so that it is folded like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

import torch
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from pipeline.aten.naming import unlike
from pipeline.aten.types import Argument, Function, Target
from pipeline.errors import CaptureError
from pipeline.frontend.replacement import Kernel
from pipeline.frozen import FrozenDict
from pipeline.inputs import Constant
from pipeline.program import Port, Program
from pipeline.recipes import identity

aten = torch.ops.aten

Inputs: TypeAlias = tuple[tuple[object, ...], dict[str, Argument]]

LARGEST: Final = 1 << 20
"""The most elements of a tensor whose value is followed."""
MAKING: Final = frozenset(
    getattr(aten, name)
    for name in ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "tril_indices", "triu_indices", "zeros")
)
"""Operators that make a tensor of numbers alone."""

_values: ContextVar[Mapping[int, torch.Tensor]] = ContextVar("values of inputs")


def is_constant(value: object) -> bool:
    """Whether an input is a `Constant`."""
    return isinstance(value, Constant)


def taken_out(
    args: tuple[object, ...], kwargs: dict[str, Argument]
) -> tuple[tuple[object, ...], dict[str, Argument], dict[int, Constant]]:
    """The inputs with tensors in place of constants, and the constants by the places of their leaves."""
    leaves, structure = tree_flatten((args, kwargs), is_leaf=is_constant)
    found = {i: leaf for i, leaf in enumerate(leaves) if is_constant(leaf)}
    if not found:
        return args, kwargs, {}
    positional, named = tree_unflatten([x.value.clone() if is_constant(x) else x for x in leaves], structure)
    return positional, named, found


@contextmanager
def known(constants: Mapping[int, Constant]) -> Iterator[None]:
    """A context in which the inputs at these places, of a model that is exported, have values."""
    token = _values.set({place: constant.value for place, constant in constants.items()})
    try:
        yield
    finally:
        _values.reset(token)


def but_known(function: Callable[[torch.Tensor], Argument], inputs: Inputs) -> Inputs:
    """The inputs with the function of each tensor in place of it, but for those with values."""
    leaves, structure = tree_flatten(inputs)
    made = [
        function(leaf) if isinstance(leaf, torch.Tensor) and i not in _values.get({}) else leaf
        for i, leaf in enumerate(leaves)
    ]
    positional, named = tree_unflatten(made, structure)
    return positional, named


def valued(own: Kernel) -> Kernel:
    """Wrap torch.export's making of fake inputs: those of constants carry their values."""

    def fakes(module: object, args: object, kwargs: object, *rest: Argument, **options: Argument) -> Argument:
        made, values = own(module, args, kwargs, *rest, **options), _values.get({})
        for place, fake in enumerate(tree_leaves(made[1:3]) if values else ()):
            if place in values:
                fake.constant = values[place].clone()
        return made

    return fakes


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has its elements in memory of its own device."""
    return tensor.layout == torch.strided and not tensor.is_meta


def larger(own: Kernel) -> Kernel:
    """Wrap `FakeTensorMode.may_turn_const`: more than one element may be followed."""

    def may(mode: FakeTensorMode, tensor: torch.Tensor) -> bool:
        if not _values.get({}):
            return bool(own(mode, tensor))
        return type(tensor) is torch.Tensor and is_plain(tensor) and tensor.numel() <= LARGEST

    return may


def making(dispatch: Function) -> Function:
    """Wrap `FakeTensorMode.dispatch`: tensors that are filled with numbers have values."""

    def dispatch_and_fill(
        mode: FakeTensorMode, func: Target, types: object, args: Argument = (), kwargs: Argument = None
    ) -> object:
        made = dispatch(mode, func, types, args, kwargs)
        if _values.get({}) and getattr(func, "overloadpacket", None) in MAKING and isinstance(made, FakeTensor):
            numbers = not any(isinstance(x, torch.SymInt | torch.SymFloat) for x in tree_leaves((args, kwargs)))
            there = made.device.type == "cpu" or torch.cuda.is_initialized()
            if numbers and there and made.constant is None and made.numel() <= LARGEST:
                with no_dispatch():
                    made.constant = func(*args, **(kwargs or {}))
        return made

    return dispatch_and_fill


def held(program: Program, constants: Mapping[int, Constant]) -> Program:
    """The program with the constants in place of these inputs.

    Raises:
        CaptureError: the model writes to one.
    """
    if not constants:
        return program
    graph, names = program.graph, {node.name for node in program.graph.nodes}
    placeholders = {node.name: node for node in graph.find_nodes(op="placeholder")}
    replaced = set[str]()
    inputs, added, tensors = list(program.inputs), dict(program.constants), dict(program.parameters)
    for place, constant in constants.items():
        name = inputs[place].name
        replaced.add(name)
        if any(output.kind == "input" and output.target == name for output in program.outputs):
            raise CaptureError(f"the model writes to the input {name}, which is a Constant", "pass it as a tensor")
        target = f"the input {name}"
        with graph.inserting_before(placeholders[name]):
            node = graph.placeholder(unlike(f"constant_{name}", names))
        node.meta = dict(placeholders[name].meta)
        placeholders[name].replace_all_uses_with(node, delete_user_cb=lambda user: user.op != "output")
        inputs[place] = Port(name, kind="constant", value=constant)
        added[node.name], tensors[target] = identity(target), constant.value
    program.graph_module.recompile()
    return evolve(
        program,
        inputs=tuple(inputs),
        constants=FrozenDict(added),
        parameters=FrozenDict(tensors),
        examples=FrozenDict({n: x for n, x in program.examples.items() if n not in replaced}),
        written=program.written | (tensors.keys() - program.parameters.keys()),
    )
