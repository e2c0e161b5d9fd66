"""Files of every version of the format stay loadable, whichever library built their engines."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline
from pipeline.artifact.inspect import inspect
from pipeline.artifact.manifest import SCHEMA

GOLDEN = Path(__file__).parent / "golden"
SHA256 = {
    1: "acf9c5923b25066e4a91e69ff5be18bd82ea706604ad52146e36fef773a71c5b",
    2: "7e72e715f1a59c34aa2c73f25bb987da97d2786f289d51a62898fd72df0aff88",
}
"""Golden files are never written again: a reader that only reads what it writes is none."""

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
versions = pytest.mark.parametrize("schema", range(1, SCHEMA + 1))


@versions
def test_there_is_a_file_of_each_version_as_it_was_written(schema: int) -> None:
    assert hashlib.sha256((GOLDEN / f"schema{schema}.trtp").read_bytes()).hexdigest() == SHA256[schema]


@versions
def test_it_loads_and_gives_what_it_gave(schema: int) -> None:
    program = pipeline.load(GOLDEN / f"schema{schema}.trtp")
    with np.load(GOLDEN / f"schema{schema}.npz") as known:
        module = program.module(executor="reference")
        found = module(torch.from_numpy(known["x"]))
        np.testing.assert_allclose(found["logits"].numpy(), known["logits"], rtol=1e-5, atol=1e-6)
        for i, part in enumerate(found["parts"]):
            np.testing.assert_array_equal(np.asarray(part), known[f"part{i}"])
        assert int(module(torch.from_numpy(known["x"]))["parts"][2]) == 2, "the buffer counts on"


@versions
def test_it_prints_and_is_kept_again(schema: int, tmp_path: Path) -> None:
    program = pipeline.load(GOLDEN / f"schema{schema}.trtp")
    assert "erfinv" in program.report()
    assert f"format {schema}" in str(inspect(GOLDEN / f"schema{schema}.trtp"))
    program.save(tmp_path / "again.trtp")
    assert pipeline.load(tmp_path / "again.trtp").report() == program.report()


@versions
def test_it_can_be_refitted(schema: int) -> None:
    program = pipeline.load(GOLDEN / f"schema{schema}.trtp")
    zeros = {name: torch.zeros_like(program.program.parameters[name]) for name in ("weight", "bias")}
    found = pipeline.refit_module_weights(program, zeros).module(executor="reference")(torch.ones(2, 8))
    y = torch.full((2, 8), 0.5)
    expected = (torch.erfinv(y) + y).sin().tanh()
    torch.testing.assert_close(found["logits"], expected, rtol=1e-5, atol=1e-6)


@versions
def test_an_engine_of_another_library_does_not_stop_it(schema: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.artifact import load

    monkeypatch.setattr(load, "has_gpu", lambda: False)
    program = pipeline.load(GOLDEN / f"schema{schema}.trtp")
    assert {engine.library for engine in program.engines} == {"tensorrt_rtx 1.4.0.76"}
    program(torch.ones(2, 8))
