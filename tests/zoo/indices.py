"""Indexing, scattering, ordering, scanning and searching."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F  # noqa: N812

from pipeline.program import Range
from tests.zoo.rows import RANGES, Row, b, f, i, t

X, AT = t("n", 4, 5), i("n", 3, 5, below=4)
FROM_TWO = {**RANGES, "n": Range(2, 3, 5)}
"""Where torch.export tells a batch of one from others: a value of size 1 is broadcast."""
MANY = "the number of elements is data-dependent"


def _scatters() -> Iterator[Row]:
    yield f(
        "scatter", lambda x, at, v: x.scatter(1, at, v), X, i("n", 4, 5, values="zeros"), t("n", 4, 5, values="ones")
    )
    yield f("scatter of a value", lambda x, at: x.scatter(1, at, 2.5), X, AT)
    yield f("scatter_add", lambda x, at, v: x.scatter_add(1, at, v), X, AT, t("n", 3, 5))
    yield f(
        "scatter_add of rows",
        lambda x, at, v: torch.zeros(6, 5).index_add(0, at, x),
        t("n", 5),
        i("n", below=6),
        t("n", 5),
    )
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for own in (True, False):
            yield f(
                f"scatter_reduce {reduce} include_self={own}",
                lambda x, at, v, r=reduce, s=own: x.scatter_reduce(1, at, v, r, include_self=s),
                *(X, AT, t("n", 3, 5)),
            )
            if reduce != "sum":
                yield f(
                    f"index_reduce {reduce} include_self={own}",
                    lambda x, at, v, r=reduce, s=own: x.index_reduce(1, at, v, r, include_self=s),
                    *(X, i(3, below=4), t("n", 3, 5)),
                )
    yield f("index_add", lambda x, at, v: x.index_add(1, at, v, alpha=2), X, i(3, below=4), t("n", 3, 5))
    yield f(
        "scatter with multiply", lambda x, at, v: torch.scatter(x, 1, at, v, reduce="multiply"), X, AT, t("n", 3, 5)
    )
    yield f("index_copy", lambda x, v: x.index_copy(1, torch.tensor([2, 0]), v), X, t("n", 2, 5))
    yield f("index_fill", lambda x, at: x.index_fill(1, at, 3.0), X, i(2, below=4))
    yield f("masked_scatter", lambda x, mask, v: x.masked_scatter(mask, v), X, b("n", 4, 5), t("n", 4, 5))
    yield f("masked_fill", lambda x, mask: x.masked_fill(mask, float("-inf")), X, b(4, 1))
    yield f("take_along_dim by indices", lambda x, at: torch.take_along_dim(x, at, 1), t(2, 4, 5), i(2, 3, 5, below=4))
    yield f("select_scatter", lambda x, v: x.select_scatter(v, 1, -2), X, t("n", 5))
    yield f("slice_scatter", lambda x, v: x.slice_scatter(v, 1, 1, -1, 2), X, t("n", 1, 5))
    yield f("diagonal_scatter", lambda x, v: x.diagonal_scatter(v, 1, 1, 2), X, t("n", 4))


def _assigned(x: torch.Tensor, value: torch.Tensor | float, *index: object) -> torch.Tensor:
    y = x.clone()
    y[tuple(index)] = value
    return y


def _indexings() -> Iterator[Row]:
    one, two = i(3, below=4), i(2, 1, below=5)
    yield f("x[:, i]", lambda x, a: x[:, a], X, one)
    yield f("x[i]", lambda x, a: x[a], X, i(2, 3, below=1))
    yield f("x[:, i, j] broadcast", lambda x, a, b: x[:, a, b], X, one, two)
    yield f("x[:, i, None, j]", lambda x, a, b: x[:, a, None, b], X, one, i(3, below=5))
    yield f("x[i, :, j]", lambda x, a, b: x[a, :, b], t(3, 4, "s"), i(2, below=3), i(2, below=2))
    yield f("x[..., i]", lambda x, a: x[..., a], X, i(2, 3, below=5))
    yield f("x[:, 1:, i]", lambda x, a: x[:, 1:, a], X, two)
    yield f("x[:, -1, None, ::2]", lambda x: x[:, -1, None, ::2], X)
    yield f("x[:, i of ints32]", lambda x, a: x[:, a], X, i(3, below=4, dtype=torch.int32))
    yield f("x[:, list]", lambda x: x[:, [3, 0, -1]], X)
    yield f("x[mask]", lambda x, mask: x[mask], X, b("n", 4, 5))
    yield f("x[:, mask]", lambda x, mask: x[:, mask], X, b(4))
    yield f("x[arange, argmax]", lambda x: x[torch.arange(x.shape[0]), x.argmax(1)], t("n", 5))
    yield f("x[last of each]", lambda x, at: x[torch.arange(x.shape[0]), at], X, i("n", below=4))
    yield f(
        "x[:, i] = v",
        lambda x, a, v: _assigned(x, v, slice(None), a),
        X,
        i(2, values=("given", [3, 1])),
        t("n", 2, 5),
        ranges=FROM_TWO,
    )
    yield f("x[:, i, j] = number", lambda x, a, b: _assigned(x, 2.0, slice(None), a, b), X, one, two)
    yield f("x[mask] = number", lambda x, mask: _assigned(x, 2.0, mask), X, b("n", 4, 5))
    yield f(
        "x[:, mask] = v", lambda x, mask, v: _assigned(x, v, slice(None), mask), X, b(4), t("n", 1, 5), ranges=FROM_TWO
    )
    yield f("x[x > 0] = 0", lambda x: _assigned(x, 0.0, x > 0), X)
    yield f(
        "x[:, 1:3, ::2] = v", lambda x, v: _assigned(x, v, slice(None), slice(1, 3), slice(None, None, 2)), X, t(2, 3)
    )
    yield f("x[:, -1] = v", lambda x, v: _assigned(x, v, slice(None), -1), X, t("n", 5), ranges=FROM_TWO)
    yield f(
        "x[..., i, None] = v",
        lambda x, a, v: _assigned(x, v, ..., a, None),
        X,
        i(2, values=("given", [3, 1])),
        t("n", 4, 2, 1),
        ranges=FROM_TWO,
    )
    yield f(
        "index_put accumulate",
        lambda x, a, v: x.index_put((torch.arange(x.shape[0])[:, None], a), v, accumulate=True),
        X,
        i("n", 3, below=4),
        t("n", 3, 5),
    )
    yield f(
        "index_put accumulate, one dim",
        lambda x, a, v: x.index_put((a,), v, accumulate=True),
        t(4, 5),
        i("n", below=4),
        t("n", 5),
    )
    yield f(
        "index_put with None",
        lambda x, a, v: torch.ops.aten.index_put(x, [None, None, a], v),
        X,
        i(2, values=("given", [4, 1])),
        t(4, 2),
    )
    yield f("gather", lambda x, at: x.gather(1, at), X, AT)
    yield f("gather shorter", lambda x, at: x.gather(2, at), X, i("n", 2, 3, below=5))
    yield f("index_select", lambda x, at: x.index_select(1, at), X, i("s", below=4))
    yield f("take", lambda x, at: x.take(at), X, i(3, 2, below=20))
    yield f("take_along_dim", lambda x: x.take_along_dim(x.argsort(2), 2), t(2, 4, 5))
    yield f("embedding", lambda at, w: F.embedding(at, w, padding_idx=0), i("n", "s", below=6), t(6, 3))
    for mode in ("sum", "mean", "max"):
        yield f(
            f"embedding_bag {mode}", lambda at, w, m=mode: F.embedding_bag(at, w, mode=m), i("n", 4, below=6), t(6, 3)
        )
        yield f(
            f"embedding_bag {mode} by offsets",
            lambda at, w, m=mode: F.embedding_bag(at, w, torch.tensor([0, 2, 2]), mode=m),
            i(5, below=6),
            t(6, 3),
        )
    yield f(
        "embedding_bag weighted",
        lambda at, w, v: F.embedding_bag(at, w, mode="sum", per_sample_weights=v),
        i("n", 4, below=6),
        t(6, 3),
        t("n", 4),
    )
    yield f("one_hot", lambda at: F.one_hot(at, 6), i("n", 3, below=6))


def _orders() -> Iterator[Row]:
    ties = t("n", 7, values="small")
    for descending in (False, True):
        yield f(f"sort descending={descending}", lambda x, d=descending: x.sort(1, d), t("n", 7, values="distinct"))
        yield f(
            f"sort stable descending={descending}",
            lambda x, d=descending: torch.sort(x, dim=1, descending=d, stable=True),
            ties,
        )
        yield f(
            f"argsort stable descending={descending}",
            lambda x, d=descending: torch.argsort(x, dim=1, descending=d, stable=True),
            ties,
        )
        yield f(f"topk largest={descending}", lambda x, d=descending: x.topk(3, 1, d), t("n", 7, values="distinct"))
    yield f("sort of ints", lambda x: x.sort(dim=-1, stable=True), i("n", 7))
    yield f("sort of a free dim", lambda x: x.sort(dim=1, stable=True), t(2, "s"))
    yield f("msort", torch.msort, t("s", 3, values="distinct"))
    yield f("topk of the first dim", lambda x: x.topk(2, 0), t("s", 3, values="distinct"))
    yield f("topk without order", lambda x: x.topk(3, sorted=False).values.sort().values, t("n", 7))
    yield f("topk of all", lambda x: x.topk(x.shape[1], 1), t(2, "s", values="distinct"))
    yield f("kthvalue", lambda x: x.kthvalue(3, 1), t("n", 7, values="distinct"))
    yield f("median", lambda x: x.median(1), t("n", 7, values="distinct"))
    yield f("median of all", lambda x: x.median(), t("n", 7, values="distinct"))
    yield f("nanmedian", lambda x: x.nanmedian(1).values, t("n", 7, values="special"))
    yield f("quantile", lambda x: x.quantile(0.3, 1), t("n", 7))
    yield f("quantiles", lambda x, q: x.quantile(q, 1), t("n", 7), t(2, values=("given", [0.1, 0.8])))
    yield f("mode", lambda x: x.mode(1).values, i("n", 7, below=3))
    yield f("max with indices", lambda x: x.max(1), t("n", 7, values="distinct"))
    yield f("argmin keepdim", lambda x: x.argmin(1, keepdim=True), t("n", 7, values="distinct"))
    yield f("argmax of all", lambda x: x.argmax(), t("n", 7, values="distinct"))
    yield f("aminmax", lambda x: torch.aminmax(x, dim=1), t("n", 7))


def _scans() -> Iterator[Row]:
    for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
        yield f(name, lambda x, n=name: getattr(torch, n)(x, 1), t("n", 7))
        yield f(f"{name} of a free dim", lambda x, n=name: getattr(torch, n)(x, 1), t(2, "s"))
        if name != "logcumsumexp":
            yield f(f"{name} of ints", lambda x, n=name: getattr(torch, n)(x, 1), i("n", 7, values="small"))
    yield f("diff", lambda x: x.diff(n=2), t("n", 7))
    yield f("cumulative_trapezoid", lambda x: torch.cumulative_trapezoid(x, dim=1), t("n", 7))


def _searches() -> Iterator[Row]:
    ascending = t(6, values=("given", [-2.0, -1.0, 0.0, 0.0, 1.0, 2.0]))
    for right in (False, True):
        yield f(
            f"searchsorted right={right}",
            lambda s, x, r=right: torch.searchsorted(s, x, right=r),
            ascending,
            t("n", 4, values="small"),
        )
        yield f(
            f"bucketize right={right}",
            lambda s, x, r=right: torch.bucketize(x, s, right=r),
            ascending,
            t("n", 4, values="small"),
        )
    yield f("searchsorted of rows", lambda s, x: torch.searchsorted(s.sort(1).values, x), t("n", 6), t("n", 4))
    yield f(
        "searchsorted with sorter",
        lambda s, x: torch.searchsorted(s, x, sorter=s.argsort()),
        t(6, values="distinct"),
        t("n", 4),
    )
    yield f(
        "searchsorted out_int32",
        lambda s, x: torch.searchsorted(s, x, out_int32=True, side="right"),
        ascending,
        t("n", 4),
    )
    yield f("searchsorted of a number", lambda s: torch.searchsorted(s, 0.5), ascending)
    yield f("isin", lambda x, y: torch.isin(x, y), i("n", 4), i(3))
    yield f("bincount", lambda x: torch.bincount(x, minlength=8), i("s", below=6))
    yield f("bincount weighted", lambda x, w: torch.bincount(x, w, minlength=8), i("s", below=6), t("s"))
    yield f("bincount of unknown length", lambda x: torch.bincount(x), i("s", below=6))
    yield f("histc", lambda x: x.histc(5, -2, 2), t("n", 4))
    yield f("histc of its own range", lambda x: x.histc(5), t("n", 4))
    yield f("unique", lambda x: x.unique(), i("n", 4))
    yield f("unique with inverse", lambda x: x.unique(return_inverse=True, return_counts=True), i("n", 4))
    yield f("unique of rows", lambda x: x.unique(dim=0), i("n", 2))
    yield f("unique_consecutive", lambda x: x.unique_consecutive(), i("s", below=2))
    yield f("nonzero", lambda x: x.nonzero(), i("n", 4, below=2))
    yield f("nonzero as tuple", lambda x: x.nonzero(as_tuple=True), i("n", 4, below=2))
    yield f("argwhere", lambda x: torch.argwhere(x > 0), t("n", 4))
    yield f("masked_select", lambda x: x.masked_select(x > 0), t("n", 4))
    yield f("count_nonzero", lambda x: x.count_nonzero(1), i("n", 4, below=2))
    yield f("repeat_interleave", lambda x: x.repeat_interleave(3, 1), X)
    yield f("repeat_interleave of a free dim", lambda x: x.repeat_interleave(2, 0), X)
    yield f("repeat_interleave flat", lambda x: x.repeat_interleave(2), X)
    yield f("repeat_interleave by a tensor", lambda x, c: x.repeat_interleave(c, 1), X, i(4, below=3))
    yield f(
        "repeat_interleave of known size",
        lambda x, c: x.repeat_interleave(c, 1, output_size=6),
        X,
        i(4, values=("given", [1, 2, 0, 3])),
    )
    yield f("repeat_interleave by constants", lambda x: x.repeat_interleave(torch.tensor([1, 2, 0, 3]), 1), X)


ROWS = (*_scatters(), *_indexings(), *_orders(), *_scans(), *_searches())
