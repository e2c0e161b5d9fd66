"""Refuse a model that seeds torch's generator in its calls: compiled programs never seed it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pipeline.errors import CaptureError
from pipeline.export_fixes.error_attribution import NOT_THE_MODELS, place_of


def refused(own: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function that seeds: torch.export calls it as it traces, and leaves it out."""

    def seed(*args: object, **kwargs: object) -> object:
        frame = sys._getframe(2)  # ours is called by the function that stands in torch's place
        if frame.f_code.co_filename.startswith(NOT_THE_MODELS):
            return own(*args, **kwargs)
        place = place_of(frame.f_code.co_filename, frame.f_lineno)
        why = f"the model seeds torch's random numbers at {place}, which a program does not"
        raise CaptureError(why, "seed before the call; or draw once, and keep the numbers in a buffer")

    return seed
