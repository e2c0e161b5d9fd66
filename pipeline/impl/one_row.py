"""One row by a weight as sums over products, with the norm before it, or with what the result is added to.

TensorRT-RTX 1.4 computes such sums in the kernel that makes the row, a block for each column of the result, and reads
weights at 2.5 to 2.8 TB/s on an H100 (``benchmarks/results``, "Few rows"). Of weights that are constants it would keep
copies in float32, and for more rows it reads them once for each. A plan holds its kernels' source: every block computes
the row anew, and writes what another kernel reads of it. So what takes long is computed before, and what is kept is
computed behind a sum (docs/tensorrt.md, "Numbers").
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from pipeline.aten.kinds import COSTLY, is_cheap, moves
from pipeline.impl import base
from pipeline.impl.base import ITensor, Value
from pipeline.impl.blocks import block, fact
from pipeline.impl.elementwise import HALVES, binary, where
from pipeline.impl.normalization import root_mean
from pipeline.impl.reduce import reduce
from pipeline.impl.shape import bounds_of, concatenate, expression, product
from pipeline.impl.slice import narrow
from pipeline.network.net import Net
from pipeline.trt import CAPABILITIES, trt

WITHIN: Final = 8
"""Operators before a product that are looked at."""
GROUPS: Final = (128, 64, 32)
"""Sizes of the groups in which a row is computed apart."""
PAIRED: Final = 8192
"""From so many columns on a block has two: there are enough blocks all the same."""


@fact
def is_one_row(net: Net, x: Value, weight: Value) -> bool:
    """Whether a product is one row by a weight in halves, of sizes that are known, that is an input of the network."""
    if not CAPABILITIES.fast_sums or not isinstance(weight, trt.ITensor) or not weight.is_network_input:
        return False
    leading = base.known_sizes(net, x)[:-1]
    if not leading or None in leading or base.rank(weight) != 2 or min(base.dims(weight)) < 1:
        return False
    if base.dims(weight)[1] == 1:  # a sum of a single product
        return False
    if base.dtype_of(weight) not in HALVES:
        return False
    return bounds_of(net, expression(product(leading))) == (1, 1)


@block
def linear(net: Net, x: Value, weight: ITensor, bias: Value | None, column: Value | None = None) -> ITensor:
    """One row by a weight [columns, inner], and a bias; added to ``column`` [..., columns, 1], if given.

    Each is the sum, in float32, of products that are exact in float32. What it is added to is a term of the sum: added
    to the sum, it would be so in the next kernel, each block of which would write all of the result.
    """
    dtype, row = base.result_type(x, weight), base.tensor(net, x)
    row = _computed_before(net, row) if _is_costly(net) else row
    rank = base.rank(row)
    terms = base.elementwise(net, "PROD", _row(net, row), _columns(net, weight, rank))
    if column is not None:
        first = base.constant(net, np.arange(base.dims(row)[-1]) == 0, rank=rank + 1)
        terms = base.elementwise(net, "SUM", terms, where(net, first, column, 0.0, torch.float32))
    result = base.cast(net, _with_bias(net, _sum(net, terms), bias), dtype, bare=True)
    return base.kept_apart(net, result) if column is not None and _leaves(net, net.ctx.node) else result


@block
def normed_linear(net: Net, x: ITensor, gain: Value, weight: ITensor, bias: Value | None, eps: float) -> ITensor:
    """One row divided by the root of its mean square, times a gain, by a weight [columns, inner], and a bias.

    The squares are summed beside the products, in the same kernel: a norm of its own would take one of a single block.
    TensorRT has both in one kernel if they read the same, so zero times the weight is added to the squares. Weights are
    taken to be finite.
    """
    dtype, rank = base.dtype_of(x), base.rank(x)
    count, inner = base.dims(weight)
    row = _row(net, x)
    factor = base.tensor(net, gain, torch.float32, rank=rank + 1)
    scaled = base.elementwise(net, "PROD", row, factor)
    parts = 2 if count % 2 == 0 and count >= PAIRED else 1
    each = count // parts
    columns = [_columns(net, narrow(net, weight, 0, part * each, each), rank) for part in range(parts)]
    products = [_sum(net, base.elementwise(net, "PROD", scaled, part)) for part in columns]
    nothing = base.elementwise(net, "PROD", columns[0], base.constant(net, 0.0, rank=rank + 1))
    squares = _sum(net, base.elementwise(net, "SUM", base.elementwise(net, "PROD", row, row), nothing))
    quotient = base.unary(net, "RECIP", root_mean(net, squares, inner, eps))
    results = [base.elementwise(net, "PROD", product, quotient) for product in products]
    return base.cast(net, _with_bias(net, concatenate(net, results, -1, torch.float32), bias), dtype, bare=True)


def _row(net: Net, x: ITensor) -> ITensor:
    """[..., inner] as [..., 1, inner] in float32."""
    return base.unsqueeze(net, base.cast(net, x, torch.float32), [base.rank(x) - 1])


def _columns(net: Net, weight: ITensor, rank: int) -> ITensor:
    """[columns, inner] in float32, with a dim more than the row has."""
    return base.tensor(net, weight, torch.float32, rank=rank + 1)


def _sum(net: Net, terms: ITensor) -> ITensor:
    return reduce(net, "SUM", terms, [-1], False)


def _with_bias(net: Net, result: ITensor, bias: Value | None) -> ITensor:
    return result if bias is None else binary(net, "SUM", result, bias, torch.float32)


@fact
def _leaves(net: Net, node: torch.fx.Node | None) -> bool:
    """Whether what a node gives, or a view of it, leaves the engine. TensorRT would round it in the kernel that reads
    it next, each block of which would write all of it; taking the maximum of it and itself prevents that."""
    waiting = list(node.users) if node is not None else []
    while waiting:
        user = waiting.pop()
        if user.name not in net.ctx.inside:
            return True
        waiting += user.users if moves(user) else ()
    return False


@fact
def _is_costly(net: Net) -> bool:
    """Whether elementwise operators that take long make the row of the product at hand."""
    node = net.ctx.node
    return node is not None and bool(node.args) and _is_costly_to_make(node.args[0], net.ctx.inside)


def _is_costly_to_make(node: object, inside: frozenset[str], within: int = WITHIN) -> bool:
    if not isinstance(node, torch.fx.Node) or not within or not is_cheap(node) or (inside and node.name not in inside):
        return False
    made = (_is_costly_to_make(given, inside, within - 1) for given in node.all_input_nodes)
    return node.target in COSTLY or any(made)


def _computed_before(net: Net, row: ITensor) -> ITensor:
    """The row, computed in a kernel before the product's: that of the least of each group of elements, below which no
    element is. In the product's kernel each column would compute it again."""
    inner = base.dims(row)[-1]
    size = next((size for size in GROUPS if inner % size == 0), None)
    if size is None:
        return row
    groups = base.reshape(net, row, [inner // size, size])
    least = reduce(net, "MIN", groups, [-1], True)
    below = base.elementwise(net, "LESS", groups, least)
    same = net.add("select", below, least, groups).get_output(0)
    return base.reshape(net, same, base.known_sizes(net, row))
