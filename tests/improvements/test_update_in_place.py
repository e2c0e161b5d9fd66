"""Buffers that programs write rows to are updated where they lie: what is seen as such a write, and what is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import pipeline
from pipeline.aten.kv_cache_ops import CACHE_UPDATE, CACHE_WRITE, cache_update
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(not CAPABILITIES.kv_cache_update, reason="this TensorRT has no cache update")

LENGTH = Dim("length", min=1, max=8)
POSITION = Dim("position", min=0, max=13)
BATCH = Dim("batch", min=1, max=2)
X = torch.arange(192.0).reshape(2, 4, 3, 8) / 100
T = torch.tensor

Write = Callable[[torch.Tensor, torch.Tensor, Any], None]


class Cache(torch.nn.Module):
    """A buffer, a write to it, and something that reads it."""

    def __init__(
        self, write: Write, shape: tuple[int, ...] = (2, 4, 16, 8), dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, x: torch.Tensor, position: Any) -> torch.Tensor:
        assert isinstance(self.cache, torch.Tensor)
        self.write(self.cache, x, position)
        return self.cache * 2


def index_copy(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    cache.index_copy_(2, torch.arange(x.shape[2]) + position, x)


def slice_of_ints(cache: torch.Tensor, x: torch.Tensor, position: int) -> None:
    cache[:, :, position : position + x.shape[2]] = x


def narrowed(cache: torch.Tensor, x: torch.Tensor, position: int) -> None:
    cache.narrow(2, position, x.shape[2]).copy_(x)


def read_position(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    start = position.item()
    torch._check(start >= 0)
    torch._check(start < 10)
    cache[:, :, start : start + x.shape[2]] = x


def of_each_batch(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    rows = position[:, None] + torch.arange(x.shape[2])
    cache[torch.arange(2)[:, None], :, rows] = x.transpose(1, 2)


def one_of_each_batch(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    cache[torch.arange(2), :, position] = x[:, :, 0]


def rows_first(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    cache.index_copy_(0, position + torch.arange(3), x[0, 0].to(cache.dtype))


def one_number(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
    cache[position.reshape(1)] = x[0, 0, 0, 0]


CASES = {
    "index_copy": (index_copy, (2, 4, 16, 8), T(3), T(13), ({2: LENGTH}, {})),
    "slice": (slice_of_ints, (2, 4, 16, 8), 5, 13, ({2: LENGTH}, POSITION)),
    "narrow": (narrowed, (2, 4, 16, 8), 5, 13, (None, POSITION)),
    "item": (read_position, (2, 4, 16, 8), T(3), T(9), ({2: LENGTH}, {})),
    "of each batch": (of_each_batch, (2, 4, 16, 8), T([3, 4]), T([13, 0]), ({2: LENGTH}, {})),
    "one of each batch": (one_of_each_batch, (2, 4, 16, 8), T([3, 4]), T([-1, 2]), None),
    "rows first": (rows_first, (16, 8), T(3), T(13), None),
    "one number": (one_number, (16,), T(3), T(-1), None),
}


@pytest.mark.parametrize("case", CASES)
def test_writes_of_consecutive_rows_are_updates_in_place(case: str) -> None:
    write, shape, first, second, dims = CASES[case]
    model = Cache(write, shape).eval()
    compiled = pipeline.default(require_full_compilation=True)(
        copy.deepcopy(model), args=(X, first), dynamic_shapes=dims
    )
    kinds = [layer.kind for network in compiled.networks for layer in network.layers]
    assert "KV_CACHE_UPDATE" in kinds and "SCATTER" not in kinds
    module = compiled.module("reference")
    for position in (first, second):
        torch.testing.assert_close(module(X, position), model(X, position))
        torch.testing.assert_close(module.state_dict()["cache"], model.cache)


def test_first_batches_of_a_buffer_are_updated_alone() -> None:
    def write(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
        index_copy(cache[: x.shape[0]], x, position)

    class First(Cache):
        def forward(self, x: torch.Tensor, position: Any) -> torch.Tensor:
            part = self.cache[: x.shape[0]]  # type: ignore[index]
            index_copy(part, x, position)
            return part * 2

    model = First(write).eval()
    compiled = pipeline.default()(copy.deepcopy(model), args=(X, T(3)), dynamic_shapes=({0: BATCH, 2: LENGTH}, {}))
    assert "KV_CACHE_UPDATE" in compiled.networks[0].kinds()
    module = compiled.module("reference")
    for x, position in ((X, T(3)), (X[1:], T(6)), (X[:1, :, :1], T(15))):
        torch.testing.assert_close(module(x, position), model(x, position))
        torch.testing.assert_close(module.state_dict()["cache"], model.cache)


@pytest.mark.parametrize("position", [T(14), T(-1), T(16)])
def test_positions_outside_are_errors_and_write_nothing(position: torch.Tensor) -> None:
    module = pipeline.default()(Cache(index_copy).eval(), args=(X, T(3))).module("reference")
    with pytest.raises(pipeline.ExecutionError, match=r"outside of the buffer cache \[2, 4, 16, 8\]"):
        module(X, position)
    assert not module.state_dict()["cache"].any()
    module(X, T(13))


def targets(model: torch.nn.Module, *args: Any, **settings: Any) -> list[Any]:
    program = pipeline.default(**settings).until("improve")(model.eval(), args=args)
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_rows_that_data_names_are_written_by_pytorch_where_a_copy_would_be_dear() -> None:
    def write(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
        cache[:, :, position] = x

    positions = T([3, 1, 7])
    large = Cache(write, (2, 4, 2048, 8))
    assert CACHE_WRITE in targets(copy.deepcopy(large), X, positions)
    assert CACHE_WRITE not in targets(Cache(write), X, positions)
    assert CACHE_WRITE not in targets(copy.deepcopy(large), X, positions, require_full_compilation=True)
    module = pipeline.default(min_block_size=1)(copy.deepcopy(large).eval(), args=(X, positions)).module("reference")
    held = module.state_dict()["cache"]
    torch.testing.assert_close(module(X, positions), large(X, positions))
    assert module.state_dict()["cache"].data_ptr() == held.data_ptr() and torch.equal(held, large.cache)


def test_what_is_read_as_it_was_is_not_updated_in_place() -> None:
    class Reads(Cache):
        def forward(self, x: torch.Tensor, position: Any) -> torch.Tensor:
            before = self.cache.sum()  # type: ignore[operator]
            index_copy(self.cache, x, position)  # type: ignore[arg-type]
            return before + self.cache  # type: ignore[operator]

    class Returned(Cache):
        def forward(self, x: torch.Tensor, position: Any) -> Any:
            index_copy(self.cache, x, position)  # type: ignore[arg-type]
            return self.cache

    for kind in (Reads, Returned):
        model = kind(index_copy)
        assert CACHE_UPDATE not in targets(copy.deepcopy(model), X, T(3))
        module = pipeline.default()(copy.deepcopy(model).eval(), args=(X, T(3))).module("reference")
        for _ in range(2):
            torch.testing.assert_close(module(X, T(3)), model(X, T(3)))


def test_steps_that_are_not_1_are_not_consecutive() -> None:
    def write(cache: torch.Tensor, x: torch.Tensor, position: torch.Tensor) -> None:
        cache.index_copy_(2, torch.arange(0, 6, 2) + position, x)

    assert CACHE_UPDATE not in targets(Cache(write), X, T(3))


def test_the_operator_refuses_rows_outside() -> None:
    cache, update = torch.zeros(1, 1, 4, 1), torch.ones(1, 1, 2, 1)
    assert cache_update(cache, update, T([2])).flatten().tolist() == [0, 0, 1, 1]
    with pytest.raises(IndexError, match="rows 3 to 4 of a KV cache with only 4 rows"):
        cache_update(cache, update, T([3]))
