"""Programs that a pipeline is given: the settings that count."""

from __future__ import annotations

import pytest
import torch

import pipeline


def test_a_program_gets_the_settings_of_the_pipeline_that_it_is_given_to() -> None:
    """Those that the pipeline sets; it keeps the others that it was captured with."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()).eval()
    captured = pipeline.CompilationSettings(min_block_size=1, optimization_level=2)
    program = pipeline.capture(model, (torch.ones(2, 3),), settings=captured)
    found = pipeline.default(torch_executed_ops=["aten.relu"])(program)
    assert [(s.kind, s.nodes) for s in found.partitioned.segments] == [("engine", ("linear",)), ("torch", ("relu",))]
    assert found.settings.optimization_level == 2
    assert program.settings == captured
    assert pipeline.default()(program).settings == captured


def test_a_program_stays_on_its_device() -> None:
    program = pipeline.capture(torch.nn.ReLU(), (torch.ones(2),), device="cpu")
    with pytest.raises(ValueError, match="captured for cpu, not for cuda: pass device= to capture"):
        pipeline.default(device="cuda")(program)
