"""Weights in a mapped file are what they were, also after they left memory."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from pipeline.build import memory
from pipeline.build.memory import LEAST, MemoryMappedWeights
from pipeline.compose.resident import process_memory
from pipeline.network.handle import drop_pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs posix_fallocate and madvise")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_values_stay_what_they_were(dtype: torch.dtype) -> None:
    tensors = [torch.randint(0, 2, (rows, 1 << 16)).to(dtype) for rows in (1, 2, 3)]
    made = MemoryMappedWeights([t.nbytes for t in tensors])
    moved = [made.copy_to_file(t) for t in tensors]
    drop_pages(made.mapping)
    for before, after in zip(tensors, moved, strict=True):
        assert torch.equal(before, after) and after.dtype == dtype and after.is_contiguous()
        assert after.data_ptr() != before.data_ptr() and after.data_ptr() % 4096 == 0
    del made
    assert all(torch.equal(before, after) for before, after in zip(tensors, moved, strict=True))


def test_they_leave_memory() -> None:
    made, size, given = MemoryMappedWeights([32 << 20]), 32 << 20, torch.ones(32 << 20, dtype=torch.uint8)
    least = process_memory().total
    moved = made.copy_to_file(given)
    assert process_memory().total <= least + size * 0.1, "nothing is in memory before it is read"
    assert torch.equal(moved, given)
    before = process_memory().total
    drop_pages(made.mapping)
    assert process_memory().total <= before - size * 0.9
    assert moved.min() == 1 and process_memory().total >= before - size * 0.1


def test_views_are_written_as_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system writes less at once than it is given."""
    written = os.pwrite
    monkeypatch.setattr(memory.os, "pwrite", lambda file, data, at: written(file, data[:70_000], at))
    monkeypatch.setattr(memory, "PIECE", 1 << 17)
    x = torch.randn(300, 200, requires_grad=True)
    for view in (x.t(), x[::2, 10:], torch.view_as_complex(torch.randn(200, 100, 2)).conj().imag):
        made = MemoryMappedWeights([0, view.nbytes, view.nbytes])
        assert torch.equal(made.copy_to_file(view), view) and torch.equal(made.copy_to_file(view), view)


def test_what_has_no_room_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = torch.ones(4), torch.ones(LEAST)
    made = MemoryMappedWeights([small.nbytes, LEAST])
    assert made.copy_to_file(small) is small and made.copy_to_file(large) is large

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(memory.os, "pwrite", full)
        assert MemoryMappedWeights([large.nbytes]).copy_to_file(large) is large

    monkeypatch.setattr(memory.os, "posix_fallocate", full)
    assert MemoryMappedWeights([large.nbytes]).copy_to_file(large) is large
