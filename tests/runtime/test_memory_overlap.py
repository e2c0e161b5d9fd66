"""Tensors in one memory: found exactly, refused where one of them is written to, and no matter where none is."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pipeline
from pipeline.runtime.memory_overlap import overlaps

BYTES = torch.zeros(128, dtype=torch.uint8)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of 128 bytes: of any strides, sizes and offset, in one of three dtypes."""
    memory = BYTES.view(draw(st.sampled_from([torch.uint8, torch.float16, torch.float32])))
    dims = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3))
    reach = sum(max(size - 1, 0) * stride for size, stride in dims)
    offset = draw(st.integers(0, memory.numel() - reach - 1))
    return memory.as_strided([size for size, _ in dims], [stride for _, stride in dims], offset)


def places(tensor: torch.Tensor) -> set[int]:
    """The addresses of all bytes of a tensor."""
    elements = itertools.product(*map(range, tensor.shape))
    starts = [sum(i * s for i, s in zip(at, tensor.stride(), strict=True)) * tensor.itemsize for at in elements]
    return {tensor.data_ptr() + start + byte for start in starts for byte in range(tensor.itemsize)}


@given(views(), views())
def test_tensors_overlap_where_they_have_a_byte_in_common(one: torch.Tensor, other: torch.Tensor) -> None:
    assert overlaps(one, other) == bool(places(one) & places(other)) == overlaps(other, one)


def test_interleaved_slices_do_not_overlap() -> None:
    big = torch.zeros(512, 512, 4, 8)
    assert not overlaps(big[..., :4], big[..., 4:])
    assert not overlaps(big[:, ::2], big[:, 1::2])
    assert overlaps(big[..., :5], big[..., 4:])
    assert overlaps(big.transpose(0, 1), big)


class Adds(nn.Module):
    """Adds to its first input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[N, 4], [N, 4] -> [N, 4]"""
        x.add_(1)
        return x - y


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    """For tensors of two rows."""
    return pipeline.default()(Adds().eval(), (torch.zeros(2, 4), torch.zeros(2, 4)))


def test_an_input_that_is_written_to_lies_in_no_other(compiled: pipeline.Compiled) -> None:
    big = torch.zeros(3, 8)
    with pytest.raises(ValueError, match="inputs x and y lie in the same memory, and the program writes to x: "):
        compiled(big[:2, :4], big[1:, :4])
    with pytest.raises(ValueError, match="input x has elements in the same memory, and the program writes to x: "):
        compiled(big[:1, :4].expand(2, 4), torch.zeros(2, 4))
    assert not big.any()
    assert (compiled(big[:2, :4], big[:2, 4:]) == 1).all()
    assert torch.equal(big[:2, :4], torch.ones(2, 4)) and not big[:, 4:].any() and not big[2].any()


def test_inputs_that_are_only_read_may_lie_anywhere() -> None:
    big = torch.randn(3, 4)
    both = pipeline.default()(nn.Bilinear(4, 4, 2).eval(), (torch.zeros(2, 4), torch.zeros(2, 4)))
    torch.testing.assert_close(both(big[:2], big[1:]), both(big[:2].clone(), big[1:].clone()))
