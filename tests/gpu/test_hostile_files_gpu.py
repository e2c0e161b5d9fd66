"""A call of a loaded program takes no more memory on a GPU than its file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.runtime import call_memory
from tests.artifact import test_hostile_files
from tests.artifact.test_call_memory import GREEDY
from tests.artifact.test_hostile_files import GELU, of_operator, written

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")]
entries = test_hostile_files.entries


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("case", GREEDY)
def test_takes_no_more_than_its_file_says(case: str, graphs: bool, entries: dict[str, bytes], tmp_path: Path) -> None:
    change = GREEDY[case] if case.startswith("in ") else of_operator(GELU, GREEDY[case])
    module = pipeline.load(written(entries, change, tmp_path / "p.trtp")).module("tensorrt", cuda_graphs=graphs)
    before = torch.cuda.max_memory_allocated()
    with pytest.raises(pipeline.ExecutionError, match=r"p\.trtp allows a call at most"):
        module(torch.randn(3, 8, device="cuda"))
    assert torch.cuda.max_memory_allocated() - before < 128 << 20


@pytest.mark.parametrize("graphs", [False, True])
def test_calls_of_an_honest_file(graphs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.nn.functional.gelu(self.linear(x)))

    checked: list[object] = []
    enter = call_memory.AllocationLimit.__enter__

    def entered(self: Any) -> Any:
        checked.append(self)
        return enter(self)

    monkeypatch.setattr(call_memory.AllocationLimit, "__enter__", entered)
    model, batch = Model().cuda().eval(), torch.export.Dim("batch", min=1, max=4096)
    compile = pipeline.default(torch_executed_ops=("aten.gelu",), min_block_size=1)
    compile(model, args=(torch.randn(8, 64, device="cuda"),), dynamic_shapes=({0: batch},)).save(tmp_path / "p.trtp")
    module = pipeline.load(tmp_path / "p.trtp").module("tensorrt", cuda_graphs=graphs)
    for rows in (8, 8, 8, 4096, 4096, 1, 8):
        x = torch.randn(rows, 64, device="cuda")
        torch.testing.assert_close(module(x), model(x), rtol=1e-2, atol=1e-2)
    assert len(checked) == 3
