"""A model repository for Triton: its configuration says what the program takes, its model.py gives what that gives."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import nn

import pipeline
from pipeline.artifact.serving import serve_config
from pipeline.cli.commands import main
from tests.artifact.pbtxt import parsed
from tests.artifact.programs import Counter

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")


class Heads(nn.Module):
    """Rows and a mask go in; a dict of two comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        """[n, 8], [n, 8] of bool -> logits [n, 3], found [n, 8] of bool"""
        return {"logits": self.linear(rows.masked_fill(mask, 0.0)), "found": ~mask}


class Sizes(nn.Module):
    """A number, a tensor without dims and a size that is a result."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor, ids: torch.Tensor) -> tuple[Any, ...]:
        """[m, 4], [], [k] of int64"""
        return x.sum() * scale, (ids * 2).to(torch.int32), x.shape[0] * 2, x.bfloat16()


def kept(folder: Path, model: nn.Module, args: tuple[Any, ...]) -> Path:
    """The program, kept."""
    pipeline.default()(model.eval(), args=args).save(folder / "model-a.trtp")
    return folder / "model-a.trtp"


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """A program whose requests can be joined."""
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    mask = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8), dtype=torch.bool)

    class Same(Heads):
        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
            """As it was, with one batch."""
            torch._check(rows.shape[0] == mask.shape[0])
            return super().forward(rows, mask)

    return kept(tmp_path, Same(), (rows, mask))


def message(path: Path) -> dict[str, Any]:
    return parsed(path.read_text())


def test_the_configuration_says_names_dtypes_ranges_and_batching(heads: Path, tmp_path: Path) -> None:
    serve_config(heads, tmp_path / "models")
    found = message(tmp_path / "models" / "model_a" / "config.pbtxt")
    assert (found["name"], found["backend"], found["max_batch_size"]) == (["model_a"], ["python"], [16])
    assert found["input"] == [
        {"name": ["rows"], "data_type": ["TYPE_FP32"], "dims": [8]},
        {"name": ["mask"], "data_type": ["TYPE_BOOL"], "dims": [8]},
    ]
    assert found["output"] == [
        {"name": ["logits"], "data_type": ["TYPE_FP32"], "dims": [3]},
        {"name": ["found"], "data_type": ["TYPE_BOOL"], "dims": [8]},
    ]
    assert found["dynamic_batching"] == [{"preferred_batch_size": [4]}]
    parameters = {row["key"][0]: row["value"][0]["string_value"][0] for row in found["parameters"]}
    assert parameters == {"range.rows.0": "1..4..16", "range.mask.0": "1..4..16", "FORCE_CPU_ONLY_INPUT_TENSORS": "no"}


def test_what_cannot_be_joined_has_all_its_dims(tmp_path: Path) -> None:
    x = pipeline.Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(6, 4))
    ids = pipeline.Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,), dtype=torch.int64)
    found = parsed(str(serve_config(kept(tmp_path, Sizes(), (x, torch.tensor(2.0), ids)), tmp_path, "sizes")))
    assert found["max_batch_size"] == [0]
    assert "dynamic_batching" not in found
    assert [row["dims"] for row in found["input"]] == [[-1, 4], [1], [-1]]
    assert [(row["data_type"], row["dims"]) for row in found["output"]] == [
        (["TYPE_FP32"], [1]),
        (["TYPE_INT32"], [-1]),
        (["TYPE_INT64"], [1]),
        (["TYPE_BF16"], [-1, 4]),
    ]


def test_a_program_that_remembers_calls_is_not_batched(tmp_path: Path) -> None:
    found = serve_config(kept(tmp_path, Counter(), (torch.randn(2, 8),)), tmp_path, operators={"torchvision", "mine"})
    assert found.batch is None
    allowed = {"key": ["ALLOW_OPERATORS"], "value": [{"string_value": ["mine torchvision"]}]}
    assert allowed in parsed(str(found))["parameters"]
    told = attrs.evolve(found, obstacle="one line\nanother: [ 1 ]")  # words of an error, which a file may have
    assert "# requests are not joined: one line another: [ 1 ]" in str(told).splitlines()


class Rows(nn.Module):
    """One of `MIXING` or `APART`, with a linear layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        """[n, 8] -> [n, …]"""
        return self.function(self.linear(x))


APART = {
    "linear": lambda x: (x.softmax(-1), x > 0),
    "half": lambda x: x.half() @ torch.ones(8, 8, dtype=torch.half),
    "infinite": lambda x: x.masked_fill(x > 0, float("-inf")),
    "nan": lambda x: (x - 9).log(),
}
MIXING = {
    "softmax": lambda x: x.softmax(0),
    "mean": lambda x: x - x.mean(0),
    "sum": lambda x: x.cumsum(0),
    "flip": lambda x: x.flip(0),
    "products": lambda x: (x @ x.t()) @ x,
    "size": lambda x: x * x.shape[0],
    "whole": lambda x: (x > x.mean(), x),
    "infinite": lambda x: x / (x.shape[0] - 1),
    "ragged": lambda x: x[:, None] * torch.ones(1, 3, 1) + x.amax(),
}


def rows_config(folder: Path, function: Any, **options: Any) -> Any:
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    torch.manual_seed(0)
    return serve_config(kept(folder, Rows(function), (rows,)), folder / "models", **options)


@pytest.mark.parametrize("name", APART)
def test_rows_that_are_computed_by_themselves_are_batched(name: str, tmp_path: Path) -> None:
    found = rows_config(tmp_path, APART[name])
    assert (found.obstacle, found.batch.max) == ("", 16)
    assert rows_config(tmp_path, APART[name], batching=False).batch is None


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_depend_on_each_other_are_not_batched(name: str, tmp_path: Path) -> None:
    found = rows_config(tmp_path, MIXING[name])
    assert found.batch is None
    assert "depends on the other rows of a call" in str(found)
    assert parsed(str(found))["max_batch_size"] == [0]
    assert rows_config(tmp_path, MIXING[name], batching=True).batch.max == 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="engines alone run on a GPU")
def test_what_cannot_be_tried_is_not_batched(tmp_path: Path) -> None:
    rows = pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
    pipeline.default()(nn.Linear(8, 4).eval(), args=(rows,)).save(tmp_path / "p.trtp", weights="none")
    found = serve_config(tmp_path / "p.trtp", tmp_path / "models")
    assert found.batch is None
    assert "depends on others failed" in str(found)
    assert "saved without weights" in found.obstacle
    assert main(["serve-config", str(tmp_path / "p.trtp"), "-o", str(tmp_path / "models"), "--batching"]) == 0
    assert message(tmp_path / "models" / "p" / "config.pbtxt")["max_batch_size"] == [16]


class Tensor:
    """``pb_utils.Tensor``, of a numpy array or a torch tensor."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    @staticmethod
    def from_dlpack(name: str, capsule: Any) -> Tensor:
        """From memory that another library has."""
        return Tensor(name, torch.from_dlpack(capsule))

    def to_dlpack(self) -> Any:
        """The memory: bools are bytes, as Triton has them."""
        value = self.value.view(torch.int8) if self.value.dtype == torch.bool else self.value
        return torch.utils.dlpack.to_dlpack(value)


class Response:
    """``pb_utils.InferenceResponse``"""

    def __init__(self, tensors: list[Tensor], error: Any = None) -> None:
        self.tensors, self.error = {tensor.name: tensor.value for tensor in tensors}, error


def backend() -> ModuleType:
    """What Triton's Python backend has in the place of ``triton_python_backend_utils``."""
    made: Any = ModuleType("triton_python_backend_utils")
    made.Tensor, made.InferenceResponse, made.TritonError = Tensor, Response, RuntimeError
    made.get_input_tensor_by_name = lambda request, name: Tensor(name, request[name])
    return made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the model.py of a repository, as Triton does on a CPU."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend())

    def started(folder: Path) -> Any:
        spec = importlib.util.spec_from_file_location("served_model", folder / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = message(folder / "config.pbtxt")
        config = {"max_batch_size": str(found["max_batch_size"][0])}
        config["output"] = [{"name": row["name"][0]} for row in found["output"]]
        model = module.TritonPythonModel()
        kind = {"model_instance_kind": "CPU", "model_instance_device_id": "0"}
        model.initialize({"model_config": json.dumps(config), **kind})
        return model

    return started


def test_requests_are_joined_and_told_apart_again(heads: Path, tmp_path: Path, server: Any) -> None:
    serve_config(heads, tmp_path / "models")
    model, program = server(tmp_path / "models" / "model_a"), pipeline.load(heads)
    requests = [{"rows": torch.randn(n, 8), "mask": torch.rand(n, 8) > 0.5} for n in (1, 3, 2)]
    calls, module = [], model.module
    model.module = lambda *args, **kwargs: calls.append(args) or module(*args, **kwargs)
    for request, response in zip(requests, model.execute(requests), strict=True):
        expected = program(*request.values())
        assert response.error is None
        torch.testing.assert_close(response.tensors["logits"], expected["logits"])
        assert torch.equal(response.tensors["found"], expected["found"])
    assert len(calls) == 1
    wrong = model.execute([{"rows": torch.randn(40, 8), "mask": torch.rand(40, 8) > 0.5}, requests[0]])
    assert all("16" in str(response.error) for response in wrong)
    model.finalize()


def test_numbers_and_tensors_without_dims_cross(tmp_path: Path, server: Any) -> None:
    x = pipeline.Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(6, 4))
    ids = pipeline.Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,), dtype=torch.int64)
    serve_config(kept(tmp_path, Sizes(), (x, torch.tensor(2.0), ids)), tmp_path, "sizes")
    given = {"x": torch.ones(3, 4), "scale": torch.tensor([3.0]), "ids": torch.arange(2)}
    (response,) = server(tmp_path / "sizes").execute([given])
    found = list(response.tensors.values())
    assert (found[0].tolist(), found[1].tolist(), found[2].tolist()) == ([36.0], [0, 2], [6])
    assert found[3].dtype == torch.bfloat16


def test_weights_beside_the_program_come_along(tmp_path: Path, server: Any) -> None:
    program = pipeline.default()(nn.Linear(8, 3).eval(), args=(torch.randn(2, 8),))
    program.save(tmp_path / "p.trtp", weights=tmp_path / "w.safetensors")
    serve_config(tmp_path / "p.trtp", tmp_path / "models")
    assert not server(tmp_path / "models" / "p").execute([{"input": torch.ones(2, 8)}])[0].error
    (tmp_path / "inner").mkdir()
    program.save(tmp_path / "inner" / "p.trtp", weights=tmp_path / "w.safetensors")
    with pytest.raises(pipeline.ArtifactError, match="has its weights in another folder"):
        serve_config(tmp_path / "inner" / "p.trtp", tmp_path / "more")


def test_what_triton_has_no_name_for_is_told(tmp_path: Path) -> None:
    class Complex(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"spectrum": x.to(torch.complex64)}

    with pytest.raises(pipeline.ArtifactError, match="spectrum is complex64"):
        serve_config(kept(tmp_path, Complex(), (torch.randn(2, 8),)), tmp_path / "models")
    program = kept(tmp_path, nn.ReLU(), (torch.randn(2, 8),))
    for name in ("../x", "..", "."):
        with pytest.raises(pipeline.ArtifactError, match="which Triton does not accept"):
            serve_config(program, tmp_path / "models", name)
    assert not (tmp_path / "config.pbtxt").exists() and not (tmp_path / "models").exists()


def test_the_command_writes_and_tells(heads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-config", str(heads), "-o", str(tmp_path / "models"), "--name", "heads"]) == 0
    assert {path.name for path in (tmp_path / "models" / "heads" / "1").iterdir()} == {"model.py", "model.trtp"}
    assert 'name: "heads"' in capsys.readouterr().out
    assert main(["serve-config", str(tmp_path / "none.trtp"), "-o", str(tmp_path / "models")]) != 0
    assert main(["serve-config", str(heads), "-o", str(heads)]) != 0


@pytest.mark.parametrize("text", ["name 3", "a: {", "a: [", "}", "a: \x01", "3: 4"])
def test_the_parser_refuses_what_is_no_message(text: str) -> None:
    with pytest.raises((ValueError, StopIteration)):
        parsed(text)
