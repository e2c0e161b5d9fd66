"""A capture of a CUDA graph that fails is ended."""

from __future__ import annotations

import pytest
import torch

from pipeline.runtime.failed_capture import ended_if_it_fails


@pytest.mark.parametrize("known", [True, False])
def test_the_allocator_is_told_once(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's allocator may have ended the capture: it then refuses to end it again, and keeps the pool's count."""
    calls = list[tuple[object, ...]]()

    def end(*args: object) -> None:
        calls.append(("end", *args))
        if not known:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda *args: calls.append(("release", *args)))
    with ended_if_it_fails((0, 7)):
        pass
    with pytest.raises(ValueError, match="its own"), ended_if_it_fails((0, 7)):
        raise ValueError("its own")
    assert calls == [("end", 1, (0, 7)), ("release", 1, (0, 7))][: 1 + known]
