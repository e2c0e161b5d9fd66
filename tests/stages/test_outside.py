"""Weights outside of engines, and an engine for each profile: what is built, what runs, and what stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.compiled import Compiled
from pipeline.compose.pipelines import Pipeline
from pipeline.converters import converter_utils
from pipeline.errors import ShapeError
from pipeline.runtime.module import ProgramModule
from pipeline.trt import trt

WIDTH = 16
LEAST = WIDTH * WIDTH * 2


class Net(nn.Module):
    """An embedding that is the head's weight too, and two layers. Biases are small; `sorts` is for PyTorch."""

    def __init__(self, sorts: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.sorts = nn.Embedding(40, WIDTH), sorts
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, length] -> [batch, length, 40]"""
        x = torch.relu(self.first(self.embed(ids)))
        x = x.sort(-1).values if self.sorts else x
        return nn.functional.linear(self.second(x) + x, self.embed.weight)


LENGTHS = Dim("length", min=2, max=8)
PROFILES = [{"ids": {1: 1}}, {"ids": {1: LENGTHS}}]
SHARED = ["p_embed_weight", "p_first_weight", "p_second_weight"]


def ids(length: int) -> torch.Tensor:
    return torch.arange(2 * length).reshape(2, length) % 40


def stages(**settings: Any) -> Pipeline[Any, Compiled]:
    compile = pipeline.default(min_block_size=1, **settings)
    compile = compile.insert(pipeline.engine_per_profile(), after="partition")
    return compile.insert(pipeline.shared_weights(LEAST), after="partition")


def compiled(model: nn.Module | None = None, compile: Any = None) -> Compiled:
    model = (Net() if model is None else model).eval()
    made = (stages() if compile is None else compile)(model, args=(ids(4),), profiles=PROFILES)
    assert isinstance(made, Compiled)
    return made


def test_engines_share_the_weights_that_they_do_not_hold() -> None:
    result = compiled()
    assert [s.name for s in result.partitioned.segments] == ["engine_0_profile_0", "engine_0_profile_1"]
    for segment, network in zip(result.partitioned.segments, result.networks, strict=True):
        assert [port.name for port in segment.inputs] == ["ids", *SHARED]
        assert [each.name for each in network.inputs] == ["ids", *SHARED]
        held = [w for w in network.weights if "weight" in w.name]
        assert not held and any(w.name == "first.bias" for w in network.weights), "small ones are the engine's"
    assert set(result.refit_map) == {"first.bias"}
    module, model = result.module("reference"), Net().eval()
    for length in (1, 2, 8, 1):
        torch.testing.assert_close(module(ids(length)), model(ids(length)))


def test_each_profile_runs_its_own_engine_made_for_its_sizes() -> None:
    result = compiled()
    single, several = result.networks
    assert single.inputs[0].shape == (2, 1) and not single.profiles
    assert [p.ranges for p in several.profiles] == [(("ids", (2, 2), (2, 4), (2, 8)),)]
    module, ran = result.module("reference"), list[str]()
    module.instrument(lambda segment, run: lambda *given: (ran.append(segment.name), run(*given))[1])
    for length in (1, 3, 1):
        module(ids(length))
    assert ran == ["engine_0_profile_0", "engine_0_profile_1", "engine_0_profile_0"]
    with pytest.raises(ShapeError, match="ids"):
        module(ids(9))


def test_segments_in_pytorch_run_beside_them() -> None:
    result = compiled(Net(sorts=True), stages(torch_executed_ops={"aten.sort.default"}))
    kinds = [(s.kind, s.profile) for s in result.partitioned.segments]
    assert kinds == [("engine", 0), ("engine", 1), ("torch", None), ("engine", 0), ("engine", 1)]
    cuts = {(cut.source, cut.target) for cut in result.partitioned.cuts}
    assert ("engine_0_profile_0", "torch_1") in cuts and ("engine_0_profile_1", "torch_1") in cuts
    assert not any(a.endswith("_0") and b.endswith("_1") and "torch" not in (a + b) for a, b in cuts)
    module, model = result.module("reference"), Net(sorts=True).eval()
    for length in (1, 5):
        torch.testing.assert_close(module(ids(length)), model(ids(length)))
    assert "profile_1" in result.report() and len(result.coverage.converted) == len(
        {c.node for c in result.coverage.converted}
    )


def test_a_module_has_its_own_copy_of_the_weights() -> None:
    model = Net().eval()
    result = compiled(model)
    module, expected = result.module("reference"), model(ids(3))
    with torch.no_grad():
        model.first.weight.fill_(3)
    torch.testing.assert_close(module(ids(3)), expected)
    torch.testing.assert_close(module.new_state()(ids(3)), expected)
    with pytest.raises(pipeline.ExecutionError, match=r"first\.weight was changed in place"):
        result.module("reference")


def test_a_module_reads_the_models_own_weights_where_it_is_told_to() -> None:
    model = Net().eval()
    made = compiled(model)
    module = made.module("reference", copy_weights=False)
    places = {value.data_ptr() for value in module._weights.values()}
    assert places == {p.data_ptr() for p in model.parameters() if p.nbytes >= LEAST}
    before = module(ids(4))
    assert torch.equal(before, made.module("reference")(ids(4)))
    with torch.no_grad():
        model.second.weight.add_(1.0)
    assert not torch.equal(module(ids(4)), before), "a change in place is seen"
    assert torch.allclose(module(ids(4)), model(ids(4)), atol=1e-5), "as far as engines read what was changed"


class Merged(nn.Module):
    """Two layers of one input, whose weights become one constant."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, WIDTH] -> [rows, WIDTH]"""
        return self.left(x) * torch.relu(self.right(x))


def test_programs_that_are_compared_share_what_is_computed_from_weights() -> None:
    made = stages()(Merged().eval(), args=(torch.rand(3, WIDTH),))
    settings, shared = made.settings.evolve(copy_weights=False), dict[str, torch.Tensor]()
    first, second, own = (ProgramModule(made, "reference", settings, held) for held in (shared, shared, None))
    for slot, value in first._weights.items():
        assert value.data_ptr() == second._weights[slot].data_ptr() != own._weights[slot].data_ptr()
    assert first._weights and len(shared) == len(first._weights)


def test_other_weights_need_no_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    result, other = compiled(), Net().eval()
    with torch.no_grad():
        other.second.weight.mul_(2)
        other.embed.weight.add_(0.5)
    monkeypatch.setattr("pipeline.artifact.refit.build", lambda record: pytest.fail("nothing is built"))
    refitted = pipeline.refit_module_weights(result, other)
    assert [e.digest for e in refitted.engines] == [e.digest for e in result.engines]
    torch.testing.assert_close(refitted.module("reference")(ids(3)), other(ids(3)))
    torch.testing.assert_close(result.module("reference")(ids(3)), Net().eval()(ids(3)))


def test_an_engines_own_weight_is_refitted_as_ever() -> None:
    result, other = compiled(), Net().eval()
    with torch.no_grad():
        other.first.bias.add_(1)
    refitted = pipeline.refit_module_weights(result, other)
    torch.testing.assert_close(refitted.module("reference")(ids(1)), other(ids(1)))


def test_files_keep_them(tmp_path: Path) -> None:
    result, model = compiled(), Net().eval()
    result.save(tmp_path / "net.trtp")
    loaded = pipeline.load(tmp_path / "net.trtp")
    assert loaded.partitioned.segments == result.partitioned.segments
    module = loaded.module("reference")
    for length in (1, 4):
        torch.testing.assert_close(module(ids(length)), model(ids(length)))


def test_a_converter_of_the_users_gets_its_weights_as_they_are() -> None:
    seen = []

    @pipeline.dynamo_tensorrt_converter(torch.ops.aten.linear.default, supports_dynamic_shapes=True)
    def theirs(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        seen.append(type(args[1]))
        weight = converter_utils.get_trt_tensor(ctx, args[1], f"{name}_weight")
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        return ctx.net.add_matrix_multiply(args[0], none, weight, turned).get_output(0)

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    model = Plain().eval()
    registry = pipeline.DYNAMO_CONVERTERS.override(theirs)
    compile = pipeline.default(registry=registry).insert(pipeline.shared_weights(0), after="partition")
    x = torch.randn(3, WIDTH)
    result = compile(model, args=(x,))
    assert seen == [torch.Tensor] and len(result.networks[0].inputs) == 1
    torch.testing.assert_close(result.module("reference")(x), model(x))


def test_an_engine_with_many_weights_stays_one_for_all_profiles() -> None:
    compile = pipeline.default().insert(pipeline.engine_per_profile(most=100), after="partition")
    (segment,) = compiled(compile=compile).partitioned.segments
    assert segment.profile is None and segment.name == "engine_0"


def test_an_engine_whose_sizes_do_not_vary_stays_one() -> None:
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    result = pipeline.default().insert(pipeline.engine_per_profile(), after="partition")(model, args=(x,))
    assert [s.profile for s in result.partitioned.segments] == [None]


@pytest.mark.parametrize("make", [pipeline.shared_weights, pipeline.engine_per_profile])
def test_bytes_are_numbers(make: Any) -> None:
    for value in ("1", 1.5, True):
        with pytest.raises(TypeError, match="number of bytes"):
            make(value)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        make(-1)


def test_a_weight_made_of_a_sparse_one_is_shared() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.eye(8).to_sparse())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w.to_dense()

    compile = pipeline.default(min_block_size=1).insert(pipeline.shared_weights(0), after="partition")
    x = torch.randn(4, 8)
    torch.testing.assert_close(compile(Sparse().eval(), args=(x,)).module("reference")(x), x)


def test_no_more_engines_than_asked_for() -> None:
    (segment,) = compiled(compile=stages(max_engines=1)).partitioned.segments
    assert segment.profile is None


def test_a_file_without_weights_says_that_it_needs_them(tmp_path: Path) -> None:
    result, model = compiled(), Net().eval()
    result.save(tmp_path / "net.trtp", weights="none")
    loaded = pipeline.load(tmp_path / "net.trtp")
    with pytest.raises(pipeline.ExecutionError, match="has no value"):
        loaded.module("reference")
    again = pipeline.refit_module_weights(loaded, model).module("reference")
    torch.testing.assert_close(again(ids(3)), model(ids(3)))


@pytest.mark.parametrize("between", [3, ["layers.*"]])
def test_a_pattern_is_text(between: Any) -> None:
    with pytest.raises(TypeError, match=r"'layers\.\*'"):
        pipeline.in_pieces(between=between)


def test_pieces_are_counted_or_named() -> None:
    for given in ({}, {"count": 2, "between": "layers.*"}):
        with pytest.raises(TypeError, match="or between="):
            pipeline.in_pieces(**given)  # type: ignore[arg-type]
