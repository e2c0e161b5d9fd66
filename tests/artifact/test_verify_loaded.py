"""A loaded program is verified by what its file has of the model: right ones agree, wrong ones do not, and what lacks
something says what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve

import pipeline
from pipeline.cli import main
from pipeline.trt import trt
from tests.artifact import own_operators
from tests.artifact.programs import Function
from tests.artifact.test_elsewhere import checked
from tests.artifact.test_files import CASES, compiled, kept

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
GOLDEN = Path(__file__).parent / "golden"
X = torch.linspace(-1, 1, 16).reshape(2, 8)


@pytest.mark.parametrize("name", ["dynamic", "fallback", "mutation", "written input", "branches", "loop", "data"])
def test_a_loaded_program_agrees_with_eager(name: str, tmp_path: Path) -> None:
    made = compiled(CASES[name])
    program = kept(made, tmp_path)
    assert str(program.program.source) == str(made.program.source)
    assert program.program.source.digest == made.program.source.digest
    agreement = pipeline.verify(executor="reference")(program).agreement
    assert agreement is not None and agreement.holds and agreement.rows


@pipeline.dynamo_tensorrt_converter(torch.ops.aten.sin.default, priority=pipeline.ConverterPriority.HIGH)
def cosine(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """sin(Tensor self) -> Tensor, wrong"""
    return ctx.net.add_unary(args[0], trt.UnaryOperation.COS).get_output(0)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose engine is wrong."""
    path = tmp_path_factory.mktemp("wrong") / "wrong.trtp"
    registry = pipeline.DYNAMO_CONVERTERS.register(cosine)
    pipeline.default(registry=registry)(Function(lambda m, x: m.linear(x).sin()).eval(), (X,)).save(path)
    return path


def test_a_loaded_program_that_is_wrong_is_found_and_not_healed(wrong: Path) -> None:
    program = pipeline.load(wrong)
    with pytest.raises(pipeline.AgreementError, match="1 of 1 outputs are wrong"):
        pipeline.verify(executor="reference")(program)
    with pytest.raises(pipeline.PipelineError, match="stores no converters to compile"):
        pipeline.verify("heal", executor="reference")(program)
    with pytest.raises(pipeline.PipelineError, match="stores no converters to compile"):
        pipeline.bisect(program)


def test_other_weights_are_verified_as_well(tmp_path: Path) -> None:
    program = kept(compiled(CASES["whole"]), tmp_path)
    other = {name: torch.randn_like(tensor) for name, tensor in program.program.parameters.items()}
    refitted = pipeline.refit_module_weights(program, other)
    assert pipeline.verify(executor="reference")(refitted).agreement.holds
    mixed = evolve(program, partitioned=evolve(program.partitioned, program=refitted.program))
    mixed = evolve(mixed, refit_map=evolve(program.refit_map, recipes={}), literals=_weights(program))
    with pytest.raises(pipeline.AgreementError):
        pipeline.verify(executor="reference")(mixed)


def _weights(program: pipeline.Compiled) -> Any:
    """The weights that the engines have, as tensors that come from no parameter."""
    return {name: recipe.evaluate(program.program.parameters) for name, recipe in program.refit_map.items()}


def test_what_a_file_lacks_is_said(tmp_path: Path) -> None:
    old = pipeline.load(GOLDEN / "schema1.trtp")
    with pytest.raises(pipeline.PipelineError, match="the loaded file has no program for eager PyTorch"):
        pipeline.verify()(old)
    with pytest.raises(pipeline.PipelineError, match="was saved without weights"):
        pipeline.verify()(kept(compiled(CASES["whole"]), tmp_path, weights="none"))


def test_an_operator_that_is_not_there_is_missed_when_it_is_verified(tmp_path: Path) -> None:
    registry = pipeline.DYNAMO_CONVERTERS.register(own_operators.convert_negated)
    compile = pipeline.default(registry=registry, require_full_compilation=True)
    compile(Function(lambda m, x: own_operators.negated(m.linear(x))).eval(), (X,)).save(tmp_path / "p.trtp")
    code = """
import sys, pipeline
program = pipeline.load(sys.argv[1], {'tests_artifact'})
try:
    pipeline.verify(executor="reference")(program)
except pipeline.PipelineError as error:
    print(error.hint)
import tests.artifact.own_operators
print(pipeline.verify(executor="reference")(pipeline.load(sys.argv[1], {"tests_artifact"})).agreement.holds)
"""
    first, second = checked(code, tmp_path / "p.trtp").splitlines()
    assert first.startswith("import the libraries of the model's operators, and allow these with pipeline.load(")
    assert second == "True"


def test_the_command_verifies_a_file(wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(CASES["whole"]).save(tmp_path / "p.trtp")
    assert main(["verify", str(tmp_path / "p.trtp"), "--executor", "reference"]) == 0
    assert capsys.readouterr().out.startswith("agrees with eager (reference executor")
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    name = pipeline.load(wrong).program.inputs[0].name
    given = ["--input", f"{name}={tmp_path / 'x.npy'}", "--executor", "reference"]
    assert main(["verify", str(tmp_path / "p.trtp"), *given]) == 0
    assert main(["verify", str(wrong), *given]) == 1
    assert "1 of 1 outputs are wrong" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none.trtp")]) == 2
