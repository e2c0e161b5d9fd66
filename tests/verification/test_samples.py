"""Samples: sizes at the ends of ranges that relations allow, inputs that eager takes, the user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.verification.samples import create_samples, index_limits, sizes_to_try, split_call_inputs


class Tokens(nn.Module):
    """Looks identifiers up, at positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, 8), nn.Embedding(12, 8)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N, L] -> [N, L, 8]"""
        return (self.table(ids) + self.places(positions.view(-1))) * mask.unsqueeze(-1)


def tokens() -> pipeline.Program:
    def given(*shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> pipeline.Input:
        low, opt, high = shape
        return pipeline.Input(min_shape=low, opt_shape=opt, max_shape=high, dtype=dtype)

    shape = ((1, 2), (2, 5), (4, 12))
    places = ((2,), (5,), (12,))
    return pipeline.capture(Tokens().eval(), (given(*shape), given(*places), given(*shape, dtype=torch.bool)))


def test_integers_are_within_the_tables_that_they_index() -> None:
    program = tokens()
    limits = index_limits(program)
    assert sorted(limits.values()) == [12, 50]
    for sample in create_samples(program, program):
        ids, positions, mask = sample.leaves
        assert int(ids.max()) < 50 and int(positions.max()) < 12 and mask.dtype == torch.bool
    largest = create_samples(program, program)[-1].leaves[0]
    assert int(largest.max()) > 1


def test_a_described_number_is_random_too() -> None:
    program = pipeline.capture(nn.ReLU(), (pipeline.Input(shape=()),))
    [sample] = create_samples(program, program)
    assert sample.leaves[0].shape == () and sample.leaves[0].dtype == torch.float32


def test_samples_are_the_same_every_time() -> None:
    program = tokens()
    for a, b in zip(create_samples(program, program), create_samples(program, program), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.leaves, b.leaves, strict=True))


def test_the_smallest_optimal_and_largest_sizes_are_tried() -> None:
    program = tokens()
    found = create_samples(program, program)
    assert [s.name for s in found] == ["smallest", "optimal", "largest"]
    assert [tuple(s.leaves[0].shape) for s in found] == [(1, 2), (2, 5), (4, 12)]


class Related(nn.Module):
    """Takes multiples of four."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[4 * n], [m] with m > 2 * n -> a number"""
        torch._check(y.shape[0] > 2 * x.shape[0])
        return x.view(4, -1).sum() + y.sum()


def test_sizes_keep_to_relations() -> None:
    dims = ({0: Dim.DYNAMIC}, {0: Dim("m", min=1, max=40)})
    program = pipeline.capture(Related(), (torch.randn(8), torch.randn(20)), dynamic_shapes=dims)
    found = sizes_to_try(program)
    assert "optimal" in [name for name, _ in found]
    for _, sizes in found:
        assert all(relation.holds(sizes) for relation in program.shapes.relations)
    for sample in create_samples(program, program):
        x, y = sample.leaves
        assert x.shape[0] % 4 == 0 and y.shape[0] > 2 * x.shape[0]


def test_examples_are_used_and_lend_their_values_to_other_sizes() -> None:
    x = torch.tensor([[3.0, 5.0], [7.0, 11.0]])
    program = pipeline.capture(nn.ReLU(), (x,), dynamic_shapes=({0: Dim("n", min=1, max=9)},))
    smallest, optimal, largest = create_samples(program, program)
    assert torch.equal(optimal.leaves[0], x) and optimal.leaves[0] is not x
    assert set(largest.leaves[0].flatten().tolist()) == {3.0, 5.0, 7.0, 11.0}
    assert largest.others is not None and torch.equal(largest.others[0][:4], torch.cat([x, x]))
    assert smallest.leaves[0].shape == (1, 2)


def test_a_program_without_sizes_has_one_sample() -> None:
    program = pipeline.capture(nn.ReLU(), (torch.ones(2),))
    assert [s.name for s in create_samples(program, program)] == ["optimal"]


def test_the_users_own_inputs() -> None:
    program = pipeline.capture(nn.ReLU(), (torch.ones(2, 3),), dynamic_shapes=({0: Dim("n", min=1, max=9)},))
    with pytest.raises(TypeError, match="called with"):
        create_samples(program, program, [{"output": torch.ones(1, 3)}])
    found = create_samples(
        program, program, [(torch.ones(4, 3),), {"input": torch.ones(1, 3)}, ((torch.ones(5, 3),), {})]
    )
    assert [s.name for s in found] == ["inputs[0]", "inputs[1]", "inputs[2]"]
    assert dict(found[0].sizes) == {"input.shape[0]": 4}
    made = create_samples(program, program, lambda sizes: (torch.full((sizes["input.shape[0]"], 3), 2.0),))
    assert [tuple(s.leaves[0].shape) for s in made] == [(1, 3), (2, 3), (9, 3)]


@pytest.mark.parametrize(
    ("call", "want"), [((1, 2), ((1, 2), {})), ({"x": 1}, ((), {"x": 1})), (((1,), {"y": 2}), ((1,), {"y": 2}))]
)
def test_how_a_call_is_written(call: Any, want: Any) -> None:
    assert split_call_inputs(call) == want


def test_what_is_no_call() -> None:
    with pytest.raises(TypeError, match="each call must be a tuple of inputs, a dict"):
        split_call_inputs(torch.ones(2))
