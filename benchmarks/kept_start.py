"""``python -m benchmarks.kept_start FOLDER``: load what ``benchmarks.gpu_start`` saved there, and run it on this GPU.

It imports what a server does, torch and pipeline, and prints its seconds as JSON: imports; the inputs' way to the GPU,
with what CUDA takes to begin; and from then on to the first result of the file.
"""

from __future__ import annotations

import json
import sys
import time

BEGUN = time.perf_counter()

import torch  # noqa: E402

import pipeline  # noqa: E402

IMPORTED = time.perf_counter()


def started(folder: str) -> dict[str, float]:
    """Seconds by what they are for; all that follows the imports is in ``file_seconds``."""
    inputs = torch.load(f"{folder}/inputs.pt")
    start = time.perf_counter()
    here = {name: value.cuda() for name, value in inputs.items()}
    torch.cuda.synchronize()
    cuda = time.perf_counter()
    compiled = pipeline.load(f"{folder}/model.pipeline")
    loaded = time.perf_counter()
    with torch.no_grad():
        compiled.module(executor="tensorrt", runtime_cache=f"{folder}/kernels")(**here)
        torch.cuda.synchronize()
    end = time.perf_counter()
    return {
        "file_seconds": end - start,
        "cuda_seconds": cuda - start,
        "load_seconds": loaded - cuda,
        "import_seconds": IMPORTED - BEGUN,
    }


if __name__ == "__main__":
    print(json.dumps(started(sys.argv[1])))
