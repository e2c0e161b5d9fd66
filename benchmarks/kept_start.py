"""``python -m benchmarks.kept_start FOLDER MODULE ...``: run what ``benchmarks.gpu_start`` saved there, on this GPU.

It prints seconds as JSON: importing torch and these modules; starting CUDA, with the inputs' way to the GPU; and what
is ours: importing pipeline, loading the file, and the first result.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

BEGUN = time.perf_counter()

import torch  # noqa: E402

if __name__ == "__main__":
    for each in sys.argv[2:]:
        importlib.import_module(each)
TORCH = time.perf_counter()

import pipeline  # noqa: E402

IMPORTED = time.perf_counter()
DEVICE = "cuda"


def result_of(compiled: Any, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results of a program, or the first token of a language model."""
    if isinstance(compiled, pipeline.Compiled):
        return tuple(compiled.module()(**inputs).values())
    return (compiled.generate(**inputs, max_new_tokens=1, min_new_tokens=1, do_sample=False),)


def started(folder: str) -> dict[str, float]:
    """Seconds by what they are for; ``result_seconds`` are ours, of a process that has torch and CUDA."""
    inputs, expected = torch.load(f"{folder}/inputs.pt"), torch.load(f"{folder}/result.pt")
    start = time.perf_counter()
    here = {name: value.to(DEVICE) for name, value in inputs.items()}
    torch.cuda.synchronize()
    cuda = time.perf_counter()
    compiled = pipeline.load(f"{folder}/model.trtp")
    loaded = time.perf_counter()
    with torch.no_grad():
        result = result_of(compiled, here)
        torch.cuda.synchronize()
    end = time.perf_counter()
    for found, wanted in zip(result, expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-2, atol=1e-2)
    return {
        "torch_seconds": TORCH - BEGUN,
        "import_seconds": IMPORTED - TORCH,
        "cuda_seconds": cuda - start,
        "load_seconds": loaded - cuda,
        "call_seconds": end - loaded,
        "result_seconds": IMPORTED - TORCH + end - cuda,
    }


if __name__ == "__main__":
    print(json.dumps(started(sys.argv[1])))
