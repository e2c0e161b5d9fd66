"""Capture a model alone, as ``check_model`` does before it compiles it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pipeline.defaults import default
from pipeline.program import Program
from pipeline.settings import CompilationSettings
from pipeline.testing.models import Entry, _capture, _parse_model


def capture_model(
    make: Callable[[], torch.nn.Module],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    sizes: Mapping[str, Any] | None = None,
    *,
    entry: Entry = "dims",
    **options: Any,
) -> Program:
    """The program that ``check_model`` compiles for the same arguments; of ``options``, only settings count."""
    settings = {name: value for name, value in options.items() if name in CompilationSettings.names()}
    return _capture(_parse_model(make, args, kwargs, sizes, entry), default(**settings).settings, entry)[0]
