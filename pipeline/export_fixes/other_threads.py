"""Leave modules alone that other threads call while a model is traced: torch's tracer replaces `Module.__call__` and
`Module.__getattr__` in the whole process, and takes every call for one of the model."""

from __future__ import annotations

from pipeline.aten.tracing_thread import is_tracing
from pipeline.aten.types import Argument
from pipeline.export_fixes.patching import Kernel


def calling(own: Kernel) -> Kernel:
    """Wrap the tracer's `call_module`: calls of other threads run."""

    def call_module(tracer: Argument, module: Argument, forward: Kernel, args: Argument, kwargs: Argument) -> object:
        return own(tracer, module, forward, args, kwargs) if is_tracing() else forward(*args, **kwargs)

    return call_module


def reading(own: Kernel) -> Kernel:
    """Wrap the tracer's `getattr`: other threads get what modules hold."""

    def getattr(tracer: Argument, name: str, value: object, proxies: Argument) -> object:
        return own(tracer, name, value, proxies) if is_tracing() else value

    return getattr
