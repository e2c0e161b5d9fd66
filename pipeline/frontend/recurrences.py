"""Keep recurrent layers whole during export, so that the length of a sequence may be dynamic.

torch.export infers the shapes of ``aten.lstm`` and its like by writing the steps out, which takes a length for a
constant and time that grows with it. Here their shapes are worked out from those of their inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from torch._C import DispatchKey

from pipeline.frontend.replacement import Kernel

KEY: Final = DispatchKey.CompositeImplicitAutograd


def whole(shapes: Kernel) -> Callable[[Kernel], Kernel]:
    """What gives these shapes in the place of torch's own kernel."""
    return lambda own: shapes
