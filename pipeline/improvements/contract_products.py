"""contract_products: replace a large broadcast multiplication by a matmul if a sum is its only reader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Final

import torch
from torch import Tensor

from pipeline.aten.types import Argument
from pipeline.converters.matmul import einsum
from pipeline.improvements.rewriting import FLOATS, Node, Rewriting, argument, aten, dtype_of, improvement, rank_of
from pipeline.shapes.environment import shape_of

LARGE: Final = 1 << 20
"""The minimum number of elements of a product: for fewer, permuting the factors costs what the matmul saves."""

TIMES: Final = 4
"""The minimum ratio of a product's elements to the elements of its two factors and of the sum together."""


@improvement(after="split_doubles")
def contract_products(rewriting: Rewriting) -> None:
    """Replace ``(a[:, :, None] * b[None]).sum(1)`` by ``a @ b``, for any expanded and summed dims.

    Without the pass, TensorRT multiplies all pairs of elements. A layer of Mamba-2 1.3B in transformers 5.17 multiplies
    1.9 billion pairs for 512 tokens, from tensors with at most 8 million elements. Like every float32 matmul, the new
    matmul rounds its operands to TF32 on GPUs that do so.
    """
    for node in rewriting.nodes(aten.sum.dim_IntList):
        product = node.args[0]
        if isinstance(product, Node) and product.target is aten.mul.Tensor and dtype_of(product) in FLOATS:
            _replace_sum_of_product(rewriting, node, product)


def contract_by_matmul(a: Tensor, b: Tensor, summed_dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> Tensor:
    """Return ``(a * b).sum(summed_dims, keepdim)``, as a matmul over the summed dims that both factors have."""
    rank = max(a.dim(), b.dim())
    left, right = (_einsum_letters(x.shape, rank) for x in (a, b))
    kept = [letter for i, letter in enumerate(ascii_letters[:rank]) if i not in summed_dims]
    out = "".join(letter for letter in kept if letter in left + right)
    a, b = (x.to(dtype).squeeze([i for i, size in enumerate(x.shape) if _is_size_one(size)]) for x in (a, b))
    result: Tensor = einsum(f"{left},{right}->{out}", [a, b])
    for i, letter in enumerate(ascii_letters[:rank] if keepdim else kept):
        result = result if letter in out else result.unsqueeze(i)
    return result


def _replace_sum_of_product(rewriting: Rewriting, sum_node: Node, product: Node) -> None:
    rank = rank_of(product)
    a, b = product.args
    if not (isinstance(a, Node) and isinstance(b, Node)) or dtype_of(sum_node) != dtype_of(product):
        return
    a = _skip_expansion(a, b)
    b = _skip_expansion(b, a)
    elements = (math.prod(shape_of(x.meta["val"])) for x in (product, a, b, sum_node))
    most, *others = (rewriting.program.shapes.bounds(count).opt for count in elements)
    both = {*_einsum_letters(a.meta["val"].shape, rank)} & {*_einsum_letters(b.meta["val"].shape, rank)}
    if most < max(LARGE, TIMES * sum(others)):
        return
    summed = [dim % rank for dim in argument(sum_node, "dim") or range(rank)]
    if both.isdisjoint(ascii_letters[dim] for dim in summed):
        return
    create = rewriting.before(sum_node)
    new = create.add_traced(contract_by_matmul, a, b, summed, argument(sum_node, "keepdim"), dtype_of(product))
    if new is not None:
        create.replace(new)


def _einsum_letters(shape: Sequence[Argument], rank: int) -> str:
    """Return an einsum letter for each dim of a tensor whose size is not 1; dims are aligned from the last."""
    places = ascii_letters[rank - len(shape) : rank]
    return "".join(letter for letter, size in zip(places, shape, strict=True) if not _is_size_one(size))


def _is_size_one(size: Argument) -> bool:
    return isinstance(size, int) and size == 1


def _skip_expansion(factor: Node, other_factor: Node) -> Node:
    """Return the input of ``factor`` if ``factor`` is an expand that a multiplication by ``other_factor`` makes
    redundant, since broadcasting expands the input to the same sizes; else return ``factor``."""
    if factor.target is not aten.expand.default or not isinstance(source := factor.args[0], Node):
        return factor
    theirs = shape_of(other_factor.meta["val"])
    given, wanted = (shape_of(node.meta["val"]) for node in (source, factor))
    given = (1,) * (len(wanted) - len(given)) + given
    theirs = (1,) * (len(wanted) - len(theirs)) + theirs
    spread = all(a == b or b == c for a, b, c in zip(given, wanted, theirs[-len(wanted) :], strict=True))
    return source if spread else factor
