"""Ignore modules that other threads call during a trace: torch's tracer replaces `Module.__call__` and
`Module.__getattr__` for the whole process, and treats every call as the model's."""

from __future__ import annotations

from pipeline.aten.tracing_thread import is_tracing
from pipeline.aten.types import Argument
from pipeline.export_fixes.patching import Kernel


def calling(own: Kernel) -> Kernel:
    """Wrap the tracer's `call_module`: calls of other threads run untraced."""

    def call_module(tracer: Argument, module: Argument, forward: Kernel, args: Argument, kwargs: Argument) -> object:
        return own(tracer, module, forward, args, kwargs) if is_tracing() else forward(*args, **kwargs)

    return call_module


def reading(own: Kernel) -> Kernel:
    """Wrap the tracer's `getattr`: other threads get the plain attributes."""

    def getattr(tracer: Argument, name: str, value: object, proxies: Argument) -> object:
        return own(tracer, name, value, proxies) if is_tracing() else value

    return getattr
