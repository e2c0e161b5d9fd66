"""Stream weights from the host to the GPU at each call, within a budget of GPU memory."""

from __future__ import annotations

import logging

from pipeline.errors import ExecutionError
from pipeline.trt import trt

log = logging.getLogger(__name__)


def stream_weights(name: str, loaded: trt.ICudaEngine, budget: int) -> None:
    """Limit the bytes that an engine's weights take on the GPU, before contexts are created.

    Raises:
        ExecutionError: TensorRT refuses the budget.
    """
    size = int(loaded.streamable_weights_size)
    if not size:
        log.warning("%s has no weights that can be streamed: all are on the GPU (weight_streaming_budget)", name)
        return
    wanted = min(budget, size)
    loaded.weight_streaming_budget_v2 = wanted
    if loaded.weight_streaming_budget_v2 != wanted:
        streamable = f"{name} has {size} bytes of weights that can be streamed"
        raise ExecutionError(f"TensorRT refused weight_streaming_budget={budget}: {streamable}", "set a larger budget")
