"""An exported program without an upper bound refuses Inputs of other ranges, in words."""

from __future__ import annotations

import pytest
import torch

import pipeline


@pytest.mark.parametrize("dim", [torch.export.Dim.DYNAMIC, torch.export.Dim("b")])
def test_inputs_within_an_open_range_are_refused_in_words(dim: object) -> None:
    exported = torch.export.export(torch.nn.ReLU(), (torch.randn(4, 16),), dynamic_shapes=({0: dim},))
    bounded = pipeline.Input(min_shape=(2, 16), opt_shape=(4, 16), max_shape=(8, 16))
    with pytest.raises(ValueError, match="its ranges are fixed; pass the module, or another export"):
        pipeline.capture(exported, (bounded,))
