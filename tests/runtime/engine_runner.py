"""``EngineRunner``: run a serialized engine on a GPU, on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.runtime.cuda_worker import StreamOrder
from pipeline.runtime.engine_buffers import ActivationMemory
from pipeline.runtime.engine_load import LoadedEngine
from pipeline.runtime.engine_session import EngineSession


class EngineRunner:
    """Load an engine, and call it with tensors in the order of the network's inputs and outputs.

    Inputs may be on any device; a symbolic int is a Python int. Outputs are new tensors on the GPU that was current
    when the engine was loaded, in the order of the current stream. Threads take turns.

    Raises:
        ExecutionError: there is no GPU, or the engine does not load or run; with TensorRT's message.
    """

    def __init__(self, engine: Engine, network: Network) -> None:
        loaded = LoadedEngine.load(engine, network)
        self._lane = StreamOrder(torch.device("cuda", torch.cuda.current_device()))
        self._lock = threading.Lock()
        self._session = self._lane.run(
            lambda stream: EngineSession(loaded, stream, ActivationMemory(self._lane.device))
        )

    def __call__(self, inputs: Sequence[torch.Tensor | int]) -> list[torch.Tensor]:
        """Return the network's outputs."""
        with self._lock, torch.cuda.device(self._lane.device), torch.no_grad():
            return self._lane.run(lambda stream: self._session(inputs, stream))
