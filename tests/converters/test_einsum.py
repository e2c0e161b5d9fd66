"""Einsum is one product of matrices, of no more dims than it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.converters.matmul import einsum

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "f": 1}


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Of two operands, each letter at most once in one; sometimes without an arrow, with ``...`` or with spaces."""
    letters = st.permutations(list(SIZES)).flatmap(lambda p: st.integers(0, 4).map(lambda n: "".join(p[:n])))
    left, right = draw(letters), draw(letters)
    common = sorted({*left, *right})
    out = "".join(draw(st.permutations(common))[: draw(st.integers(0, len(common)))])
    shapes = [tuple(SIZES[x] for x in operand) for operand in (left, right)]
    if draw(st.booleans()) and max(len(left), len(right)) < 4:
        more = draw(st.sampled_from([((7,), (7,)), ((7, 8), (8,)), ((), (7,))]))
        at = draw(st.integers(0, len(left)))
        left, right, out = f"{left[:at]}...{left[at:]}", f"{right}...", f"...{out}"
        shapes = [(*shapes[0][:at], *more[0], *shapes[0][at:]), (*shapes[1], *more[1])]
    arrow = draw(st.sampled_from(["->", " -> "]))
    text = f"{left},{right}" + (f"{arrow}{out}" if draw(st.booleans()) else "")
    return text, shapes


@given(equations(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_it_is_what_torch_gives(equation: tuple[str, list[tuple[int, ...]]], random: Any) -> None:
    text, shapes = equation
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    torch.testing.assert_close(einsum(text, values), torch.einsum(text, *values))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bii->bi", [(2, 3, 3)]),
        ("bi,bj,ij->b", [(2, 3), (2, 4), (3, 4)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
    ],
)
def test_the_rest_is_left_to_torch(equation: str, shapes: list[tuple[int, ...]]) -> None:
    assert einsum(equation, [torch.ones(shape) for shape in shapes]) is NotImplemented


class Sum(nn.Module):
    """An equation."""

    def __init__(self, equation: str) -> None:
        super().__init__()
        self.equation = equation

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        """Whatever the equation says."""
        return torch.einsum(self.equation, *operands)


@pytest.mark.parametrize("equation", ["bqhd,bkhd->bhqk", "bhqd,bhkd->bhqk", "nchw,cd->ndhw", "bqd,kd->bqk"])
def test_no_layer_has_more_dims_than_the_equation(equation: str) -> None:
    operands = equation.partition("->")[0].split(",")
    sizes = dict(zip(sorted({*"".join(operands)}), range(2, 20), strict=False))
    values = [torch.randn([sizes[x] for x in operand]) for operand in operands]
    n = Dim("n", min=1, max=8)
    dims = {i: {0: n} for i in range(2) if operands[i][0] in "bn"}
    compile = pipeline.default(require_full_compilation=True)
    compiled = compile(
        Sum(equation).eval(), args=tuple(values), dynamic_shapes={"operands": tuple(dims.get(i) for i in range(2))}
    )
    (network,) = compiled.networks
    assert network.kinds()["MATRIX_MULTIPLY"] == 1
    ranks = [len(tensor.shape) for layer in network.layers for tensor in layer.outputs]
    assert max(ranks) <= max(map(len, [*operands, equation.partition("->")[2]]))
    torch.testing.assert_close(compiled.module(executor="reference")(*values), torch.einsum(equation, *values))
