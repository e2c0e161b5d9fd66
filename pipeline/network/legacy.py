"""Define ``LegacyNetwork``: the network passed to a converter of the LEGACY convention."""

from __future__ import annotations

from typing import Any

from pipeline.network.context import ConversionContext
from pipeline.trt import trt


class LegacyNetwork:
    """TensorRT's network with its conversion context: building blocks need both, but a LEGACY converter receives only
    the network. Everything else is delegated to the network, and ``isinstance`` with ``INetworkDefinition`` holds."""

    ctx: ConversionContext
    has_implicit_batch_dimension = False
    has_explicit_precision = False

    def __init__(self, ctx: ConversionContext) -> None:
        object.__setattr__(self, "ctx", ctx)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return trt.INetworkDefinition  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx.net, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx.net, name, value)
