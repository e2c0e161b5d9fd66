"""Plans that load and plans that do not, and what is said of those."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

import pipeline
from pipeline import ExecutionError
from pipeline.network.engine import Engine
from pipeline.runtime import engine_load
from pipeline.runtime.engine import EngineRunner
from pipeline.runtime.engine_load import LIBRARY, LOG, listening
from tests.runtime.fake_engine import FakeEngine, say

X = torch.arange(6.0).reshape(2, 3)
NETWORK = FakeEngine({"x": ("float32", (3,))}, {"y": ("float32", (3,))}, lambda x: [x]).network


def test_what_tensorrt_says_is_forgotten_when_nobody_listens() -> None:
    with listening() as outer:
        say("first")
        with listening() as inner:
            say("second")
            assert inner() == "second"
        assert outer() == "first; second"
    assert not LOG.messages
    with listening() as said:
        assert said() == "TensorRT gave no reason"


ENGINE = Engine("engine_0", b"no plan", LIBRARY)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one."""
    monkeypatch.setattr(engine_load, "has_gpu", lambda: True)


@pytest.mark.usefixtures("gpu")
def test_a_plan_of_another_library_is_not_even_tried() -> None:
    other = evolve(ENGINE, library="tensorrt 10.1.0")
    with pytest.raises(
        ExecutionError, match=rf"engine_0 was built by tensorrt 10.1.0, and {LIBRARY} is loaded"
    ) as info:
        engine_load.load(other)
    assert "PIPELINE_TENSORRT=tensorrt" in str(info.value)


@pytest.mark.usefixtures("gpu")
def test_a_plan_that_does_not_load_is_an_error_with_tensorrts_words() -> None:
    with pytest.raises(ExecutionError, match=r"engine_0 cannot be loaded \(.+\)"):
        engine_load.load(ENGINE)
    older = evolve(ENGINE, library=f"{LIBRARY.split()[0]} 0.1")
    with pytest.raises(ExecutionError, match=rf"engine_0 cannot be loaded: it was built by .* 0.1, this is {LIBRARY}"):
        engine_load.load(older)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_error_says_so() -> None:
    with pytest.raises(ExecutionError, match="engine_0 runs on a GPU, and torch sees none"):
        EngineRunner(ENGINE, NETWORK)
    compiled = pipeline.default(min_block_size=1)(Doubled().eval(), args=(X,))
    with pytest.raises(ExecutionError, match="GPU"):
        compiled.module(executor="tensorrt")


class Doubled(torch.nn.Module):
    """With a buffer that it changes, which a module would put on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, 3] -> [2, 3]"""
        self.count += 1
        return x + x
