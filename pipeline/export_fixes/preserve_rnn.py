"""Keep recurrent layers whole during export, so that the length of a sequence may be dynamic.

torch.export infers the shapes of ``aten.lstm`` and the like by unrolling the steps, which fixes the length and takes
time that grows with it. Here their shapes are computed from those of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch._C import DispatchKey

from pipeline.export_fixes.patching import Kernel

KEY: Final = DispatchKey.CompositeImplicitAutograd


def whole(shapes: Kernel) -> Callable[[Kernel], Kernel]:
    """Return a replacement for torch's kernel that computes only the shapes."""
    return lambda own: shapes
