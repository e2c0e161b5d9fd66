"""Results of a GPU as tables of docs/benchmarks.md."""

from __future__ import annotations

from benchmarks import environment, gpu_profile, gpu_tables


def test_profiles_and_starts_become_tables() -> None:
    found = gpu_profile.summary([("nvjet_hsh", 10.0), ("__myl_Add", 1.0)] * gpu_profile.CALLS)
    rows = [{"model": "vit", "batch": 8, "method": "raw engine", **found}]
    text = gpu_tables.profile({**environment.environment(), "dtype": "float16", "profile": rows})
    assert "| vit, batch 8 | raw engine | 11 (2) | 10 (1) | 1 (1) |" in text
    assert "| vit, batch 8 | raw engine | `nvjet_hsh` | 10 | 1 |" in text
    start = {"model": "vit-large", "model_seconds": 22.5, "import_seconds": 0.3, "load_seconds": 0.4, "file_mb": 1612}
    start |= {"call_seconds": 0.501, "result_seconds": 1.201, "torch_seconds": 3.0, "cuda_seconds": 0.1}
    data = {**environment.environment(), "dtype": "float16", "batch": 1, "side_by_side": 3, "starts": [start]}
    row = "| vit-large | 22.50 | 1.20 | 0.30 | 0.40 | 0.50 | 3.00 | 0.10 | 1.5: {} | 1,612 |"
    assert row.format("met") in gpu_tables.starts(data)
    assert row.replace("1.20", "1.51").format("**not met**") in gpu_tables.starts(
        {**data, "starts": [{**start, "result_seconds": 1.51}]}
    )
    row = {"model": "vit", "batch": 8, "call_ms": 1.5, "graph_ms": 1.25, "engine_ms": 1.2, "layers_ms": 1.26}
    row |= {"between_ms": 0.1, "timed": ["kernels"]}
    text = gpu_tables.layers({**environment.environment(), "dtype": "float16", "layers": [row]})
    assert "| vit | 8 | 1.500 | 1.250 | 1.200 | 1.260 | 1.05 | 0.100 | kernels |" in text
