"""EPContext: the ONNX file has the plan under the model's names, and other programs are refused with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

import pipeline
from pipeline.artifact import epcontext
from pipeline.cli.commands import main
from pipeline.frozen import FrozenDict
from tests.artifact.programs import Counter

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")


class Rows(nn.Module):
    """Rows and a mask of one dynamic batch; a constant result and an input that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor, mask: torch.Tensor, unread: torch.Tensor) -> dict[str, Any]:
        """[n, 8], [n, 8] of bool, [2] -> logits [n, 3], found [n, 8] of bool, hidden None"""
        torch._check(rows.shape[0] == mask.shape[0])
        return {"logits": self.linear(rows.masked_fill(mask, 0.0)), "hidden": None, "found": ~mask}


class Returns(nn.Module):
    """What a function returns."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        """[n, 8] -> what the function returns"""
        return self.function(x)


def rows(dtype: torch.dtype = torch.float32) -> pipeline.Input:
    return pipeline.Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8), dtype=dtype)


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    """A program that has the form."""
    return pipeline.compile(Rows().eval(), args=(rows(), rows(torch.bool), torch.ones(2)))


def values(ports: Any) -> list[tuple[str, int, list[Any]]]:
    """The name, dtype and sizes of each input or output."""
    kinds = ((port.name, port.type.tensor_type) for port in ports)
    return [(n, t.elem_type, [d.dim_param or d.dim_value for d in t.shape.dim]) for n, t in kinds]


def test_the_file_has_names_sizes_and_the_plan(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    compiled.save(tmp_path / "model.onnx", format="epcontext")
    model = onnx.load(tmp_path / "model.onnx")
    batch = str(compiled.program.inputs[0].shape[0])
    float32, boolean = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
    assert values(model.graph.input) == [
        ("rows", float32, [batch, 8]),
        ("mask", boolean, [batch, 8]),
        ("unread", float32, [2]),
    ]
    assert values(model.graph.output) == [("logits", float32, [batch, 3]), ("found", boolean, [batch, 8])]
    (node,) = model.graph.node
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")
    assert (list(node.input), list(node.output)) == (["rows", "mask"], ["logits", "found"])
    assert found.pop("ep_cache_context") == bytes(compiled.engines[0])
    assert found.pop("ep_sdk_version").decode() == compiled.engines[0].library.split()[1]
    rest = {"main_context": 1, "embed_mode": 1, "hardware_architecture": b"80+", "partition_name": b"engine_0"}
    assert found == rest


def test_the_plan_may_be_a_file_in_the_same_folder(
    compiled: pipeline.Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans").mkdir()
    compiled.save("model.trtp")
    assert main(["export", "model.trtp", "--format", "epcontext", "--plan", "plans/a.plan"]) == 0
    assert capsys.readouterr().out == "written to model.onnx\n"
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in onnx.load("model.onnx").graph.node[0].attribute}
    assert (attributes["embed_mode"], attributes["ep_cache_context"]) == (0, b"plans/a.plan")
    assert Path("plans/a.plan").read_bytes() == bytes(compiled.engines[0])
    for plan, words in (("../a.plan", "outside"), ("model.onnx", "itself"), ("none", "not a file name")):
        with pytest.raises(pipeline.ArtifactError, match=words):
            compiled.save("model.onnx", plan, format="epcontext")
    monkeypatch.setattr(epcontext, "LARGEST", 100)
    with pytest.raises(pipeline.ArtifactError, match=r"an ONNX file can have at most 2 GiB\n.*weights='model.plan'"):
        compiled.save("model.onnx", format="epcontext")


REFUSED = {
    "buffer": (Counter(), torch.ones(2, 8), "it updates the buffer (count|last)"),
    "fallback": (Returns(lambda x: x.sin().signbit()), torch.ones(2, 8), "an operator runs in PyTorch.*signbit"),
    "size": (Returns(lambda x: (x.sin(), x.shape[0])), rows(), "output.1 is an input or a constant|is a number"),
    "input": (Returns(lambda x: (x.sin(), x)), torch.ones(2, 8), "output.1 is an input or a constant"),
    "twice": (Returns(lambda x: [x.sin()] * 2), torch.ones(2, 8), "output.0 and output.1 are the same tensor"),
    "written": (Returns(lambda x: x.add_(1).sin()), torch.ones(2, 8), r"write or check x \(input\)"),
    "dtype": (Returns(lambda x: x.double().sin()), torch.ones(2, 8), "float64, which ONNX Runtime's provider"),
    "weights": (nn.Linear(8, 32), torch.ones(2, 8), "engine reads p_weight, which is not an input"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_programs_are_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    model, x, words = REFUSED[case]
    compile = pipeline.default(min_block_size=1, truncate_double=True)
    if case == "weights":
        compile = compile.insert(pipeline.shared_weights(), after="partition")
    made = compile(model.eval(), args=(x,))
    with pytest.raises(pipeline.ArtifactError, match=words):
        made.save(tmp_path / "model.onnx", format="epcontext")
    assert not list(tmp_path.iterdir())


def test_other_plans_are_refused_with_the_reason(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    engine, network = compiled.engines[0], compiled.networks[0]
    for changed, words in (
        ({"engines": (evolve(engine, stripped=True),)}, "plan was built without weights"),
        ({"engines": (evolve(engine, bindings=FrozenDict({"logits": "add"})),)}, "has logits under the name .add."),
        ({"networks": (evolve(network, other_profiles=network.profiles),)}, "2 profiles"),
    ):
        with pytest.raises(pipeline.ArtifactError, match=words):
            evolve(compiled, **changed).save(tmp_path / "model.onnx", format="epcontext")
    with pytest.raises(ValueError, match=re.escape("format is 'onnx': expected 'trtp' or 'epcontext'")):
        compiled.save(tmp_path / "model.onnx", format="onnx")  # type: ignore[arg-type]
