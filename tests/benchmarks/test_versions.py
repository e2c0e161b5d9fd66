"""The table of docs/versions.md says what each version of TensorRT showed, and no more."""

from __future__ import annotations

from typing import Any

from benchmarks import version_tables
from benchmarks.environment import environment


def test_the_page_is_current() -> None:
    assert version_tables.PAGE.read_text() == version_tables.page(), "run: python -m benchmarks.tables"


def _result(version: str, **fields: Any) -> dict[str, Any]:
    machine = {"machine": {"gpu": "NVIDIA H100 80GB HBM3", "cpu": "", "cores": 2}, "products": "TF32"}
    return {**environment(), "versions": {"tensorrt_rtx": version}, **machine, **fields}


def test_versions_are_in_order_and_what_was_not_run_says_so() -> None:
    built = [{"name": "bert", "dtype": "float16"}, {"name": "vit", "dtype": "float32", "failed": "no"}]
    found = version_tables.rows([_result("1.10.0.1", builds=built), _result("1.4.0.76", builds=built[:1])])
    assert list(found) == [
        ["tensorrt_rtx 1.4.0.76", "1 of 1", "not run", "not run", "not run"],
        ["tensorrt_rtx 1.10.0.1", "1 of 2, not vit in float32", "not run", "not run", "not run"],
    ]


def test_what_a_gpu_showed_is_counted_with_its_name() -> None:
    pairs = [{"kind": "POOLING", "attribute": "a", "error": 0.5}, {"kind": "RESIZE", "attribute": "b", "error": 1e-3}]
    zoo = [{"name": "a", "error": 0.0}, {"name": "b", "wrong": "output 0"}, {"name": "c", "refused": "by export"}]
    suite = {"counts": {"x": {"passed": 3, "failed": 1}}, "not_passed": {"x::y": "no"}, "only": ""}
    results = [{"builds": []}, {"attribute_pairs": pairs}, {"zoo_gpu": zoo}, suite, {**suite, "only": "part"}]
    (row,) = version_tables.rows([_result("1.4.0.76", **each) for each in results])
    assert row[2:] == [
        "3 passed, 1 failed (H100, TF32)",
        "1 right, 1 wrong (H100, TF32)",
        "POOLING.a of 2 pairs (H100)",
    ]
