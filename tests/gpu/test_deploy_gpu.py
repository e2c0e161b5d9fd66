"""The program of docs/deploy.md runs an engine of a saved program with TensorRT's own runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.trt import CAPABILITIES
from tests.docs.deploy_program import kept, program

pytestmark = pytest.mark.gpu


def test_an_engine_of_a_file_runs_without_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept(tmp_path / "model.trtp")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program().replace("tensorrt_rtx", CAPABILITIES.flavour), names)
    torch.testing.assert_close(names["tensors"]["output"], made(torch.ones(5, 8).cuda()), rtol=1e-3, atol=1e-3)
