"""Plans become engines: one TensorRT runtime a process, and what TensorRT said when something failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

from pipeline.errors import ExecutionError
from pipeline.program import Engine
from pipeline.trt import CAPABILITIES, Log, has_gpu, trt

LOG = Log()
LIBRARY = f"{CAPABILITIES.flavour} {CAPABILITIES.version}"
Said: TypeAlias = Callable[[], str]

_loading = threading.Lock()
_hearing = threading.Lock()
_listeners = 0


@contextmanager
def listening() -> Iterator[Said]:
    """Inside it, a call gives TensorRT's errors since its start. What was said is forgotten when nobody listens."""
    global _listeners
    with _hearing:
        _listeners += 1
        mark = LOG.mark()
    try:
        yield lambda: "; ".join(LOG.errors_since(mark)) or "TensorRT gave no reason"
    finally:
        with _hearing:
            _listeners -= 1
            if not _listeners:
                LOG.messages.clear()


def load(engine: Engine) -> Any:
    """The ``ICudaEngine`` of a serialized engine, on the current GPU.

    Raises:
        ExecutionError: there is no GPU, the plan comes from another library, or TensorRT cannot load it.
    """
    require_gpu(engine.name)
    flavour = engine.library.split(" ")[0]
    if flavour != CAPABILITIES.flavour:
        raise ExecutionError(f"{engine.name} was built by {engine.library}, and {LIBRARY} is loaded", _rebuild(flavour))
    with _loading, listening() as said:
        loaded = _runtime().deserialize_cuda_engine(engine.plan)
        if loaded is None:
            raise ExecutionError(_unloadable(engine, said()), _rebuild(flavour) if engine.library != LIBRARY else "")
    return loaded


def require_gpu(what: str) -> None:
    """Raise ``ExecutionError`` where no engine can run."""
    if not has_gpu():
        raise ExecutionError(f"{what} runs on a GPU, and torch sees none here")


@cache
def _runtime() -> Any:
    return trt.Runtime(LOG)


def _unloadable(engine: Engine, said: str) -> str:
    # A version-compatible plan of another version does load, so the versions are compared only when one did not.
    differs = f": it was built by {engine.library}, this is {LIBRARY}, and plans fit one version"
    return f"{engine.name} cannot be loaded{differs if engine.library != LIBRARY else ''} ({said})"


def _rebuild(flavour: str) -> str:
    return f"compile it again here, or install the version it was built by (PIPELINE_TENSORRT={flavour} chooses it)"
