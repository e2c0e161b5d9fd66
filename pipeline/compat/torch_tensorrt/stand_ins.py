"""Fake tensors for the values of a converter, so that torch can compute the result type of a call on them."""

from __future__ import annotations

from typing import cast

import torch
from attrs import field, frozen
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from pipeline.aten.types import Argument
from pipeline.capture.fake_tensors import fake_mode, quietly, unnamed_sizes
from pipeline.compat.torch_tensorrt.layer_shapes import sizes_of
from pipeline.impl import base
from pipeline.network.context import ConversionContext, SymbolicInt
from pipeline.shapes.environment import LARGEST, Range, expression
from pipeline.trt import trt


def remembered(ctx: ConversionContext, tensor: trt.ITensor, size: Argument) -> trt.ITensor:
    """Remember the size that a tensor holds: an int, or an expression (None: unknown)."""
    if size is not None:
        ctx.held_sizes[id(tensor)] = size, tensor
    return tensor


@frozen(eq=False)
class StandIns:
    """The fake tensors of one network's values, in the fake mode of the program that is converted."""

    ctx: ConversionContext
    mode: FakeTensorMode
    device: torch.device
    known: dict[str, torch.SymInt] = field(factory=dict)

    @classmethod
    def of(cls, ctx: ConversionContext) -> StandIns:
        """Return the stand-ins of a network, created once."""
        if not isinstance(ctx.stand_ins, cls):
            assert ctx.node is not None
            mode = fake_mode(ctx.node.graph)
            mode = mode if mode.shape_env is not None else FakeTensorMode(shape_env=ShapeEnv())
            ctx.stand_ins = cls(ctx, mode, _device(ctx.node))
        return ctx.stand_ins

    def tensor(self, value: Argument) -> torch.Tensor:
        """Return the fake tensor for an ``ITensor`` or a constant."""
        given = isinstance(value, torch.Tensor)
        shape = list(value.shape) if given else [self.size(value, dim) for dim in range(base.rank(value))]
        with quietly(self.mode), unnamed_sizes(self.mode):
            return torch.empty(shape, dtype=base.dtype_of(value), device=self.device)

    def number(self, value: trt.ITensor) -> int | torch.SymInt:
        """Return the number that a tensor of one element holds, as a size."""
        size, _ = self.ctx.held_sizes.get(id(value), (None, value))
        return size if isinstance(size, int) else self.unknown(value, None) if size is None else self.symbolic(size)

    def size(self, value: trt.ITensor, dim: int) -> int | torch.SymInt:
        """Return the size of a dim: the program's symbol for it, or a new one if there is none."""
        size = sizes_of(self.ctx, value)[dim]
        return size if isinstance(size, int) else self.unknown(value, dim) if size is None else self.symbolic(size)

    def unknown(self, value: trt.ITensor, dim: int | None) -> torch.SymInt:
        """Return a new symbol for an unknown size: that of a dim, or (None) the number that the tensor holds."""
        key = f"{id(value)} {dim}"
        if key not in self.known:
            assert self.mode.shape_env is not None
            with unnamed_sizes(self.mode):
                self.known[key] = made = self.mode.shape_env.create_unbacked_symint()
            torch._check(made >= 0)
            name = str(expression(made))
            self.ctx.symbols[name] = (value, dim)
            self.ctx.ranges = {**self.ctx.ranges, name: Range(0, 1, LARGEST)}
        return self.known[key]

    def symbolic(self, size: SymbolicInt) -> torch.SymInt:
        """Return the symbolic int for an expression of the program's symbols."""
        assert self.mode.shape_env is not None
        return cast(torch.SymInt, self.mode.shape_env.create_symintnode(size.expr, hint=None))


def _device(node: torch.fx.Node) -> torch.device:
    """Return the device of a node's tensors."""
    values = tree_leaves([node.meta.get("val"), [n.meta.get("val") for n in node.all_input_nodes]])
    return next((v.device for v in values if isinstance(v, FakeTensor)), torch.device("cpu"))
