"""The C++ program of examples/onnxruntime_cpp: built by the command that it gives, it runs an ONNX file on a CPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "onnxruntime_cpp"
MISSING = r".*onnxruntime_cxx_api\.h: No such file.*|.*cannot find -lonnxruntime.*|.*g\+\+: (?:command )?not found.*"


def built(folder: Path) -> Path:
    """Build the program there by its own command; skip the test where g++, the headers or the library are missing.

    g++ also searches the folders of the environment's CPATH and LIBRARY_PATH.
    """
    (command,) = re.findall(r"^//     (g\+\+ .*)$", (FOLDER / "main.cpp").read_text(encoding="utf-8"), re.M)
    target = folder / "run_onnx"
    command = command.replace("-o run_onnx", f"-o {target}")
    done = subprocess.run(command, cwd=FOLDER, shell=True, capture_output=True, text=True, timeout=300)
    if missing := re.search(MISSING, done.stderr):
        pytest.skip(f"ONNX Runtime for C++ is missing: {missing[0].strip()}")
    assert done.returncode == 0, done.stderr
    return target


def test_it_runs_a_file_on_a_cpu(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
    program, helper, kind = built(tmp_path), onnx.helper, onnx.TensorProto

    def ports(**dtypes: int) -> list[object]:
        return [helper.make_tensor_value_info(name, dtype, ["rows", 8]) for name, dtype in dtypes.items()]

    nodes = [helper.make_node("Softmax", ["x"], ["y"]), helper.make_node("Not", ["mask"], ["other"])]
    dtypes = {"x": kind.FLOAT, "mask": kind.BOOL}, {"y": kind.FLOAT, "other": kind.BOOL}
    graph = helper.make_graph(nodes, "small", *(ports(**each) for each in dtypes))
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    x, mask = torch.randn(5, 8), torch.randn(5, 8) > 0
    x.numpy().tofile(tmp_path / "x.raw")
    mask.numpy().tofile(tmp_path / "mask.raw")
    command = [program, tmp_path / "m.onnx", tmp_path]
    subprocess.run(command, check=True, timeout=60)
    y = torch.frombuffer(bytearray((tmp_path / "y.raw").read_bytes()), dtype=torch.float32)
    torch.testing.assert_close(y.view(5, 8), x.softmax(-1))
    assert (tmp_path / "other.raw").read_bytes() == (~mask).numpy().tobytes()
    (tmp_path / "x.raw").write_bytes(b"12345")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stderr) == (1, f"{tmp_path}/x.raw has 5 bytes, expected a multiple of 32\n")
