"""Equal networks of one program: built once, loaded once, kept once; each with its own weights, inputs and state."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from pipeline.aten.naming import node_name
from pipeline.build import deduplicate
from pipeline.compiled import Compiled
from pipeline.network.kernels import kernels
from pipeline.partitioning import assemble
from pipeline.program import Partitioned, Validated
from pipeline.runtime.engine_load import LoadedEngine

WIDTH, LAYERS = 16, 4


class Layer(nn.Module):
    """A layer that keeps the sum of what it was given."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width, bias=False), nn.Linear(width, WIDTH, bias=False)
        self.register_buffer("seen", torch.zeros(2, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, WIDTH] -> [2, WIDTH]"""
        self.seen += x
        return x + self.down(torch.relu(self.up(x))) * self.seen


class Deep(nn.Module):
    """Layers of one structure, and a head."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(layers)), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[2, WIDTH] -> [2, 3]"""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def deep(model: nn.Module | None = None, **settings: Any) -> Compiled:
    compile = pipeline.default(min_block_size=1, **settings)
    compile = compile.replace("partition", pipeline.in_pieces(between="layers.*"))
    compile = compile.insert(pipeline.shared_weights(0), after="partition")
    made = compile((model or Deep()).eval(), args=(torch.randn(2, WIDTH),))
    assert isinstance(made, Compiled)
    return made


def test_layers_of_one_structure_are_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    stage = importlib.import_module("pipeline.stages.build")
    serialize = stage.serialize
    watched = lambda handle, order, *rest: (built.append(order.name), serialize(handle, order, *rest))[1]  # noqa: E731
    monkeypatch.setattr(stage, "serialize", watched)
    result = deep()
    assert [s.name for s in result.partitioned.segments] == [f"engine_{i}" for i in range(LAYERS)]
    assert sorted(built) == ["engine_0", f"engine_{LAYERS - 1}"], "a layer, and the last with the head"
    assert [e.name for e in result.engines] == [f"engine_{i}" for i in range(LAYERS)]
    assert len({id(engine.plan) for engine in result.engines}) == 2
    second = result.engines[1]
    assert {our: second.bindings[our] for our in ("p_layers_1_up_weight", "b_layers_1_seen")} == {
        "p_layers_1_up_weight": "p_layers_0_up_weight",
        "b_layers_1_seen": "b_layers_0_seen",
    }


def test_each_has_its_own_weights_and_state() -> None:
    model, result = Deep().eval(), deep()
    module = result.module("reference")
    for _ in range(3):
        x = torch.randn(2, WIDTH)
        torch.testing.assert_close(module(x), model(x))
    state = module.state_dict()
    for name, value in model.named_buffers():
        torch.testing.assert_close(state[name], value)


def test_a_plan_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where plans are loaded; here what is loaded only has its name."""
    from pipeline.runtime import module

    loads: list[str] = []

    def of(engine: Any, network: Any, prepare: Any, **options: Any) -> LoadedEngine:
        loads.append(engine.name)
        return LoadedEngine(engine.name, network)

    class Driven:
        settings, _kernels, executor = pipeline.CompilationSettings(), None, "tensorrt"

    monkeypatch.setattr(module.LoadedEngine, "load", of)
    result, loaded = deep(), dict[str, LoadedEngine]()
    driven: Any = Driven()
    driven.compiled = result
    parts: list[Any] = [
        module.ProgramModule._make_runner(driven, result, s, {}, lambda name: torch.zeros(0), loaded)
        for s in result.partitioned.segments
    ]
    assert loads == ["engine_0", f"engine_{LAYERS - 1}"]
    assert [part.cuda_engine for part in parts] == ["engine_0"] * (LAYERS - 1) + [f"engine_{LAYERS - 1}"]
    names = [[tensor.name for tensor in part.network.inputs] for part in parts]
    assert all(each == names[0] for each in names[:-1]), "each is bound by the names of the plan"


def test_a_file_has_a_plan_once(tmp_path: Path) -> None:
    result, x = deep(), torch.randn(2, WIDTH)
    result.save(tmp_path / "deep.trtp", weights="none")
    plans = sum({id(e.plan): e.nbytes for e in result.engines}.values())
    assert (tmp_path / "deep.trtp").stat().st_size < plans + 100_000 < sum(e.nbytes for e in result.engines)
    result.save(tmp_path / "deep.trtp")
    torch.testing.assert_close(pipeline.load(tmp_path / "deep.trtp").module("reference")(x), Deep().eval()(x))


@pytest.mark.parametrize("turned", [False, True])
def test_inputs_in_another_order_are_still_their_own(turned: bool) -> None:
    """``a - b`` and ``b - a`` are one network, whose inputs come in the order of their use."""

    class Both(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            c = a - b
            return c, (b - a) if turned else (a - b) * 1.0

    @pipeline.stage
    def apart(validated: Validated) -> Partitioned:
        names = [n.name for n in validated.program.graph.nodes if n.op == "call_function"]
        return assemble(validated, [("engine", [name]) for name in names], {})

    compile = pipeline.default().without("improve").replace("partition", apart)
    a, b = torch.randn(3), torch.randn(3)
    result = compile(Both().eval(), args=(a, b))
    found = result.module("reference")(a, b)
    for got, want in zip(found, Both()(a, b), strict=True):
        torch.testing.assert_close(got, want)
    if turned:
        assert len({id(e.plan) for e in result.engines}) == 1
        assert dict(result.engines[1].bindings)["b"] == "a" and dict(result.engines[1].bindings)["a"] == "b"


def test_engines_with_other_weights_are_built_each() -> None:
    compile = pipeline.default(min_block_size=1).replace("partition", pipeline.in_pieces(between="layers.*"))
    model, x = Deep(3).eval(), torch.randn(2, WIDTH)
    result = compile(model, args=(x,))
    assert len({id(e.plan) for e in result.engines}) == 3, "their weights are inside, and differ"
    torch.testing.assert_close(result.module("reference")(x), Deep(3).eval()(x))
    for name in ("up", "down"):
        for layer in model.layers:
            getattr(layer, name).weight.data.copy_(getattr(model.layers[0], name).weight.data)
    same = compile(model, args=(x,))
    assert len({id(e.plan) for e in same.engines}) == 2, "weights are equal"
    torch.testing.assert_close(same.module("reference")(x), model(x))


def test_one_network_is_not_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplicate, "canonical", lambda *given: pytest.fail("there is nothing to compare it with"))
    pipeline.default()(nn.Linear(4, 4).eval(), args=(torch.randn(2, 4),))


def test_the_engine_cache_keeps_the_names_of_the_plan(tmp_path: Path) -> None:
    settings = {"cache_built_engines": True, "reuse_cached_engines": True, "engine_cache_dir": str(tmp_path)}
    first, second = deep(**settings), deep(**settings)
    assert [dict(e.bindings) for e in second.engines] == [dict(e.bindings) for e in first.engines]
    for engine, network in zip(second.engines, second.networks, strict=True):
        for tensor in network.inputs:
            assert engine.bindings.get(tensor.name, tensor.name).encode() in bytes(engine), "the plan has this name"


def test_kernels_are_told_by_the_nodes_of_their_own_segment() -> None:
    result = deep()
    for engine, network, segment in zip(
        result.engines, result.networks, result.partitioned.engine_segments, strict=True
    ):
        names = result.layer_names(engine, network)
        assert set(names.values()) == {layer.name for layer in network.layers}
        computed = {node_name(names.get(layer, layer)) for kernel in kernels(engine.plan) for layer in kernel.layers}
        assert computed & set(segment.nodes) and computed <= set(segment.nodes)


def test_a_loaded_program_is_rebuilt_and_kept_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep().save(tmp_path / "a.trtp")
    loaded = pipeline.load(tmp_path / "a.trtp")
    loaded.save(tmp_path / "b.trtp")
    assert (tmp_path / "b.trtp").stat().st_size == (tmp_path / "a.trtp").stat().st_size
    other = Deep().eval()
    with torch.no_grad():
        other.head.bias.add_(1)
    built: list[str] = []
    building = importlib.import_module("pipeline.build.remote_build")
    serialize = building.serialize
    watched = lambda handle, order, *rest: (built.append(order.name), serialize(handle, order, *rest))[1]  # noqa: E731
    monkeypatch.setattr(building, "serialize", watched)
    x = torch.randn(2, WIDTH)
    torch.testing.assert_close(pipeline.refit_module_weights(loaded, other).module("reference")(x), other(x))
    assert built in ([], ["engine_0", f"engine_{LAYERS}"]), "nothing if the bias is shared, a layer and the head if not"


def test_weights_of_other_bits_are_others() -> None:
    assert not deduplicate._same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert deduplicate._same_bytes(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
