"""Helpers that convert values for a user's converter.

They convert dtypes between torch, TensorRT and numpy; get the conversion context from a converter's first argument
(a context, or a network in the LEGACY convention); keep views of parameters refittable by transposing in the
network; infer sizes of tensors that a user's own layers return; and create fake tensors, from which torch computes the
result type of a call."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, TypeAlias, cast

import numpy as np
import torch
from attrs import field, frozen
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument
from pipeline.capture.fake_tensors import fake_mode, ignore_new_symbols, suppress_guards
from pipeline.impl import base
from pipeline.network.context import ConversionContext, SymbolicInt
from pipeline.network.net import LegacyNetwork
from pipeline.shapes.environment import LARGEST, Range, expression
from pipeline.trt import layer_kind, to_torch, trt


class SourceIR(Enum):
    """The kind of graph that a converted node was in. Building blocks accept it for compatibility, and ignore it."""

    NN = auto()
    ACC = auto()
    ATEN = auto()
    PRIM = auto()
    TORCHTRT_LOWERED = auto()
    UNKNOWN = auto()

    def __str__(self) -> str:
        return "unknown_ir" if self is SourceIR.UNKNOWN else self.name.lower()


def torch_dtype(dtype: Argument) -> torch.dtype | None:
    """Convert a dtype of torch, TensorRT or numpy to torch's; return None for None."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    return to_torch(dtype) if isinstance(dtype, trt.DataType) else torch.from_numpy(np.empty(0, dtype)).dtype


def per_dim(value: Argument, dim_count: int) -> list[Argument]:
    """Return a list with one value for each dim; a single value is repeated ``dim_count`` times."""
    values = list(value) if isinstance(value, list | tuple | trt.Dims) else [value]
    return values * dim_count if len(values) == 1 else values


Conversion: TypeAlias = ConversionContext | LegacyNetwork


def as_context(ctx: Conversion) -> ConversionContext:
    """Return the `ConversionContext` of a converter's first argument: a context or (LEGACY convention) a network."""
    if isinstance(ctx, LegacyNetwork):
        return ctx.ctx
    if not isinstance(ctx, ConversionContext):
        raise TypeError(f"a building block got {ctx!r} as ctx: pass the converter's first argument, ctx or network")
    return ctx


def transpose_constant(ctx: ConversionContext, name: str, value: torch.Tensor) -> Argument:
    """Return ``value``; if it is a transposed view of a weight, add layers that transpose the weight, for refitting."""
    constant = None if ctx.find_equal_constant(value) is not None else ctx.find_constant_in_memory_of(value)
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    if constant is None or not value.permute(order).is_contiguous():
        return value
    rows = base.reshape(ctx, name, base.tensor(ctx, name, constant), tuple(value.shape[dim] for dim in order))
    return base.permute(ctx, name, rows, [order.index(dim) for dim in range(value.dim())])


SAME_SHAPE: Final = frozenset(
    {"ACTIVATION", "CAST", "CUMULATIVE", "IDENTITY", "LRN", "NORMALIZATION", "SCALE", "SOFTMAX", "UNARY"}
)
"""The kinds of TensorRT layers whose result has the shape of their first input."""

BROADCASTS: Final = frozenset({"ELEMENTWISE", "PARAMETRIC_RELU", "SELECT"})
"""The kinds of TensorRT layers whose result has the broadcast shape of all inputs; the inputs have the same rank."""


def infer_sizes(ctx: ConversionContext, tensor: trt.ITensor) -> list[Argument]:
    """Return the sizes of a network's tensor: ints, expressions of the program's symbols, or None for unknown sizes."""
    known = base.known_sizes(ctx, tensor)
    layers = (ctx.net.get_layer(i) for i in reversed(range(ctx.net.num_layers)))
    makers = (layer for layer in layers if any(layer.get_output(j) is tensor for j in range(layer.num_outputs)))
    if None not in known or (layer := next(makers, None)) is None:  # None: an input of the network
        return known
    kind = layer_kind(layer)
    inputs = [layer.get_input(i) for i in range(layer.num_inputs if kind in BROADCASTS else 1)]
    if kind not in SAME_SHAPE | BROADCASTS or any(each is None for each in inputs):
        return known
    columns = zip(*(infer_sizes(ctx, each) for each in inputs), strict=True)
    found = [size if size is not None else _broadcast_size(column) for size, column in zip(known, columns, strict=True)]
    base.with_sizes(ctx, tensor, found)
    return found


def _broadcast_size(sizes: tuple[Argument, ...]) -> Argument:
    """Return the size that results from broadcasting one dim of several tensors; None if it is unknown."""
    others = [size for size in sizes if size != 1]
    return others[0] if all(size == others[0] for size in others) else None


@frozen(eq=False)
class NetworkFakes:
    """Fake tensors for the values of a network, in the fake mode of the program that is being converted."""

    ctx: ConversionContext
    mode: FakeTensorMode
    device: torch.device
    known: dict[str, torch.SymInt] = field(factory=dict)

    @classmethod
    def of(cls, ctx: ConversionContext) -> NetworkFakes:
        """Return the `NetworkFakes` of a conversion, which the first call creates."""
        if not isinstance(ctx.stand_ins, cls):
            assert ctx.node is not None
            mode = fake_mode(ctx.node.graph)
            mode = mode if mode.shape_env is not None else FakeTensorMode(shape_env=ShapeEnv())
            nodes = [ctx.node, *ctx.node.all_input_nodes]
            values = tree_leaves([node.meta.get("val") for node in nodes])
            device = next((v.device for v in values if isinstance(v, FakeTensor)), torch.device("cpu"))
            ctx.stand_ins = cls(ctx, mode, device)
        return ctx.stand_ins

    def fake_tensor(self, value: Argument) -> torch.Tensor:
        """Return the fake tensor for an ``ITensor`` or a constant."""
        given = isinstance(value, torch.Tensor)
        shape = list(value.shape) if given else [self.size_or_element(value, dim) for dim in range(base.rank(value))]
        with suppress_guards(self.mode), ignore_new_symbols(self.mode):
            return torch.empty(shape, dtype=base.dtype_of(value), device=self.device)

    def size_or_element(self, tensor: trt.ITensor, dim: int | None) -> int | torch.SymInt:
        """Return the size of a dim or, if ``dim`` is None, the number in a one-element tensor. The result is a symbol
        of the program, or a new symbol if the value is unknown."""
        size = self.ctx.held_sizes.get(id(tensor), (None,))[0] if dim is None else infer_sizes(self.ctx, tensor)[dim]
        if size is not None:
            return size if isinstance(size, int) else self.to_symint(size)
        key = f"{id(tensor)} {dim}"
        if key not in self.known:
            assert self.mode.shape_env is not None
            with ignore_new_symbols(self.mode):
                self.known[key] = made = self.mode.shape_env.create_unbacked_symint()
            torch._check(made >= 0)
            name = str(expression(made))
            self.ctx.symbols[name] = (tensor, dim)
            self.ctx.ranges = {**self.ctx.ranges, name: Range(0, 1, LARGEST)}
        return self.known[key]

    def to_symint(self, size: SymbolicInt) -> torch.SymInt:
        """Return torch's symbolic int for an expression of the program's symbols."""
        assert self.mode.shape_env is not None
        return cast(torch.SymInt, self.mode.shape_env.create_symintnode(size.expr, hint=None))
