"""ONNX files are compiled: what onnx's reference evaluator computes, by the file's names; others name the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.cli.commands import main

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnx2fx", reason="the extra onnx is not installed")
reference = pytest.importorskip("onnx.reference")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def values(rows: dict[str, tuple[int, list[Any]]]) -> list[Any]:
    return [helper.make_tensor_value_info(name, *row) for name, row in rows.items()]


def model(nodes: list[Any], inputs: Any, outputs: Any, weights: dict[str, Any], **more: Any) -> Any:
    """An ONNX model; weights that are among the inputs are those of a file of ONNX's first versions."""
    held = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), held)
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(name, 1) for name in ("local", "com.acme"))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def linear(dtype: Any = np.float32, batch: Any = 2) -> Any:
    """Gemm and Softmax, with an index: names that Python does not have, weights that are inputs as well."""
    kind, rng = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["x.1", "at"], ["taken"], axis=1, name="take"),
        helper.make_node("Gemm", ["taken", "w", "b"], ["the/logits"], transB=1),
        helper.make_node("Softmax", ["the/logits"], ["p"]),
    ]
    weights = {"w": rng.normal(size=(4, 3)).astype(dtype), "b": np.ones(4, dtype)}
    inputs = {"x.1": (kind, [batch, 8]), "at": (INT64, [3]), "b": (kind, [4])}
    return model(nodes, inputs, {"p": (kind, [batch, 4]), "the/logits": (kind, [batch, 4])}, weights)


def function() -> Any:
    """A function of the file's own, and a branch that a constant decides."""
    double = helper.make_function(
        "local", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    nodes = [helper.make_node("Double", ["x"], ["y"], domain="local"), helper.make_node("Sin", ["y"], ["z"])]
    return model(nodes, {"x": (FLOAT, [2, 8])}, {"z": (FLOAT, [2, 8])}, {}, functions=[double])


def numbered() -> Any:
    """Numbers that the nodes make of a size, and then add."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Squeeze", ["n"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["every"]),
        helper.make_node("Gather", ["x", "every"], ["same"]),
        helper.make_node("Relu", ["same"], ["y"]),
    ]
    numbers = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    return model(nodes, {"x": (FLOAT, ["batch", 8])}, {"y": (FLOAT, ["batch", 8])}, numbers)


def sizes() -> Any:
    """Sizes that the nodes compute, as a transformer's of a dynamic batch; and a shape that the file has wrong."""
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Concat", ["n", "one", "six"], ["to"], axis=0),
        helper.make_node("Expand", ["token", "to"], ["tokens"], name="same"),
        helper.make_node("Concat", ["n", "two", "six"], ["rows"], axis=0),
        helper.make_node("Reshape", ["x", "rows"], ["y"], name="same"),
        helper.make_node("Concat", ["tokens", "y"], ["z"], axis=1),
        helper.make_node("Mul", ["n", "three"], ["3n"]),
        helper.make_node("Concat", ["3n", "six"], ["flat"], axis=0),
        helper.make_node("Reshape", ["z", "flat"], ["f"]),
        helper.make_node("Squeeze", ["n"], ["limit"]),
        helper.make_node("Range", ["zero", "limit", "step"], ["r"]),
        helper.make_node("Gather", ["f", "r"], ["out"], axis=0),
    ]
    numbers = {name: np.array([n]) for name, n in {"one": 1, "two": 2, "three": 3, "six": 6}.items()}
    scalars = {"zero": np.array(0), "step": np.array(1), "token": np.ones((1, 1, 6), np.float32)}
    made = model(
        nodes, {"x": (FLOAT, ["n", 3, 4])}, {"out": (FLOAT, ["n", 6]), "f": (FLOAT, ["m", 6])}, {**numbers, **scalars}
    )
    made.graph.value_info.extend(values({"y": (FLOAT, ["n", 7, 7]), "tokens": (FLOAT, [5, 1, 6])}))
    return made


FILES = {
    "float32": linear(),
    "float16": linear(np.float16),
    "dynamic": linear(batch="batch"),
    "function": function(),
    "sizes": sizes(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_computes_what_onnx_says(name: str, tmp_path: Path) -> None:
    file, beside = FILES[name], name == "float16"
    copy = onnx.ModelProto.FromString(file.SerializeToString())
    onnx.save(copy, tmp_path / "m.onnx", save_as_external_data=beside, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").exists() == beside
    weights = {each.name for each in file.graph.initializer}
    ports = [port for port in file.graph.input if port.name not in weights]
    rows = 5 if name in ("dynamic", "sizes") else 2
    kinds = [helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type) for port in ports]
    sizes = [[dim.dim_value or rows for dim in port.type.tensor_type.shape.dim] for port in ports]
    given = [np.resize([0, 5, 2, 7], size).astype(kind) for size, kind in zip(sizes, kinds, strict=True)]
    expected = reference.ReferenceEvaluator(file).run(None, {p.name: a for p, a in zip(ports, given, strict=True)})
    ranges = {"dynamic": (8,), "sizes": (3, 4)}
    batch = pipeline.Input(min_shape=(1, *ranges[name]), max_shape=(8, *ranges[name])) if name in ranges else None
    others = (pipeline.Input(shape=(3,), dtype=torch.int64),) if name == "dynamic" else ()
    args = () if batch is None else (batch, *others)
    compiled = pipeline.compile(tmp_path / "m.onnx", args)
    assert len(compiled.engines) == 1 and not compiled.coverage.fallback
    found = compiled(*map(torch.from_numpy, given))
    assert type(found) is dict and [*found] == [port.name for port in file.graph.output]
    assert [output.name for output in compiled.program.outputs] == [*found]
    for ours, theirs in zip(found.values(), expected, strict=True):
        tolerance = 1e-2 if name == "float16" or torch.cuda.is_available() else 1e-5
        torch.testing.assert_close(ours.cpu(), torch.from_numpy(theirs), rtol=tolerance, atol=tolerance)


def branch() -> Any:
    """A node of another library in a branch, without a name of its own."""
    inner = [helper.make_node("Odd", ["x"], ["odd"], domain="com.acme")], [helper.make_node("Sin", ["x"], ["odd"])]
    then, otherwise = (helper.make_graph(nodes, "b", [], values({"odd": (FLOAT, [2])})) for nodes in inner)
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    inputs = {"x": (FLOAT, [2]), "c": (onnx.TensorProto.BOOL, [])}
    return model([node], inputs, {"y": (FLOAT, [2])}, {})


def test_other_files_are_refused_by_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(branch(), "branch.onnx")
    with pytest.raises(pipeline.CaptureError, match=r"the node 'Odd:odd' \(com.acme.Odd\)"):
        pipeline.compile("branch.onnx")
    node = helper.make_node("Twist", ["x"], ["y"], name="twist", domain="local")
    onnx.save(model([node], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, {}), "unknown.onnx")
    with pytest.raises(pipeline.CaptureError, match=r"unknown.onnx: .* node 'twist' \(local.Twist\)"):
        pipeline.capture("unknown.onnx")
    Path("text.onnx").write_text("no model")
    with pytest.raises(pipeline.CaptureError, match="not a valid ONNX file"):
        pipeline.compile("text.onnx")
    with pytest.raises(FileNotFoundError, match=r"there is no file 'none.onnx'"):
        pipeline.compile("none.onnx")
    onnx.save(FILES["dynamic"], "dynamic.onnx")
    with pytest.raises(ValueError, match=r"dim 0 of the input x.1 is dynamic, .* pass args=\(pipeline.Input"):
        pipeline.compile("dynamic.onnx")
    assert main(["print", "dynamic.onnx"]) == 2
    assert "describe each input with --input" in capsys.readouterr().err
    assert main(["print", "dynamic.onnx", "--input", "1..8x8", "--input", "3:int64"]) == 0
    assert "(the/logits: float32[-1, 4])" in capsys.readouterr().out
    onnx.save(FILES["function"], "static.onnx")
    assert main(["print", "static.onnx"]) == 0


def test_tensors_that_nodes_make_are_on_the_device_of_the_inputs(tmp_path: Path) -> None:
    onnx.save(numbered(), path := tmp_path / "numbered.onnx")
    given = pipeline.Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(4, 8))
    program = pipeline.capture(path, (given,), device="cuda")
    values = (node.meta.get("val") for node in program.graph.nodes)
    assert {value.device.type for value in values if isinstance(value, torch.Tensor)} == {"cuda"}
