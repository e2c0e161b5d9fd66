"""Marker operators, which return a tensor as it is and record a fact about it in the printed program."""

from __future__ import annotations

from typing import Any, Final

import torch

_library = torch.library.Library("pipeline", "FRAGMENT")
for _name, _input in (("open_mask", "mask"), ("again", "input")):
    _library.define(f"{_name}(Tensor {_input}) -> Tensor")
    _library.impl(_name, torch.clone, "CompositeExplicitAutograd")

OPEN_MASK: Final[Any] = torch.ops.pipeline.open_mask.default
"""An attention mask that leaves something to attend to in every row: no row of scores is minus infinity throughout."""

AGAIN: Final[Any] = torch.ops.pipeline.again.default
"""An input of a model as its second call gets it, where a trace calls the model twice."""
