"""Marker operators, which return a tensor as it is and record a fact about it in the printed program."""

from __future__ import annotations

from typing import Any, Final

import torch

_library = torch.library.Library("pipeline", "FRAGMENT")
for _name, _input in (("open_mask", "mask"), ("again", "input")):
    _library.define(f"{_name}(Tensor {_input}) -> Tensor")
    _library.impl(_name, torch.clone, "CompositeExplicitAutograd")

OPEN_MASK: Final[Any] = torch.ops.pipeline.open_mask.default
"""Marks an attention mask as open: every row leaves at least one key to attend to."""

AGAIN: Final[Any] = torch.ops.pipeline.again.default
"""Marks an input as that of the second call, if a trace calls the model twice."""
