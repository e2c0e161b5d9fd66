"""Triton kernels for the decoder steps of language models: matmuls of few rows, attention with one query per head."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def one_row(x, weight, bias, out, n, k, BIAS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr):
    """Write ``x @ weight.T + bias`` of one row: n sums of k products, in float32; COLUMNS sums per Triton program."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n
    rows = weight + column[:, None].to(tl.int64) * k
    partial = tl.zeros((COLUMNS, TERMS), tl.float32)
    for start in range(0, k, TERMS):
        term = start + tl.arange(0, TERMS)
        read = term < k
        a = tl.load(x + term, mask=read, other=0.0).to(tl.float32)
        b = tl.load(
            rows + term[None, :], mask=inside[:, None] & read[None, :], other=0.0, eviction_policy="evict_first"
        )
        partial += b.to(tl.float32) * a[None, :]
    total = tl.sum(partial, 1)
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def few_rows(
    x, weight, bias, out, m, n, k, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr
):
    """Write ``x @ weight.T + bias`` of m <= ROWS rows: n sums of k products each, in float32; COLUMNS per program."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    inside, used = column < n, row < m
    rows = weight + column[:, None].to(tl.int64) * k
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(0, k, TERMS):
        term = start + tl.arange(0, TERMS)
        read = term < k
        a = tl.load(x + row[None, :] * k + term[:, None], mask=used[None, :] & read[:, None], other=0.0)
        b = tl.load(
            rows + term[None, :], mask=inside[:, None] & read[None, :], other=0.0, eviction_policy="evict_first"
        )
        total = tl.dot(b, a, total)
    if BIAS:
        total += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[:, None]
    places = out + row[None, :] * n + column[:, None]
    tl.store(places, total.to(out.dtype.element_ty), mask=used[None, :] & inside[:, None])


@triton.jit
def attend(
    q, k, v, mask, sums, stats, length, heads, scale,
    qb, qh, kb, kh, kl, vb, vh, vl, mb, mh, ml,
    KIND: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Attend from the queries of a group of heads (GQA) to every ``PARTS``-th block of ``KEYS`` keys.

    Results: ``sums`` [batch, heads, PARTS, ROWS, WIDTH], weighted sums of values; ``stats`` [batch, heads, PARTS, 2,
    ROWS], the largest scores and the sums of exponentials. ``KIND`` of the mask: 0 none, 1 boolean, 2 additive. Masked
    blocks are not read, so that the time grows only with the filled part of a KV cache. ``qb`` … ``ml``: the strides of
    q, k, v and mask, by batch (b), head (h) and key (l).
    """
    pair, part = tl.program_id(0), tl.program_id(1)
    batch, head = (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)
    row, width = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    query = tl.load(
        q + batch * qb + (head * GROUP + row[:, None]) * qh + width[None, :], mask=(row < GROUP)[:, None], other=0.0
    )
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(part * KEYS, length, PARTS * KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < length
        added = tl.where(inside, 0.0, float("-inf"))
        place = mask + batch * mb + head * GROUP * mh + key.to(tl.int64) * ml
        if KIND == 1:
            added = tl.where(tl.load(place, mask=inside, other=0) != 0, 0.0, float("-inf"))
        if KIND == 2:
            added = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
        if tl.max(added, 0) > float("-inf"):
            keys = k + batch * kb + head * kh + key[None, :].to(tl.int64) * kl + width[:, None]
            values = v + batch * vb + head * vh + key[:, None].to(tl.int64) * vl + width[None, :]
            scores = tl.dot(query, tl.load(keys, mask=inside[None, :], other=0.0)) * scale + added[None, :]
            largest = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp(scores - largest[:, None])
            before = tl.exp(top - largest)
            value = tl.load(values, mask=inside[:, None], other=0.0)
            total = total * before + tl.sum(weights, 1)
            summed = summed * before[:, None] + tl.dot(weights.to(value.dtype), value)
            top = largest
    base = pair * PARTS + part
    tl.store(sums + (base * ROWS + row[:, None]) * WIDTH + width[None, :], summed, mask=(row < GROUP)[:, None])
    tl.store(stats + base * 2 * ROWS + row, top)
    tl.store(stats + (base * 2 + 1) * ROWS + row, total)


@triton.jit
def combine_parts(
    sums, stats, out, GROUP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Write the attention of a query, combined from the results of `attend`; 0 if all keys are masked."""
    pair, row = tl.program_id(0), tl.program_id(1)
    part, width = tl.arange(0, PARTS), tl.arange(0, WIDTH)
    base = pair * PARTS + part
    top = tl.load(stats + base * 2 * ROWS + row)
    total = tl.load(stats + (base * 2 + 1) * ROWS + row)
    factor = tl.where(total > 0, tl.exp(top - tl.max(top, 0)), 0.0)
    summed = tl.load(sums + (base[:, None] * ROWS + row) * WIDTH + width[None, :])
    all_weights = tl.sum(total * factor, 0)
    result = tl.sum(summed * factor[:, None], 0) / tl.where(all_weights > 0, all_weights, 1.0)
    tl.store(out + (pair * GROUP + row) * WIDTH + width, result.to(out.dtype.element_ty))
