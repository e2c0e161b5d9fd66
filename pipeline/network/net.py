"""Define the networks that converters receive: ``Net`` and ``LegacyNetwork``.
``Net`` has the current node's name; ``LegacyNetwork`` is for converters of the LEGACY calling convention."""

from __future__ import annotations

from typing import Any

import torch
from attrs import frozen

from pipeline.network.context import ConversionContext
from pipeline.trt import trt


@frozen
class Net:
    """A network under construction, with the name prefix for new layers.

    Attributes:
        ctx: the conversion; its `net` is TensorRT's network.
        name: the prefix of layer names: `relu` becomes `relu:activation`.
    """

    ctx: ConversionContext
    name: str

    def at(self, part: str) -> Net:
        """Return the same network with the name prefix `name/part`."""
        return Net(self.ctx, f"{self.name}/{part}")

    def add(self, kind: str, *args: object, **kwargs: object) -> Any:
        """Add a layer by `INetworkDefinition.add_<kind>` and name it; raise a `NetworkError` if TensorRT rejects it."""
        return self.ctx.add(self.name, kind, *args, **kwargs)

    @property
    def node(self) -> torch.fx.Node:
        """The graph node being converted; its fake tensor is `node.meta["val"]`."""
        node = self.ctx.node
        assert node is not None, "no node is being converted"
        return node


class LegacyNetwork:
    """A wrapper of TensorRT's network that also has the conversion context, which building blocks need: a LEGACY
    converter receives only the network. It delegates all else, and is an instance of ``INetworkDefinition``."""

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
