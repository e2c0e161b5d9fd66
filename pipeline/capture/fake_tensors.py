"""Compute the fake tensor of a new node, without adding guards or symbols to the program's ``ShapeEnv``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import map_arg

from pipeline.aten.types import Argument, Target
from pipeline.export_fixes import patch_for_trace
from pipeline.shapes.environment import expression, shape_of


def fake_mode(graph: torch.fx.Graph) -> FakeTensorMode:
    """Return the ``FakeTensorMode`` of a graph's fake tensors."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None) or FakeTensorMode()


@contextmanager
def suppress_guards(mode: FakeTensorMode) -> Iterator[None]:
    """Return a context that enters a fake mode, and in which torch adds no guards on the sizes' symbols."""
    environment = mode.shape_env
    with mode, patch_for_trace(), environment.suppress_guards() if environment is not None else nullcontext():
        yield


def ignore_new_symbols(mode: FakeTensorMode) -> AbstractContextManager[Argument]:
    """Return a context for a trace whose results are discarded: torch then tolerates new data-dependent sizes in it."""
    environment = mode.shape_env
    return environment.ignore_fresh_unbacked_symbols() if environment is not None else nullcontext()


def fake_result(mode: FakeTensorMode, target: Target, args: Argument, kwargs: Argument) -> Argument:
    """Run an operator on the fake values of the nodes among its arguments, and return the fake result."""
    args, kwargs = map_arg((args, kwargs), lambda node: node.meta.get("val"))
    with torch.no_grad(), suppress_guards(mode), enable_python_dispatcher():  # as in torch.export
        return target(*args, **kwargs)


def fake_result_key(argument: object) -> str:
    """Return a text for cache keys that is equal for arguments with which an operator has the same fake result."""
    if isinstance(argument, (tuple, list)):
        return f"({' '.join(map(fake_result_key, argument))})"
    if isinstance(argument, dict):
        return f"({' '.join(f'{k}={fake_result_key(v)}' for k, v in argument.items())})"
    if not isinstance(argument, torch.fx.Node):
        return f"{type(argument).__name__} {argument!r}"
    fake = argument.meta.get("val")
    if isinstance(fake, torch.Tensor):
        return f"{fake.dtype} {shape_of(fake)} {fake.device} {tuple(map(expression, fake.stride()))}"
    return str(expression(fake)) if isinstance(fake, torch.SymInt) else str(fake)
