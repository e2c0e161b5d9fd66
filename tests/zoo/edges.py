"""Edge shapes: rank 0, no elements, size 1, rank above 8, dims and bounds counted from the end or out of range."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pipeline.program import Range
from tests.zoo.rows import RANGES, Row, f, i, t

X, SCALAR = t("n", 4, 5), t()
FROM_NONE = {**RANGES, "n": Range(0, 2, 4), "s": Range(0, 2, 4)}


def _rank_0() -> Iterator[Row]:
    yield f("rank 0 arithmetic", lambda x, y: (x + y, x * 2, x / y, x**2, -x, x > y), SCALAR, SCALAR)
    yield f("rank 0 unary", lambda x: (x.exp(), x.relu(), F.gelu(x), x.sigmoid(), x.round(), x.abs().sqrt()), SCALAR)
    yield f(
        "rank 0 reductions", lambda x: (x.sum(), x.mean(), x.amax(), x.sum(0), x.max(0), x.argmax(), x.prod()), SCALAR
    )
    yield f("rank 0 var", lambda x: (x.var(correction=0), x.std(0, correction=0)), SCALAR)
    yield f(
        "rank 0 shapes", lambda x: (x.reshape(1, 1), x.unsqueeze(0), x.expand(2, 3), x.flatten(), x.squeeze()), SCALAR
    )
    yield f("rank 0 softmax", lambda x: (x.softmax(0), x.log_softmax(-1), x.cumsum(0)), SCALAR)
    yield f("rank 0 sort", lambda x: (x.sort(), x.topk(1), x.flip(0), x.argsort()), SCALAR)
    yield f("rank 0 broadcast", lambda x, y: (x * y, torch.where(y > 0, x, y), torch.maximum(x, y)), X, SCALAR)
    yield f(
        "rank 0 index", lambda x, at: (x[:, at], x.index_select(1, at), x.gather(0, at.reshape(1, 1, 1))), X, i(below=1)
    )
    yield f("rank 0 scatter", lambda x, at: (x.scatter(0, at, 2.0), x.index_fill(0, at, 1.0)), SCALAR, i(below=1))
    yield f(
        "rank 0 ints", lambda x, y: (x // y, x & y, x << 1, x == y, x + 0.5), i(values="positive"), i(values="positive")
    )
    yield f("rank 0 norm", lambda x: (x.norm(), x.logsumexp(0), torch.linalg.vector_norm(x, 3)), SCALAR)
    yield f("rank 0 tril", lambda x: torch.stack([x, x]).repeat(2), SCALAR)


def _empty() -> Iterator[Row]:
    none = t(0, 4)
    yield f("no elements, arithmetic", lambda x: (x + 1, x.exp(), x * x, x > 0, x.to(torch.int32)), none)
    yield f("no elements, sums", lambda x: (x.sum(0), x.prod(0), x.any(0), x.all(), x.mean(1), x.sum()), none)
    yield f("no elements, mean", lambda x: (x.mean(0), x.sum(), x.var(1)), none)
    yield f("no elements, maxima", lambda x: (x.amax(1), x.argmax(1), x.sort(1), x.topk(2, 1)), none)
    yield f("no elements, matmul", lambda x, y: (x @ y, y.T @ x.T), none, t(4, 3))
    yield f("product over no elements", lambda x, y: x @ y, t(3, 0), t(0, 2))
    yield f("no elements, cat", lambda x, y: (torch.cat([x, y]), torch.cat([x, x], 1)), none, t("n", 4))
    yield f(
        "no elements, shapes", lambda x: (x.reshape(2, 0, 2), x.T, x.unsqueeze(0), x.flatten(), x.expand(3, 0, 4)), none
    )
    yield f("no elements, slices", lambda x: (x[:, 1:3], x[:, ::2], x.flip(1), x.roll(1, 1), F.pad(x, (1, 1))), none)
    yield f("no elements, linear", nn.Linear(4, 3), none)
    yield f("no elements, norm", lambda x: (F.layer_norm(x, (4,)), x.softmax(1), x.cumsum(0), x.norm(2, 1)), none)
    yield f("no elements, convolution", nn.Conv2d(2, 3, 3), t(0, 2, 5, 5))
    yield f("no elements, pooling", lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)), t(0, 2, 4, 4))
    yield f("no elements, interpolate", lambda x: F.interpolate(x, scale_factor=2), t(0, 2, 4, 4))
    yield f("no elements, embedding", lambda at, w: F.embedding(at, w), i(0, below=3), t(3, 2))
    yield f("no elements, index", lambda x, at: (x[:, at], x.gather(0, at.new_zeros(0, 4))), none, i(2, below=4))
    yield f("no indices", lambda x, at: (x[:, at], x.index_select(1, at)), X, i(0))
    yield f("no elements, scatter", lambda x, at, v: x.scatter_add(1, at, v), X, i("n", 0, 5), t("n", 0, 5))
    yield f("empty slice", lambda x: (x[:, 3:1], x[:, 4:], x[2:2]), t(3, 4, 5))
    yield f("sum of an empty slice", lambda x: (x[:, 4:].sum(1), x[:, 4:].prod(1)), X)
    yield f("dynamic from none", lambda x: (x + 1, x.sum(0), x.exp().T, x.softmax(1)), t("n", 4), ranges=FROM_NONE)
    yield f("dynamic from none, linear", nn.Linear(4, 3), t("n", 4), ranges=FROM_NONE)
    yield f("dynamic from none, cat", lambda x, y: torch.cat([x, y]), t("n", 4), t("s", 4), ranges=FROM_NONE)


def _ones() -> Iterator[Row]:
    yield f("size 1 broadcast", lambda x, y: (x + y, x * y.mT, torch.where(x > y, x, y)), X, t("n", 1, 5 - 4))
    yield f("size 1 both ways", lambda x, y: x - y, t("n", 1, 5), t(1, 4, 1))
    yield f("size 1 expand", lambda x: x.expand(-1, 4, 5), t("n", 1, 1))
    yield f("size 1 squeeze", lambda x: (x.squeeze(1), x.squeeze(2), x.squeeze((1, 2))), t("n", 1, 5))
    yield f("size 1 matmul", lambda x, y: x @ y, t(1, 4, 5), t("n", 5, 3))
    yield f("size 1 softmax", lambda x: (x.softmax(1), x.mean(1), x.var(1, correction=0)), t("n", 1))
    yield f(
        "ranks differ", lambda x, y: (x + y, torch.maximum(x, y), x.eq(y), torch.atan2(x, y)), t(5), t("n", 3, 4, 5)
    )


def _ranks() -> Iterator[Row]:
    eight = t("n", *(2,) * 7)
    yield f(
        "rank 8", lambda x: (x * 2, x.sum(3), x.transpose(0, 7), x.flip(2), x[..., 1:], x.softmax(-1), x @ x.mT), eight
    )
    yield f("rank 8 to 1", lambda x: x.reshape(x.shape[0], -1).cumsum(1), eight)
    yield f("rank 9 on the way", lambda x: x.unsqueeze(1).sum(2).exp(), eight)
    yield f("rank 9 given", lambda x: (x + 1).sum((1, 2)).exp(), t("n", *(2,) * 8))
    yield f("seven dims, unfolded", lambda x: x.unfold(6, 2, 1), t("n", *(2,) * 6))


def _bounds() -> Iterator[Row]:
    yield f(
        "negative dims", lambda x: (x.sum(-1), x.transpose(-1, -2), x.unsqueeze(-1), x.softmax(-2), x.argmax(-1)), X
    )
    yield f("negative dims of cat", lambda x: (torch.cat([x, x], -1), torch.stack([x, x], -2), x.split(2, -2)), X)
    yield f("select from the end", lambda x: (x[:, -1], x[-1], x.select(-1, -2)), X)
    yield f("slice from the end", lambda x: (x[:, -3:-1], x[:, :-1], x[:, -100:2], x[..., -1:]), X)
    yield f("slice beyond", lambda x: (x[:, 1:100], x[:, -7:], x[:, 10:], x[:, 2:1]), X)
    yield f("slice with steps", lambda x: (x[:, ::3], x[:, 1::2], x[:, -3::2], x[..., :100:4]), X)
    yield f(
        "slice a free dim", lambda x: (x[1:], x[:-1], x[::2], x[-1:], x[:100], x[-100:], x[-3:-1], x[1:-1:2]), t("s", 3)
    )
    yield f("slice to a size", lambda x, y: (x[:, : y.shape[0]], x[:, y.shape[0] :]), t(2, 12), t("s"))
    yield f("slice beyond a free dim", lambda x: (x[:, 4:], x[:, :4], x[:, -4:]), t(2, "s"))
    yield f("narrow from the end", lambda x: x.narrow(1, -3, 2), X)
    yield f("assignment beyond", lambda x: torch.slice_scatter(x, x[:, 1:] * 2, 1, 1, 100), X)
    yield f("assignment to the end of a free dim", lambda x: torch.slice_scatter(x, x[:, -2:] * 2, 1, -2), t(2, "s"))
    yield f("flip of all", lambda x: x.flip((-1, 0)), X)
    yield f("permute from the end", lambda x: x.permute(-1, 0, -2), X)
    yield f("split with a rest", lambda x: x.split(3, 2), X)
    yield f("chunk a free dim", lambda x: x.chunk(2, 1), t(2, "s"))
    yield f("reshape with zero and rest", lambda x: (x.reshape(x.shape[0], -1), x.view(-1, 2, 2, 5)), X)


ROWS = (*_rank_0(), *_empty(), *_ones(), *_ranks(), *_bounds())
