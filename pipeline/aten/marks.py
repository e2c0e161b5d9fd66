"""Marker operators, which return a tensor as it is and record a fact about it in the printed program."""

from __future__ import annotations

from typing import Any, Final

import torch

_library = torch.library.Library("pipeline", "FRAGMENT")
_library.define("open_mask(Tensor mask) -> Tensor")
_library.impl("open_mask", lambda mask: mask.clone(), "CompositeExplicitAutograd")

OPEN_MASK: Final[Any] = torch.ops.pipeline.open_mask.default
"""An attention mask that leaves something to attend to in every row: no row of scores is minus infinity throughout."""
