"""``check_backend``: a random program's model under ``torch.compile(backend=pipeline.backend(…))``, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import pipeline
from pipeline.settings import CompilationSettings
from pipeline.stages import unbuilt
from pipeline.testing.compare import describe_outputs_difference
from pipeline.testing.models import Model, ModelError, _capture, _parse_model


def check_backend(
    make: Callable[[], torch.nn.Module],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Compare two calls at each size with eager's, as `check_model` does, whose arguments these are; settings are all
    of ``options`` that is read. Return the model."""
    model = _parse_model(make, args, kwargs, sizes, "dims")
    settings = {name: value for name, value in options.items() if name in CompilationSettings.names()}
    program, _ = _capture(model, pipeline.default(**settings).settings, "dims")  # its dtypes bound the error
    torch.compiler.reset()
    eager, inner = model.create(), model.create()
    compile = pipeline.default(**settings).replace("build", unbuilt)
    compiled = torch.compile(inner, backend=pipeline.backend(compile, executor="reference"))
    for at in model.sizes_to_try:
        ours, theirs = model.arguments(at), model.arguments(at)
        for call in ("first", "second"):
            with torch.no_grad():
                results = eager(*theirs[0], **theirs[1]), compiled(*ours[0], **ours[1])
            state = dict(eager.state_dict()), dict(inner.state_dict())
            for label, want, got in (("result", *results), ("input", theirs, ours), ("buffer", *state)):
                if fault := describe_outputs_difference(label, want, None, got, program, "reference"):
                    raise ModelError("values", f"torch.compile differs from eager: {fault} with {at}, {call} call")
    return model
