"""Hide from a model that it is exported, if its code for that case fails.

Models ask torch whether they are exported (``torch.compiler.is_exporting``), and may go another way then: encoders of
transformers make no mask, which some of them read. They are told that they are not; torch itself knows.
This holds for calls through the module, as transformers' are, and not for ``from torch.compiler import is_exporting``.
"""

from __future__ import annotations

import sys
from typing import Final

from pipeline.errors import folder_of
from pipeline.export_fixes.patching import Kernel

TORCH: Final = folder_of("torch")
OURS: Final = folder_of("pipeline")


def hidden_from_models(own: Kernel) -> Kernel:
    """Wrap `torch.compiler.is_compiling` and its like: torch's functions get the answer, the model gets False."""

    def asked() -> bool:
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
            frame = frame.f_back
        return bool(own()) and frame.f_code.co_filename.startswith(TORCH)

    return asked
