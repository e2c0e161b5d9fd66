"""The limits that validators state, each with a call just inside and a call just outside."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen

from pipeline.testing import Call, Size, TensorSpec
from tests.operators import positive

aten = torch.ops.aten
LONG, HALF, MASK = torch.int64, torch.bfloat16, torch.bool


@frozen
class Limit:
    """``says`` is part of the reason for which ``outside`` is refused. ``fails`` is how it shows that the reason is
    true once nobody refuses: a kind of ``CheckError``, or several. ``measured`` are the words of docs/notes that
    say so, where it does not show on a machine without a GPU. ``before``: versions of TensorRT from this one on build
    what is refused, which has not run on a GPU.
    """

    says: str
    inside: Call
    outside: Call
    fails: str = "converts"
    measured: str = ""
    before: tuple[int, ...] = (99,)


def x(*shape: Any, dtype: torch.dtype = torch.float32, values: Any = "normal", **more: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, values, **more)


def indices(*shape: Any, below: int = 2) -> TensorSpec:
    return TensorSpec(shape, LONG, ("below", below))


def call(target: Any, *args: Any, outputs: Any = None, sizes: Any = None, **kwargs: Any) -> Call:
    """A call; its sizes go from 5 to 8 unless more is said."""
    names = {n for a in args for n in _names(a)} - set(sizes or {})
    return Call(target, args, kwargs, {**dict.fromkeys(sorted(names), (5, 6, 8)), **(sizes or {})}, outputs)


def _names(argument: Any) -> tuple[str, ...]:
    if isinstance(argument, list):
        return tuple(name for each in argument for name in _names(each))
    return argument.size_names if isinstance(argument, TensorSpec | Size) else ()


def pool(target: Any, spec: TensorSpec, *windows: Any, **more: Any) -> Call:
    return call(target, spec, *windows, **more)


def attention(*shape: Any, p: float = 0.0) -> Call:
    return call(aten.scaled_dot_product_attention.default, *[x(*shape)] * 3, None, p)


def convolution(spec: TensorSpec, weight: TensorSpec, transposed: bool = False, groups: int = 1) -> Call:
    return call(aten.convolution.default, spec, weight, None, [1], [0], [1], transposed, [0], groups)


def bilinear(spec: TensorSpec, size: Any, scales: Any = None, target: Any = aten.upsample_bilinear2d.vec) -> Call:
    return call(target, spec, size, False, scales)


def _norm(spec: TensorSpec) -> Call:
    return call(aten.group_norm.default, spec, 1)


def _instances(own: bool) -> Call:
    statistics = [x(4, values="positive", constant=True)] * 2
    return call(aten.instance_norm.default, x("n", 4, 6), None, None, *statistics, own, 0.1, 1e-5, False)


def _two_layers(dropout: float) -> Call:
    weights = [x(3, 3, values="unit", seed=i) for i in range(4)]
    return call(aten.rnn_tanh.input, x("n", 2, 3), x(2, 2, 3), weights, False, 2, dropout, True, False, False)


LONGEST = 3840

LIMITS = (
    Limit("dropout_p is not 0", attention(1, 2, "n", 4), attention(1, 2, "n", 4, p=0.5), "values"),
    Limit("it must be static", attention(1, 2, "n", 4), attention(1, 2, 3, "n")),
    Limit(
        "TensorRT supports convolutions of floating-point tensors only",
        convolution(x("n", 2, 5, dtype=torch.float16), x(3, 2, 2, dtype=torch.float16)),
        convolution(x("n", 2, 5, dtype=LONG), x(3, 2, 2, dtype=LONG)),
        "converts|builds",
    ),
    Limit(
        "TensorRT supports static kernels only",
        convolution(x("n", 2, 9), x(3, 2, 2)),
        convolution(x("n", 2, 9), x(3, 2, "k")),
        "converts|builds",
    ),
    Limit(
        "transposed bfloat16 convolutions with groups",
        convolution(x("n", 2, 5, dtype=HALF), x(2, 2, 2, dtype=HALF), True),
        convolution(x("n", 2, 5, dtype=HALF), x(2, 2, 2, dtype=HALF), True, 2),
        measured="gave -5e16 for 0.7",
    ),
    Limit(
        "dropout is on, which needs PyTorch's RNG",
        call(aten.native_dropout.default, x("n", 9), 0.5, False),
        call(aten.native_dropout.default, x("n", 9), 0.5, None),
        "values",
    ),
    Limit("dropout samples random numbers", _two_layers(0.0), _two_layers(0.5), "values"),
    Limit(
        "need one more dim, and TensorRT supports at most 8",
        call(aten.bitwise_and.Scalar, x(*[1] * 7, 3, dtype=LONG), 7),
        call(aten.bitwise_or.Tensor, *[x(*[1] * 7, 3, dtype=LONG)] * 2),
    ),
    Limit(
        "reads an output for gradients",
        call(aten._embedding_bag.default, x(4, 3), indices("n"), x(1, dtype=LONG, values="zeros"), outputs=(0,)),
        call(aten._embedding_bag.default, x(4, 3), indices("n"), x(1, dtype=LONG, values="zeros"), outputs=(0, 1)),
    ),
    Limit(
        "the converter supports rank 1, with offsets",
        call(aten._embedding_bag.default, x(4, 3), indices(5), x(2, dtype=LONG, values="zeros"), outputs=(0,)),
        call(aten._embedding_bag.default, x(4, 3), indices(2, 5), x(2, dtype=LONG, values="zeros"), outputs=(0,)),
    ),
    Limit(
        "the shape of the result depends on its values",
        call(aten.index.Tensor, x("n", 3), [indices(4)]),
        call(aten.index.Tensor, x(4, 3), [x(4, dtype=MASK)]),
        "converts|builds",
    ),
    Limit(
        "has no NonZero layer",
        call(aten.index.Tensor, x("n", 3), [indices(4)]),
        call(aten.nonzero.default, x(4, 3)),
        "builds",
    ),
    Limit(
        "a mask with other indices",
        call(aten.index_put.default, x(4, 3), [x(4, dtype=MASK)], x(1)),
        call(aten.index_put.default, x(4, 3), [x(4, dtype=MASK), indices(1)], x(1)),
        "values",
    ),
    Limit(
        "accumulating needs a tensor of rank 9",
        call(aten.index_put.default, x(*[2] * 7), [indices(3)], x(1), True),
        call(aten.index_put.default, x(*[2] * 8), [indices(3)], x(1), True),
    ),
    Limit(
        "dim 1 of the input, the channels, is",
        _norm(x("n", 4, 6)),
        _norm(x(2, "n", 6)),
    ),
    Limit("with running statistics is decomposed", _instances(True), _instances(False), "values"),
    Limit(
        "dilated pooling needs static sizes",
        pool(aten.max_pool2d.default, x("n", 2, 6, 6), [2, 2], [2, 2], [0, 0], [2, 2]),
        pool(aten.max_pool2d.default, x(2, 2, 6, "n"), [2, 2], [2, 2], [0, 0], [2, 2]),
    ),
    Limit(
        "pooling of integers needs static sizes",
        pool(aten.max_pool2d.default, x("n", 2, 6, 6, dtype=LONG), [2, 2]),
        pool(aten.max_pool2d.default, x(2, 2, 6, "n", dtype=LONG), [2, 2]),
    ),
    Limit(
        "pooling with indices needs static sizes",
        pool(aten.max_pool2d_with_indices.default, x("n", 2, 6, 6), [2, 2]),
        pool(aten.max_pool2d_with_indices.default, x(2, 2, 6, "n"), [2, 2]),
    ),
    Limit(
        "this ceil_mode needs static sizes",
        pool(aten.max_pool2d.default, x("n", 2, 6, "m"), [2, 2], [2, 2], [0, 0], [1, 1], True),
        pool(aten.max_pool2d.default, x(2, 2, 6, "n"), [2, 2], [3, 3], [1, 1], [1, 1], True),
        "values|runs",
    ),
    Limit(
        "TensorRT supports average pooling of floating-point tensors only",
        pool(aten.avg_pool2d.default, x("n", 2, 6, 6, dtype=HALF), [2, 2]),
        pool(aten.avg_pool2d.default, x("n", 2, 6, 6, dtype=LONG, values="large"), [2, 2]),
        "values",
    ),
    Limit(
        "averaging with ceil_mode, which RTX 1.4 builds but may refuse to run at some sizes",
        pool(aten.avg_pool2d.default, x("n", 2, 6, 6), [2, 2], [2, 2], [0, 0], True),
        pool(aten.avg_pool2d.default, x(2, 2, 6, "n"), [2, 2], [2, 2], [0, 0], True),
        measured="built and then would not run at some sizes",
    ),
    Limit(
        "needs a static size",
        call(aten._adaptive_avg_pool2d.default, x(2, 2, 6, "n"), [3, 1]),
        call(aten._adaptive_avg_pool2d.default, x(2, 2, 6, "n"), [1, 3]),
    ),
    Limit(
        "pooling with indices needs a static size",
        call(aten.adaptive_max_pool2d.default, x("n", 2, 6, 6), [3, 1]),
        call(aten.adaptive_max_pool2d.default, x(2, 2, 6, "n"), [3, 1]),
    ),
    Limit(
        "the bins span the data's range",
        call(aten.histc.default, x("n"), 3, 0, 1),
        call(aten.histc.default, x("n"), 3),
        "values",
    ),
    Limit(
        "TensorRT's grid_sample needs 4 dims",
        call(aten.grid_sampler.default, x("n", 2, 4, 5), x("n", 3, 4, 2), 0, 0, False),
        call(aten.grid_sampler.default, x(2, 2, 4, 5, 3), x(2, 3, 4, 2, 3), 0, 0, False),
        before=(1, 5),
    ),
    Limit(
        "TensorRT interpolates floating-point tensors only",
        bilinear(x("n", 2, 4, 5, dtype=HALF), [7, 6]),
        bilinear(x("n", 2, 4, 5, dtype=torch.uint8), [7, 6]),
        "values",
    ),
    Limit(
        "antialiasing needs static sizes",
        bilinear(x("n", 2, 4, 5), [7, 6], target=aten._upsample_bilinear2d_aa.vec),
        bilinear(x(2, 2, 4, "n"), [7, 6], target=aten._upsample_bilinear2d_aa.vec),
        "converts|values",
    ),
    Limit(
        "and TensorRT may misround its product with the scale",
        bilinear(x(2, 2, 4, "n"), None, [2.0, 1.5]),
        bilinear(x(2, 2, 4, "n"), None, [2.0, 1.7]),
        "converts|values",
    ),
    Limit(
        "the comparison of all indices with all positions",
        call(aten.scatter_add.default, x(2, 3), 1, indices(2, 4), x(2, 4)),
        call(aten.scatter_add.default, x(1, 1 << 15), 1, indices(1, 1 << 16), x(1, 1 << 16)),
        measured="A tensor of 2^31 elements",
    ),
    Limit(
        "the reduction needs a tensor of rank 9",
        call(aten.scatter_add.default, x(*[2] * 7), 1, indices(*[2] * 7), x(*[2] * 7)),
        call(aten.scatter_add.default, x(*[2] * 8), 1, indices(*[2] * 8), x(*[2] * 8)),
    ),
    Limit(
        "leaves the additional elements undefined",
        call(aten.resize.default, x("n", 3), [2, Size("n")]),
        call(aten.resize.default, x(4, 3), [2, 7]),
        "builds",
    ),
    Limit(
        "TensorRT sorts at most 3840",
        call(aten.sort.default, x(LONGEST, values="distinct")),
        call(aten.sort.default, x(LONGEST + 1, values="distinct")),
    ),
    Limit(
        "TensorRT supports at most 3840",
        call(aten.topk.default, x(2, LONGEST, values="distinct"), LONGEST),
        call(aten.topk.default, x(2, LONGEST + 1, values="distinct"), LONGEST + 1),
    ),
)


@frozen(eq=False)
class Model:
    """A limit of graphs: ``says`` is part of the reason, ``targets`` are the operators that are refused."""

    says: str
    function: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    targets: tuple[Any, ...] = ()
    dynamic: Any = None

    def module(self) -> torch.nn.Module:
        """A module that computes the function."""
        function = self.function

        class Function(torch.nn.Module):
            def forward(self, *args: torch.Tensor) -> Any:
                return function(*args)

        return Function().eval()


IMAGE = torch.arange(12.0).reshape(3, 4)
ROWS = ({0: torch.export.Dim("rows", min=2, max=8)},)

MODELS = (
    Model("is float64, which TensorRT does not support", lambda x: x + 1, (IMAGE.double(),)),
    Model("is int16, which TensorRT does not support", lambda x: x + 1, (IMAGE.short(),)),
    Model("allows for quantized weights only", lambda x: x + 1, (IMAGE.to(torch.int8),)),
    Model("has rank 9, but TensorRT supports at most 8", lambda x: x + 1, (IMAGE.reshape(*[1] * 7, 3, 4),)),
    Model(
        "that Python reads from a tensor",
        lambda x, y: x * y.item(),
        (IMAGE, torch.tensor(1.5)),
        (aten._local_scalar_dense.default,),
    ),
    Model(
        "from the result of",
        lambda x, n: (x * 2)[: n.item()] + 1,
        (IMAGE, torch.tensor(2)),
        (aten._local_scalar_dense.default,),
    ),
    Model("Python computes the argument", lambda x, n: (x * 2)[: n.item()] + 1, (IMAGE, torch.tensor(2))),
    Model("compute with symbolic ints only", lambda x: x * (x.shape[0] / 3), (IMAGE,), (operator.truediv,), (ROWS,)),
    Model("that is known only after the operator runs", lambda x: positive(x) + 1, (IMAGE,)),
    Model("is a symbolic float, which Python computes", lambda x: x * (x.shape[0] / 3), (IMAGE,), (), (ROWS,)),
)
