"""Decorate building blocks, so that they can be called with a `Net`, or with a context and a name as in converters."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from pipeline.network.context import ConversionContext
from pipeline.network.net import Net

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Block(Protocol[P, R]):
    """A function that adds layers to a network; call it as ``block(net, x)`` or ``block(context, layer_name, x)``."""

    __name__: str
    __module__: str

    @overload
    def __call__(self, net: Net, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def __call__(self, ctx: ConversionContext, name: str, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class NetworkQuery(Protocol[P, R]):
    """A query of a network, which adds no layer; it can be called with a `Net`, or with a context alone."""

    def __call__(self, net: Net | ConversionContext, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def block(function: Callable[Concatenate[Net, P], R]) -> Block[P, R]:
    """Make a function of a `Net` callable with a context and a name, too: `relu(ctx, name, x)`."""

    def call_with_context(ctx: ConversionContext, name: str, *args: Any, **kwargs: Any) -> R:
        return function(Net(ctx, name), *args, **kwargs)

    @wraps(function)
    def called(net: Any, *args: Any, **kwargs: Any) -> R:
        return (call_with_context if isinstance(net, ConversionContext) else function)(net, *args, **kwargs)

    return cast(Block[P, R], called)


def network_query(function: Callable[Concatenate[Net, P], R]) -> NetworkQuery[P, R]:
    """Let a function that takes a `Net` and adds no layers also take a context instead: ``known_sizes(ctx, x)``."""

    @wraps(function)
    def called(net: Any, *args: Any, **kwargs: Any) -> R:
        return function(Net(net, "") if isinstance(net, ConversionContext) else net, *args, **kwargs)

    return cast(NetworkQuery[P, R], called)
