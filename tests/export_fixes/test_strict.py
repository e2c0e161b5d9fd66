"""What torch.export traces only by way of Dynamo is captured so."""

from __future__ import annotations

import pytest
import torch

import pipeline


class OnlyDynamo(torch.nn.Module):
    """Fails in every trace but Dynamo's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
            raise NotImplementedError("there is no cache in such a trace")
        return self.layer(x) * 2


def test_strict_export_is_tried_where_the_other_fails() -> None:
    model, x = OnlyDynamo().eval(), torch.randn(2, 4)
    with pytest.raises(NotImplementedError):
        torch.export.export(model, (x,), strict=False)
    batch = torch.export.Dim("batch", min=1, max=8)
    compiled = pipeline.default()(model, args=(x,), dynamic_shapes=({0: batch},))
    assert set(compiled.program.parameters) == {"layer.weight", "layer.bias"}, "the model's own names"
    for rows in (1, 5):
        y = torch.randn(rows, 4)
        torch.testing.assert_close(compiled.module("reference")(y), model(y))


def test_the_first_error_is_told_where_both_fail() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while x.sum() > 0:
                x = x - 1
            return x

    with pytest.raises(pipeline.CaptureError, match=r"data-dependent|Data-dependent|Could not guard"):
        pipeline.default()(Fails().eval(), args=(torch.randn(3),))
