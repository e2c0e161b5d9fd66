"""Torch-TensorRT's building blocks, one inside another: sizes that are tensors, several results, every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pipeline.compat.torch_tensorrt import impl
from tests.compat.test_torch_tensorrt import IR, gives


class Blocks:
    """The building blocks of a converter, without the arguments that are the same for all."""

    def __init__(self, ctx: Any, name: str) -> None:
        self.first = (ctx, None, IR, name)

    def __call__(self, block: str, *args: Any) -> Any:
        """What a block gives, by family and name."""
        family, _, name = block.partition(".")
        return getattr(getattr(impl, family), name)(*self.first, *args)


def rows(b: Blocks, x: Any) -> Any:
    """How many rows x has, as a tensor."""
    return b("shape.shape", x, 0)


CASES: dict[str, tuple[Any, Any]] = {
    "reshape -1": (
        lambda b, x: b("shuffle.reshape", b("shuffle.reshape", x, [rows(b, x), -1, 2]), [-1, 8]),
        lambda x: x,
    ),
    "reshape twice": (
        lambda b, x: b(
            "shuffle.reshape", b("shuffle.reshape", x, [b("elementwise.mul", rows(b, x), 2), 4]), [rows(b, x), 8]
        ),
        lambda x: x,
    ),
    "expand": (
        lambda b, x: b("elementwise.add", x, b("slice.expand", torch.ones(1, 8), [rows(b, x), 8])),
        lambda x: x + 1,
    ),
    "arange": (
        lambda b, x: b("elementwise.add", x, b("unsqueeze.unsqueeze", b("arange.arange", 0, rows(b, x), 1), 1)),
        lambda x: x + torch.arange(len(x))[:, None],
    ),
    "full": (
        lambda b, x: b("elementwise.add", x, b("full.full", [rows(b, x), 8], 2.0, torch.float32)),
        lambda x: x + 2,
    ),
    "slice stop": (lambda b, x: b("slice.slice_op", b("cat.cat", [x, x], 0), 0, 0, rows(b, x), 1), lambda x: x),
    "tril": (
        lambda b, x: b("condition.where", x, b("elementwise.mul", x, 0.0), b("attention.tril", rows(b, x), 8)),
        lambda x: torch.tril(x),
    ),
    "expand dims": (lambda b, x: b("slice.expand", x, x.shape), lambda x: x),
    "reduce": (lambda b, x: b("elementwise.sub", x, b("reduce.mean", x, None, True)), lambda x: x - x.mean()),
    "prod all keep": (
        lambda b, x: b("elementwise.add", x, b("reduce.prod", b("activation.sigmoid", x), None, True)),
        lambda x: x + x.sigmoid().prod(),
    ),
    "bn": (
        lambda b, x: b(
            "normalization.batch_norm",
            x,
            torch.ones(8) * 2,
            torch.ones(8),
            torch.ones(8) * 0.5,
            torch.ones(8) * 3,
            False,
            0.1,
            1e-5,
            False,
            False,
        ),
        lambda x: (x - 0.5) / (3 + 1e-5) ** 0.5 * 2 + 1,
    ),
    "pdist": (
        lambda b, x: b(
            "elementwise.add", x, b("reduce.sum", b("normalization.cdist_forward", x, x, 2.0, None), None, True)
        ),
        lambda x: x + torch.cdist(x, x).sum(),
    ),
    "sdpa": (
        lambda b, x: b(
            "shuffle.reshape",
            b(
                "attention.scaled_dot_product_attention",
                *[b("shuffle.reshape", x, [1, 1, rows(b, x), 8])] * 3,
                True,
                None,
            ),
            [-1, 8],
        ),
        lambda x: functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True)[
            0, 0
        ],
    ),
    "topk": (
        lambda b, x: b("cat.cat", b("split.split", b("topk.sort", x, 1, True, False), [3, 5], 1), 1),
        lambda x: x.sort(1, True)[0],
    ),
    "embedding": (
        lambda b, x: b(
            "elementwise.add", x, b("embedding.embedding", b("topk.argmax", x, 1), torch.eye(8), False, False)
        ),
        lambda x: x + torch.eye(8)[x.argmax(1)],
    ),
    "resize": (
        lambda b, x: b("elementwise.add", x, b("shuffle.resize", torch.arange(12.0).reshape(3, 4), [8])),
        lambda x: x + torch.arange(8.0),
    ),
    "roll flip": (lambda b, x: b("slice.flip", b("permutation.roll", x, 2, 1), [1]), lambda x: x.roll(2, 1).flip(1)),
    "pixel": (
        lambda b, x: b(
            "shuffle.reshape",
            b("shuffle.pixel_unshuffle", b("shuffle.pixel_shuffle", b("shuffle.reshape", x, [-1, 8, 1, 1]), 2), 2),
            [-1, 8],
        ),
        lambda x: x,
    ),
    "cross": (
        lambda b, x: b(
            "pad.pad", b("linalg.cross", *[b("slice.slice_op", x, 1, i, i + 3, 1) for i in (0, 3)], 1), [0, 5]
        ),
        lambda x: functional.pad(torch.linalg.cross(x[:, :3], x[:, 3:6]), (0, 5)),
    ),
    "slice base": (
        lambda b, x: b("cat.cat", [b("slice.slice", x, [0, 0], [1, 8], [1, 1]), x], 0),
        lambda x: torch.cat([x[:1], x]),
    ),
    "bcast in dim": (
        lambda b, x: b("elementwise.add", x, b("unsqueeze.broadcast_in_dim", torch.ones(8), [1, 8], [1])),
        lambda x: x + 1,
    ),
    "scalar_tensor": (lambda b, x: b("elementwise.add", x, b("unary.scalar_tensor", 2.0)), lambda x: x + 2),
    "dropout": (lambda b, x: b("unary.native_dropout", x, 0.5, False)[0], lambda x: x),
    "embedding_bag": (
        lambda b, x: b(
            "elementwise.add",
            x,
            b(
                "embedding.embedding_bag",
                torch.eye(8),
                torch.tensor([1, 2, 3]),
                torch.tensor([0]),
                False,
                0,
                False,
                None,
                False,
            )[0],
        ),
        lambda x: x + torch.eye(8)[1:4].sum(0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_blocks_inside_blocks(case: str) -> None:
    function, expected = CASES[case]
    gives(lambda ctx, name, x: function(Blocks(ctx, name), x), expected)
