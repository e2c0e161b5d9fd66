"""A compiled module inside torch.compile and torch.export, and the backend by its name."""

from __future__ import annotations

import gc
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from json import loads
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.artifact import program_op

ROOT = Path(__file__).parents[2]
ROWS = pipeline.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Dynamo without what other tests compiled."""
    torch.compiler.reset()
    with torch.no_grad():
        yield
    torch.compiler.reset()


class Net(nn.Module):
    """Two results in a dict, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        """The call."""
        y = self.linear(x)
        return {"y": y.relu(), "twice": torch.cat([y, x], 1).repeat(2, 1), "size": 6}


class Around(nn.Module):
    """A compiled module inside another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The call."""
        found = self.inner(x * 2)
        return self.head(found["y"]) + found["twice"].sum() + found["size"]


@pytest.fixture(scope="module")
def compiled() -> pipeline.Compiled:
    torch.manual_seed(0)
    return pipeline.default()(Net().eval(), (ROWS,))


def test_torch_compile_takes_a_compiled_module(compiled: pipeline.Compiled) -> None:
    around = Around(compiled.module())
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    made = torch.compile(around, backend=keep, fullgraph=True, dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(made(x), around(x))
    assert len(graphs) == 1
    assert torch.ops.pipeline.run.default in {n.target for n in graphs[0].graph.nodes} or "pipeline.run" in str(
        graphs[0]
    )


def test_an_export_that_holds_one_is_a_file(compiled: pipeline.Compiled, tmp_path: Path) -> None:
    around = Around(compiled.module())
    batch = torch.export.Dim("batch", min=1, max=8)
    exported = torch.export.export(around, (torch.randn(2, 4),), dynamic_shapes=({0: batch},), strict=False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(exported.module()(x), around(x))
    torch.export.save(exported, tmp_path / "around.pt2")
    torch.save((x, around(x)), tmp_path / "expected.pt")
    code = """
import torch, pipeline
x, expected = torch.load("expected.pt")
module = torch.export.load("around.pt2").module()
torch.testing.assert_close(module(x), expected)
torch.testing.assert_close(module(x), expected)
print("equal")
"""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "equal\n", done.stderr


def test_calls_decode_their_facts_once(compiled: pipeline.Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.compile(Around(compiled.module()), backend="eager", dynamic=True)
    made(torch.randn(2, 4))
    decoded: list[str] = []
    monkeypatch.setattr(program_op.json, "loads", lambda text: decoded.append(text) or loads(text))
    for batch in (3, 4, 5, 6):
        made(torch.randn(batch, 4))
    assert len(decoded) <= 1


def test_a_module_reads_its_graph_once_for_all_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x + i for i in range(20)]

    compiled = pipeline.default()(Many(), (torch.ones(2),))
    module, read = compiled.module(), []
    nodes = torch.fx.Graph.nodes
    monkeypatch.setattr(torch.fx.Graph, "nodes", property(lambda graph: read.append(graph) or nodes.fget(graph)))
    entry = program_op.OperatorCall(module, compiled)
    assert len(entry.plain) == 20 and len(read) == 1


def test_a_graph_outside_of_the_ranges_is_told(compiled: pipeline.Compiled) -> None:
    made = torch.compile(Around(compiled.module()), backend="eager", dynamic=True)
    with pytest.raises(pipeline.ShapeError, match="input x has size 9"):
        made(torch.randn(9, 4))


def test_what_a_graph_cannot_see_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x + self.seen

    module = pipeline.default()(Counts(), (torch.ones(2),)).module()
    with pytest.raises(pipeline.ExecutionError, match="updates its buffer seen, and an outer graph"):
        torch.export.export(module, (torch.ones(2),), strict=False)


def test_an_export_needs_the_compiled_program(compiled: pipeline.Compiled) -> None:
    module = pipeline.default()(nn.Linear(4, 4), (torch.ones(2, 4),)).module()
    gc.collect()
    with pytest.raises(pipeline.ArtifactError, match=r"torch\.export has to save the program of a compiled"):
        torch.export.export(module, (torch.ones(2, 4),), strict=False)


def test_a_module_that_cannot_follow_says_so(compiled: pipeline.Compiled) -> None:
    around = Around(compiled.module())
    for move in (nn.Module.half, nn.Module.double, lambda m: m.to(torch.bfloat16), lambda m: m.to("meta")):
        with pytest.raises(pipeline.ExecutionError, match="a compiled module cannot change its dtypes or device"):
            move(around)
    assert around.to("cpu").float().eval() is around


def test_the_backend_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "named-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: named\nVersion: 1.0\n")
    rows = "\n".join(f"{name} = {target}" for name, target in entries["torch_dynamo_backends"].items())
    (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{rows}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from torch._dynamo.backends import registry

    registry._discover_entrypoint_backends.cache_clear()
    registry._lazy_import.cache_clear()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(3, 4)
    for words in ({"mode": "reduce-overhead"}, {"options": {"min_block_size": 1}}, {}):
        torch.testing.assert_close(torch.compile(net, backend="pipeline", **words)(x), net(x))
        torch.compiler.reset()
    with pytest.raises(Exception, match="mode must be one of 'default', 'reduce-overhead'"):
        torch.compile(net, backend="pipeline", mode="fastest")(x)


def test_hooks_of_a_compiled_module_run_once_under_torch_compile(compiled: pipeline.Compiled) -> None:
    module, x = compiled.module(), torch.randn(3, 4)
    module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    module.register_forward_hook(lambda _, args, result: {**result, "y": result["y"] * 2})
    expected = compiled(x + 1)
    for made in (module, torch.compile(module, backend="eager")):
        torch.testing.assert_close(made(x), {**expected, "y": expected["y"] * 2})


def test_a_compiled_module_has_the_method_compile_of_modules(compiled: pipeline.Compiled) -> None:
    module, x = compiled.module(), torch.randn(3, 4)
    module.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(module(x), compiled(x))
