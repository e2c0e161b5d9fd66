"""split_products: split the summed dim of a matmul with few rows, for which TensorRT leaves most of a GPU idle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import frozen

from pipeline.frozen import FrozenDict
from pipeline.improvements.rewriting import CallBuilder, Node, Rewriting, argument, aten, dtype_of, improvement, rank_of
from pipeline.quirks import is_avoided
from pipeline.shapes.environment import bounds, shape_of

HALVES = (torch.float16, torch.bfloat16)
FEW = 64
"""Only matmuls with at most this number of rows are split."""
COLUMNS = 128
"""The number of columns of a matmul's result that one multiprocessor computes."""
BLOCKS = 128
"""The number of thread blocks (columns times parts) that occupy a large GPU: an H200 has 132 multiprocessors."""
LONG, SHORTEST = 1024, 256
"""The minimum length of a sum for which splitting saves time, and the length of the shortest part that was measured."""
MOST, MOST_BESIDE_MANY = 8, 4
"""The maximum number of parts, and the maximum if a profile has many rows: 8 parts slow those by 10 %, 4 by 3.5 %."""


@improvement(after="select_parts")
def split_products(rewriting: Rewriting) -> None:
    """Split a half-precision matmul of 2 to 64 rows with a constant into a batched matmul over parts of the summed dim;
    their rounded results are added in float32.

    On TensorRT-RTX 1.4 one multiprocessor computes 128 columns of such a result: 16 of an H200's 132 compute 2,048
    columns, or 64 of them if the sum has 4 parts. A single row (GEMV) has other kernels, and many rows occupy the GPU
    anyway. Six layers of a Llama-like decoder took 0.99 ms for 8 rows, and 0.73, 0.61 and 0.59 ms in 2, 4 and 8 parts.
    """
    if not is_avoided("unsplit-sums") or rewriting.program.settings.use_fp32_acc:
        return
    for node in rewriting.nodes(aten.linear.default, aten.addmm.default, aten.mm.default, aten.matmul.default):
        product = _match_product(rewriting, node)
        if product is None:
            continue
        count, program = math.prod(shape_of(product.x.meta["val"])[:-1]), rewriting.program
        ranges = [bounds(count, {**program.shapes, **narrowed}) for narrowed in program.profiles or (FrozenDict(),)]
        parts = number_of_parts([rows.opt for rows in ranges], *product.sizes)
        if parts > 1:
            _replace_by_parts(rewriting.before(node), product, parts)


def number_of_parts(rows_per_profile: Sequence[int], summed: int, columns: int) -> int:
    """Return into how many parts (1, 2, 4 or 8) to split the summed dim of a matmul [rows, ``summed``] @ [``summed``,
    ``columns``], so that it occupies a GPU. ``rows_per_profile``: the rows that each profile is tuned for."""
    if not 2 <= min(rows_per_profile) <= FEW or summed < LONG or columns % 8:
        return 1
    parts = MOST if max(rows_per_profile) <= FEW else MOST_BESIDE_MANY
    blocks = math.ceil(columns / COLUMNS)
    while parts > 1 and (blocks * parts > BLOCKS or summed % (COLUMNS // 2 * parts) or summed // parts < SHORTEST):
        parts //= 2
    return parts


@frozen
class Product:
    """A matmul of ``x`` [..., K] by a constant [K, N], or [N, K] for a linear layer, plus an optional vector [N]."""

    x: Node
    weight: Node
    bias: Node | None
    is_linear: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """The sizes K and N of the constant matrix."""
        first, second = self.weight.meta["val"].shape
        return (second, first) if self.is_linear else (first, second)


def _match_product(rewriting: Rewriting, node: Node) -> Product | None:
    """Match a half-precision matmul ``node`` with a constant matrix that no other node reads; None for other nodes."""
    if node.target is aten.addmm.default:
        bias, x, weight = node.args[:3]
        plain = argument(node, "alpha") == argument(node, "beta") == 1
    else:
        x, weight = node.args[:2]
        bias, plain = argument(node, "bias") if node.target is aten.linear.default else None, True
    if not isinstance(x, Node) or not isinstance(weight, Node) or not rewriting.owns_constant(node, weight):
        return None
    plain = plain and (bias is None or (isinstance(bias, Node) and rank_of(bias) == 1 and rewriting.is_constant(bias)))
    halves = dtype_of(node) in HALVES and not rewriting.is_constant(x) and dtype_of(x) == dtype_of(weight)
    if not plain or not halves or rank_of(x) < 2 or rank_of(weight) != 2:
        return None
    return Product(x, weight, bias, node.target is aten.linear.default)  # type: ignore[arg-type]


def _replace_by_parts(create: CallBuilder, product: Product, parts: int) -> None:
    """Replace a matmul by ``parts`` matmuls of equal parts of the summed dim, if converters accept all new nodes. Their
    results are added pair by pair, since a reduction over more than four results would be a separate kernel."""
    inner, columns = product.sizes
    x, last = product.x, rank_of(product.x) - 1
    rows = create(aten.flatten.using_ints, x, 0, last - 1) if last > 1 else x
    sides = create(aten.transpose.int, create(aten.unflatten.int, rows, 1, [parts, inner // parts]), 0, 1)
    cut = create(aten.unflatten.int, product.weight, int(product.is_linear), [parts, inner // parts])
    matrices = create(aten.permute.default, cut, [1, 2, 0]) if product.is_linear else cut
    wide = create(aten._to_copy.default, create(aten.matmul.default, sides, matrices), dtype=torch.float32)
    terms = [create(aten.select.int, wide, 0, part) for part in range(parts)]
    while len(terms) > 1:
        terms = [create(aten.add.Tensor, *pair) for pair in zip(terms[::2], terms[1::2], strict=True)]
    [total] = terms
    if product.bias is not None:
        total = create(aten.add.Tensor, total, create.cast(product.bias, torch.float32))
    new = create.cast(total, dtype_of(create.node))
    if last > 1:
        new = create(aten.view.default, new, [*(create.size(x, dim) for dim in range(last)), columns])
    create.replace(new)
