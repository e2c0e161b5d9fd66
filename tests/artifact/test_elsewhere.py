"""A program is loaded in another process, which has neither the model's code nor its libraries, and little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.artifact import own_operators
from tests.artifact.programs import Function, Pair, Result

ROOT = Path(__file__).parents[2]
X = torch.linspace(-1, 1, 16).reshape(2, 8)


def elsewhere(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, which knows this repository."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False, timeout=300)


def checked(code: str, *arguments: object) -> str:
    """What the code prints; it must not fail."""
    done = elsewhere(code, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def saved(function: Any, path: Path, **settings: Any) -> Path:
    """A function, compiled and saved."""
    pipeline.default(**settings)(Function(function).eval(), (X,)).save(path)
    return path


RECORDS = """
import sys, torch, pipeline
x = torch.linspace(-1, 1, 16).reshape(2, 8)
pair = pipeline.load(sys.argv[1])(x)
first, second = pair
assert pair.first is first is pair[0] and pair.second is pair[-1] and len(pair) == 2
assert torch.equal(second, x + 1)
result = pipeline.load(sys.argv[2])(x)
assert torch.equal(result.logits, x + 2) and result.hidden is None
for change in ("logits", "other"):
    try:
        setattr(result, change, 1)
        raise SystemExit("it was changed")
    except AttributeError:
        pass
assert not [name for name in sys.modules if name.startswith("tests")]
print(pair, result)
"""


def test_classes_that_are_not_there_are_records(tmp_path: Path) -> None:
    pair = saved(lambda m, x: Pair(m.linear(x), x + 1), tmp_path / "pair.trtp")
    result = saved(lambda m, x: Result(x + 2), tmp_path / "result.trtp")
    printed = checked(RECORDS, pair, result)
    assert printed.startswith("Pair(first=tensor(")
    assert "Result(logits=tensor(" in printed


MODEL = """
import sys, torch, pipeline
program = pipeline.load(sys.argv[1])
program.module("reference")
slow = {"pipeline.capture", "pipeline.stages", "torch._dynamo", "torch.export._trace"} & sys.modules.keys()
assert not slow, f"loading imports {slow}, which takes seconds"
given = torch.load(sys.argv[2])
found = program(**given["inputs"])
torch.testing.assert_close(found["logits"], given["logits"], rtol=1e-2, atol=1e-3)
assert found.logits is found[0] is found["logits"] is found.to_tuple()[0] and list(found) == ["logits"]
other = pipeline.refit_module_weights(program, {name: t * 0 for name, t in program.program.parameters.items()})
assert not other(**given["inputs"]).logits.any()
assert not {"transformers", "examples", "safetensors"} & {name.split(".")[0] for name in sys.modules}
"""


def test_a_model_of_transformers_runs_without_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForSequenceClassification(config).eval()
    inputs = {"input_ids": torch.arange(6)[None], "attention_mask": torch.ones(1, 6, dtype=torch.int64)}
    pipeline.default()(model, (), inputs).save(tmp_path / "bert.trtp")
    with torch.no_grad():
        torch.save({"inputs": inputs, "logits": model(**inputs).logits}, tmp_path / "given.pt")
    checked(MODEL, tmp_path / "bert.trtp", tmp_path / "given.pt")


MEMORY = """
import sys, torch, pipeline
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
pipeline.load, pipeline.default  # their modules are imported first
before = resident()
program = pipeline.load(sys.argv[1])
after = max(resident(), 0)
engines = sum(engine.nbytes for engine in program.engines)
assert engines > 60_000_000, engines
assert after - before <= 1.1 * engines + (64 << 20), (before, after, engines)
peak = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert peak - before <= 1.1 * engines + (64 << 20), (before, peak, engines)
print(after - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_engines_and_weights_are_mapped(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).eval()
    pipeline.default()(model, (torch.randn(1, 2048),)).save(tmp_path / "big.trtp")
    assert int(checked(MEMORY, tmp_path / "big.trtp")) < 32 << 20


def test_an_operator_that_is_not_there_is_named_with_its_library(tmp_path: Path) -> None:
    path = saved(lambda m, x: own_operators.twice(m.linear(x)), tmp_path / "p.trtp", min_block_size=1)
    load = """import sys, torch, pipeline
print(pipeline.load(sys.argv[1], {"tests_artifact"})(torch.ones(2, 8)).shape)"""
    failed = elsewhere(load, path)
    assert "calls tests_artifact.twice.default, an operator that this process does not have" in failed.stderr
    assert "import tests.artifact.own_operators, which defines it, before pipeline.load" in failed.stderr
    assert checked(f"import tests.artifact.own_operators\n{load}", path) == "torch.Size([2, 8])\n"
    command = "import sys, pipeline.cli; sys.exit(pipeline.cli.main(['verify', '--executor=reference', *sys.argv[1:]]))"
    refused = elsewhere(f"import tests.artifact.own_operators; {command}", path)
    assert "the operator tests_artifact.twice.default is of the library tests_artifact, which is not" in refused.stderr
    assert "load it with operators={'tests_artifact'} (--allow-operators tests_artifact)" in refused.stderr
    allowed = checked(f"import tests.artifact.own_operators; {command}", path, "--allow-operators", "tests_artifact")
    assert allowed.startswith("agrees with eager")
    described = checked("import sys, pipeline.cli; sys.exit(pipeline.cli.main(['inspect', sys.argv[1]]))", path)
    assert "needs the library tests.artifact.own_operators" in described


def test_an_operator_of_an_engine_needs_no_library(tmp_path: Path) -> None:
    registry = pipeline.DYNAMO_CONVERTERS.register(own_operators.convert_negated)
    compile = pipeline.default(registry=registry, require_full_compilation=True)
    program = compile(Function(lambda m, x: own_operators.negated(m.linear(x))).eval(), (X,))
    program.save(tmp_path / "p.trtp")
    code = "import sys, torch, pipeline; p = pipeline.load(sys.argv[1]); p(torch.ones(2, 8)); print(p.report())"
    assert checked(code, tmp_path / "p.trtp") == f"{program.report()}\n"


def killed(folder: Path, times: int) -> str:
    """Kills a process that saves, so many times."""
    for name, bias in (("a", 0.0), ("b", 1.0)):
        model = Function(lambda m, x: m.linear(x))
        nn.init.constant_(model.linear.bias, bias)
        pipeline.default()(model.eval(), (X,)).save(folder / f"{name}.trtp")
    script = Path(__file__).with_name("killed_saves.py").read_text(encoding="utf-8")
    return checked(script, folder, times)


def test_a_process_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    assert "seen" in killed(tmp_path, 12)


@pytest.mark.slow
def test_a_process_that_is_killed_200_times_leaves_a_whole_file(tmp_path: Path) -> None:
    assert "seen [0, 1]" in killed(tmp_path, 200)
