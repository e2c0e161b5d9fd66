"""TorchScript as a model: what its language says is what the compiled program computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import pipeline
from pipeline.compat.torchscript import EVALUATORS, model
from pipeline.errors import source_line
from pipeline.export_fixes.torchscript import control
from tests.export_fixes import scripts

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.tensor([[1.0, -2.0, 3.0, -4.0], [0.5, 1.5, -2.5, 3.5]])

PROGRAMS: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "branches": (scripts.Branches(), (X,)),
    "a scale": (scripts.Branches(twice=False), (X, X.abs(), 1)),
    "loops": (scripts.Loops(), (X,)),
    "containers": (scripts.Containers(), (X, [X, X + 1])),
    "writes": (scripts.Writes(), (X,)),
    "objects": (scripts.Objects(), (X,)),
    "sizes": (scripts.Sizes(), (X,)),
    "python": (scripts.Logged(), (X,)),
    "data": (scripts.OnData(), (X,)),
    "other data": (scripts.OnData(), (-X,)),
}


def copied(values: Any) -> Any:
    return tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, values)


def equal(ours: Any, eager: Any) -> None:
    left, right = tree_leaves(ours), tree_leaves(eager)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def saved(script: Any, folder: Path) -> Any:
    torch.jit.save(script, folder / "model.pt")
    return torch.jit.load(folder / "model.pt")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_script_is_a_model(name: str) -> None:
    module, args = PROGRAMS[name]
    script = torch.jit.script(module.eval())
    compiled = pipeline.default(require_full_compilation=True)(script, copied(args))
    assert len(compiled.engines) == 1
    equal(compiled(*copied(args)), script(*copied(args)))


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "python"])
def test_a_file_is_interpreted_as_torch_does(name: str, tmp_path: Path) -> None:
    module, args = PROGRAMS[name]
    script = saved(torch.jit.script(module.eval()), tmp_path)
    twin = torch.jit.load(tmp_path / "model.pt")
    equal(model(script)(*copied(args)), twin(*copied(args)))
    assert {*script.state_dict()} <= {*pipeline.capture(script, copied(args)).parameters}


def test_data_decides_in_a_script() -> None:
    script = torch.jit.script(scripts.OnData().eval())
    dims = ({0: torch.export.Dim("n", min=1, max=9)},)
    run = pipeline.default()(script, (X,), dynamic_shapes=dims).module("reference")
    for x in (X, -X, X * 0.1, X * 0, X[:1], X[1:] - 3, X * 5 - 10, X.abs()):
        equal(run(x), script(x))


def test_the_structure_of_the_outputs_is_the_scripts() -> None:
    module, args = PROGRAMS["containers"]
    named, listed, boxes = pipeline.default()(torch.jit.script(module), copied(args))(*copied(args))
    assert list(named) == ["first", "sum", "X_A", "X_B", "keys"]
    assert isinstance(listed, list)
    assert boxes._fields == ("low", "high")


def test_lists_that_are_passed_in_stay_as_they_are() -> None:
    module, (x, more) = PROGRAMS["containers"]
    given = [x, x]
    pipeline.default()(torch.jit.script(module), (x, given))
    assert len(given) == 2
    assert len(more) == 2


FORMS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "traced": torch.jit.trace,
    "traced and frozen": lambda net, x: torch.jit.freeze(torch.jit.trace(net, x)),
    "frozen": lambda net, x: torch.jit.freeze(torch.jit.script(net)),
    "frozen in part": lambda net, x: torch.jit.freeze(torch.jit.script(net), preserved_attrs=["0.weight"]),
}
"""TorchScript as it is shipped. ``freeze`` makes weights constants, and takes the attribute ``training`` away."""


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_a_model(form: str, tmp_path: Path) -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(144, 5))
    net, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 8, 8)
    image = pipeline.Input(min_shape=(1, 3, 8, 8), opt_shape=(2, 3, 8, 8), max_shape=(6, 3, 8, 8))
    compiled = (pipeline.default() | pipeline.verify())(saved(FORMS[form](net, x), tmp_path), (image,))
    for batch in (1, 5):
        x = torch.randn(batch, 3, 8, 8)
        equal(compiled(x), net(x))


def test_layers_of_torch_are_taken_apart_as_in_eager() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    rows = pipeline.Input(min_shape=(1, 5, 16), opt_shape=(2, 5, 16), max_shape=(4, 5, 16))
    compiled = pipeline.default(require_full_compilation=True)(torch.jit.script(layer), (rows,))
    equal(compiled(x), layer(x))


def test_what_a_trace_divides_sizes_by_is_known() -> None:
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    traced = torch.jit.trace(attention, (x, x, x))
    compiled = pipeline.default(require_full_compilation=True)(traced, (x, x, x))
    equal(compiled(x, x, x), attention(x, x, x))


def test_sizes_may_vary() -> None:
    script = torch.jit.script(scripts.Sizes())
    rows = pipeline.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(9, 4))
    compiled = pipeline.default(require_full_compilation=True)(script, (rows,))
    for batch in (1, 2, 9):
        x = torch.randn(batch, 4)
        equal(compiled(x), script(x))


def test_a_function_is_a_model() -> None:
    def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x * by if by > 1 else x

    script = torch.jit.script(scaled)
    equal(pipeline.default()(script, (X,))(X), X * 2)
    assert str(inspect.signature(model(script).forward)) == "(x, by=2.0)"


def test_a_method_is_a_model() -> None:
    script = torch.jit.script(scripts.Objects())
    equal(pipeline.default()(model(script, method="head"), (X,))(X), script.head(X))
    with pytest.raises(pipeline.CaptureError, match=r"Objects has no method 'tail'; its methods are .*head"):
        model(script, method="tail")


@pytest.mark.parametrize("form", ["scripted", "loaded", "traced"])
def test_weights_have_the_modules_names_and_can_be_refitted(form: str, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()

    first, second = make(), make()
    script = torch.jit.trace(first, X) if form == "traced" else torch.jit.script(first)
    script = saved(script, tmp_path) if form == "loaded" else script
    compiled = pipeline.default()(script, (X,))
    assert compiled.program.parameters.keys() == first.state_dict().keys()
    for other in (second, torch.jit.script(second), torch.jit.trace(second, X), second.state_dict()):
        equal(pipeline.refit_module_weights(compiled, other)(X), second(X))


def test_tied_weights_stay_one(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    made = model(saved(torch.jit.script(net), tmp_path))
    assert made.get_parameter("0.weight") is made.get_parameter("1.weight")


def test_nothing_that_is_given_changes(tmp_path: Path) -> None:
    script = saved(torch.jit.script(scripts.Writes()), tmp_path)
    before = {name: value.clone() for name, value in script.state_dict().items()}
    pipeline.default()(script, (X,))
    for name, value in script.state_dict().items():
        assert torch.equal(value, before[name])


def test_nodes_know_their_line_and_module() -> None:
    program = pipeline.capture(torch.jit.script(nn.Sequential(scripts.Loops(), nn.Linear(4, 4))), (X,))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    lines = [source_line(node) for node in nodes]
    assert "scripts.py" in lines[1]
    assert "layer(x)" in lines[1]
    paths = [list(node.meta["nn_module_stack"].values())[-1][0] for node in nodes]
    assert "0.layers.1" in paths
    assert paths[-1] == "1"


REFUSED = {
    "an if on a number": (scripts.OnNumber(), r"prim::If \(scripts\.py:\d+, if x\.sum.*condition depends on data"),
    "an if on data that keeps": (scripts.OnDataKeeps(), r"prim::If \(scripts\.py:\d+, if bool.*aten::append\n"),
    "a loop on data": (scripts.WhileData(), r"prim::Loop \(scripts\.py:\d+, while bool.*condition depends on data"),
    "a loop without end": (scripts.Forever(), r"prim::Loop \(scripts\.py:\d+, while True.*more than 100 iterations"),
    "a method of Python's": (scripts.Asks(), r"prim::PythonOp \(scripts\.py:\d+, return self.*is on a method"),
    "a raise": (scripts.Raises(), r"prim::RaiseException \(scripts\.py:\d+, raise ValueError.*no matrices"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_names_the_node_and_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_STEPS", 100)
    module, said = REFUSED[name]
    with pytest.raises(pipeline.CaptureError, match=said) as caught:
        pipeline.default()(torch.jit.script(module), (X,))
    line = inspect.getsourcelines(type(module).forward)
    number = int(str(caught.value).partition(".py:")[2].partition(",")[0])
    assert line[1] <= number < line[1] + len(line[0])


def test_a_loop_over_a_size_that_varies_is_refused() -> None:
    rows = pipeline.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(9, 4))
    script = torch.jit.script(scripts.Rows())
    equal(pipeline.default()(script, (X,))(X), script(X))
    with pytest.raises(pipeline.CaptureError, match=r"prim::Loop .* iterations is a dynamic size, s\d+\n.*size static"):
        pipeline.default()(script, (rows,))


def test_an_unknown_node_is_refused_until_it_has_an_evaluator() -> None:
    script = torch.jit.script(scripts.Containers())
    args = PROGRAMS["containers"][1]
    few = EVALUATORS.without("prim::ListConstruct")
    with pytest.raises(pipeline.CaptureError, match=r"prim::ListConstruct \(scripts\.py:\d+.* no evaluator for"):
        pipeline.capture(model(script, evaluators=few), copied(args))
    enough = few.register("prim::ListConstruct", lambda call, *values: list(values))
    equal(model(script, evaluators=enough)(*copied(args)), script(*copied(args)))


def test_warnings_of_torch_are_kept_from_the_user(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    script = saved(torch.jit.script(nn.Linear(4, 4)), tmp_path)
    recwarn.clear()
    pipeline.default()(script, (X,))
    assert not [str(w.message) for w in recwarn if "deprecated" in str(w.message)]


class Part(nn.Module):
    """A part with a flag, of which its owner reads a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if twice:
            y = y * 2
        return y


class Owner(nn.Module):
    """A module in Python around a part."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part: Any = self.parts[0]
        weight = getattr(getattr(part, "linear", None), "weight", torch.zeros(1))
        return part(x, twice=True).relu() + weight.sum()


PARTS: dict[str, nn.Module] = {
    "scripted": torch.jit.script(Part()),
    "frozen": torch.jit.freeze(torch.jit.script(Part().eval())),
    "within": nn.Sequential(torch.jit.script(nn.Linear(4, 3)), nn.ReLU()),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_may_be_a_script(name: str) -> None:
    """torch.export fails on it. The user's module keeps it, and weights keep their names."""
    owner = nn.Sequential(PARTS[name]) if name == "within" else Owner(PARTS[name])
    dims = ({0: torch.export.Dim("n", min=2, max=8)},)
    compiled = pipeline.default(min_block_size=1)(owner.eval(), (torch.randn(3, 4),), dynamic_shapes=dims)
    assert len(compiled.engines) == 1
    assert dict(owner.named_parameters()).keys() <= compiled.program.parameters.keys()
    assert any(isinstance(part, torch.jit.ScriptModule) for part in owner.modules())
    x = torch.randn(8, 4)
    equal(compiled(x), owner(x))
