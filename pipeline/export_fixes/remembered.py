"""Clear the shapes that a model remembers from its last call.

``if self.shape != x.shape: self.grid, self.shape = make_grid(x.shape), x.shape`` (heads of YOLO, caches of positions):
once the model was called, torch.export fixes sizes to the remembered ones. If the shape is cleared, the trace computes
the grid; `model_state` checks, as for any state that a model keeps, that no result depends on an earlier call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from pipeline.errors import CaptureError
from pipeline.export_fixes.model_state import changed
from pipeline.export_fixes.restore_model_state import within

NO_SIZE: Final = -2
"""No tensor has this size, and none can be made or viewed with it."""


def shapes(model: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of tensors that a model's modules have as attributes, by their places."""
    rows = ((within(path, name), v) for path, module in model.named_modules() for name, v in vars(module).items())
    return {place: value for place, value in rows if type(value) is torch.Size}


@contextmanager
def forgotten(model: torch.nn.Module) -> Iterator[None]:
    """Return the context of a trace in which remembered shapes match no tensor; the caller restores them.

    Raises:
        CaptureError: a call leaves one as it is: it is not that of the last call.
    """
    found = shapes(model)
    for place, shape in found.items():
        path, _, name = place.rpartition(".")
        vars(model.get_submodule(path))[name] = torch.Size([NO_SIZE] * len(shape))
    yield
    if left := found.keys() - changed():
        raise CaptureError(f"{type(model).__name__} does not set {', '.join(sorted(left))} when it is called")
