"""Results of a GPU as tables of docs/benchmarks.md."""

from __future__ import annotations

from benchmarks import environment, gpu_profile, gpu_tables


def test_profiles_and_starts_become_tables() -> None:
    found = gpu_profile.summary([("nvjet_hsh", 10.0), ("__myl_Add", 1.0)] * gpu_profile.CALLS)
    rows = [{"model": "vit", "batch": 8, "method": "raw engine", **found}]
    text = gpu_tables.profile({**environment.environment(), "dtype": "float16", "profile": rows})
    assert "| vit, batch 8 | raw engine | 11 (2) | 10 (1) | 1 (1) |" in text
    assert "| vit, batch 8 | raw engine | `nvjet_hsh` | 10 | 1 |" in text
    start = {"model": "vit", "first_seconds": 2.5, "file_seconds": 0.251, "cuda_seconds": 0.1, "load_seconds": 0.2}
    start |= {"import_seconds": 3.0, "kept_mb": 1.5}
    data = {**environment.environment(), "dtype": "float16", "batch": 1, "side_by_side": 3, "starts": [start]}
    assert "| vit | 2.50 | 0.25 | 0.10 | 0.20 | 3.00 | 1.5 |" in gpu_tables.starts(data)
    row = {"model": "vit", "batch": 8, "call_ms": 1.5, "graph_ms": 1.25, "engine_ms": 1.2, "layers_ms": 1.26}
    row |= {"between_ms": 0.1, "timed": ["kernels"]}
    text = gpu_tables.layers({**environment.environment(), "dtype": "float16", "layers": [row]})
    assert "| vit | 8 | 1.500 | 1.250 | 1.200 | 1.260 | 1.05 | 0.100 | kernels |" in text
