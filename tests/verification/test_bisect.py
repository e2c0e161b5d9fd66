"""`pipeline.bisect`: faults of one node and of two together, its record, its script."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

import pipeline
from pipeline.runtime.reference import executor
from pipeline.trt import has_gpu
from tests.meta.executor_faults import factor, planted
from tests.meta.executor_models import compiled


@contextmanager
def wrong_together(*names: str) -> Iterator[None]:
    """While it lasts, a network that has all of these layers is off by a tenth: as kernels that are fused wrongly."""
    run = executor.run_plan

    def wrong(plan: Any, *rest: Any) -> Any:
        results = run(plan, *rest)
        if not set(names) <= {layer.name for layer in plan.network.layers}:
            return results
        return {name: value * 1.1 if value.is_floating_point() else value for name, value in results.items()}

    with patch.object(executor, "run_plan", wrong):
        yield


@pytest.mark.parametrize(
    ("toy", "names"),
    [
        ("images", ("avg_pool2d", "max_pool2d")),
        ("images", ("leaky_relu", "avg_pool2d")),
        ("tokens", ("tanh", "mul", "sub")),
    ],
)
def test_nodes_that_are_wrong_together_are_one_fault(toy: str, names: tuple[str, ...]) -> None:
    program = compiled(toy)
    with wrong_together(*names):
        found = pipeline.bisect(program, executor="reference")
    assert [set(fault.nodes) for fault in found.faults] == [set(names)]
    assert found.complete
    assert found.builds <= len(names) * (math.log2(len(program.coverage.converted)) + 4)


def test_the_record() -> None:
    with planted(factor, "SOFTMAX"):
        found = pipeline.bisect(compiled("tokens"), executor="reference")
    assert found.nodes == ("softmax",) and found.targets == ("aten.softmax.int",)
    assert "executor_models.py" in found.lines[0] and "softmax(-1)" in found.lines[0]
    assert found.faults[0].failures and not found.agreement.holds
    for words in ("1 fault in", "aten.softmax.int at node softmax", "executor_models.py", "WRONG"):
        assert words in str(found)
    with pytest.raises(AttributeError):
        found.builds = 3  # type: ignore[misc]


def test_a_model_is_compiled_by_the_pipeline_that_is_given() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)).eval(), torch.randn(2, 4)
    stages = list[str]()
    compile = pipeline.default(optimization_level=0).observed_by(lambda event: stages.append(event.stage))
    with planted(factor, "SOFTMAX"):
        found = pipeline.bisect(model, (x,), compile=compile | pipeline.verify(), executor="reference")
    assert found.targets == ("aten.softmax.int",)
    assert "verify" not in stages and "refit_map" in stages
    assert "optimization_level=0" in found.script


def test_the_limit_of_builds_is_kept() -> None:
    with planted(factor, "SOFTMAX"):
        found = pipeline.bisect(compiled("tokens"), executor="reference", limit=3)
    assert found.builds <= 3 and not found.complete
    assert "softmax" in found.nodes and "limit" in str(found)


def test_a_pipeline_that_gives_no_records_between_is_refused() -> None:
    inner = pipeline.default()
    whole = pipeline.Pipeline((inner,))
    with pytest.raises(pipeline.PipelineError, match="cannot be compiled again"):
        pipeline.bisect(nn.ReLU().eval(), (torch.ones(2),), compile=whole, executor="reference")


def test_misuse_is_told_before_the_search() -> None:
    model, x = nn.ReLU().eval(), torch.ones(2)
    with pytest.raises(ValueError, match="executor must be one of None, 'tensorrt', 'reference', got 'cpu'"):
        pipeline.bisect(model, (x,), executor="cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"returns a Compiled, .* got one that ends with the stage 'convert'"):
        pipeline.bisect(model, (x,), compile=pipeline.default().until("convert"))
    with pytest.raises(TypeError, match=r"bisected without args, kwargs and dynamic_shapes: pass inputs=\[\(x,\)\]"):
        pipeline.bisect(compiled("tokens"), (x,))
    with pytest.raises(TypeError, match=r"bisected without args"):
        pipeline.bisect(compiled("tokens"), x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"returns a Compiled, .* got one without stages"):
        pipeline.bisect(model, (x,), compile=pipeline.Pipeline())


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_engines_are_not_verified_without_a_gpu() -> None:
    with pytest.raises(pipeline.ExecutionError, match="TensorRT engines need a GPU"):
        pipeline.verify(executor="tensorrt")(compiled("tokens"))


def test_a_layer_that_does_not_run_is_found_and_healed() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("cuDNN graph compilation failed")

    with planted(fails, "SOFTMAX"):
        with pytest.raises(pipeline.AgreementError, match=r"WRONG: the program raises .*cuDNN graph"):
            pipeline.verify(executor="reference")(compiled("tokens"))
        assert pipeline.bisect(compiled("tokens"), executor="reference").nodes == ("softmax",)
        healed = pipeline.verify("heal", executor="reference")(compiled("tokens"))
    assert [row.node for row in healed.coverage.healed] == ["softmax"]


@pytest.mark.parametrize(
    ("toy", "kind", "layer"),
    [
        ("images", "CONVOLUTION", "second/convolution_default_1"),
        ("images", "RESIZE", "upsample_bilinear2d"),
        ("tokens", "SELECT", "where_self"),
        ("choices", "TOPK", "topk:topk"),
        ("tokens", "NORMALIZATION", "norm/layer_norm"),
    ],
)
def test_the_script_shows_the_fault_and_nothing_without_it(
    toy: str, kind: str, layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(right: Any, row: Any, inputs: Any, weights: Any) -> Any:
        return tuple(v * 1.05 if v.is_floating_point() else v for v in right(row, inputs, weights))

    faulty = kind if kind != "TOPK" else "GATHER"
    layers = frozenset({layer}) if kind != "TOPK" else frozenset({"topk:gather_v2"})
    with planted(wrong, faulty, layers):
        script = pipeline.bisect(compiled(toy), executor="reference").script
    assert len(script.splitlines()) <= 45
    with planted(wrong, faulty), pytest.raises(SystemExit) as ended:
        exec(compile_script(script), {"__name__": "__main__"})
    assert ended.value.code == 1 and "WRONG" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        exec(compile_script(script), {"__name__": "__main__"})
    assert ended.value.code == 0


def compile_script(text: str) -> Any:
    return compile(text, "fault.py", "exec")


def test_the_script_runs_by_itself(tmp_path: Path) -> None:
    with planted(factor, "ACTIVATION", frozenset({"tanh"})):
        script = pipeline.bisect(compiled("tokens"), executor="reference").script
    path = tmp_path / "fault.py"
    path.write_text(script)
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "agrees with eager" in ended.stdout
