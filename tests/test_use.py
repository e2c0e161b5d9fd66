"""The pipeline as a user writes it: custom stages, swapped partitioners, own converters, and what they are promised."""

from __future__ import annotations

import pickle
import subprocess
import sys

import attrs
import pytest
import torch
from torch import nn

import pipeline
from pipeline import (
    Built,
    Compiled,
    ConverterPriority,
    ConverterRegistry,
    Partitioned,
    Program,
    Validated,
    dynamo_tensorrt_converter,
)
from pipeline.impl import elementwise
from pipeline.stages import partition

aten = torch.ops.aten


class Net(nn.Module):
    """Convolution, batch norm, in-place activation, a residual, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] -> [N, 5]"""
        y = torch.relu_(self.norm(self.conv(x)))
        y += 1
        return self.head(torch.nn.functional.gelu(y).mean((2, 3)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net().eval()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return net


BATCH = pipeline.Input(min_shape=(1, 3, 8, 8), opt_shape=(2, 3, 8, 8), max_shape=(4, 3, 8, 8))


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Like float32 on two different orders of summation."""
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_one_engine_agrees_with_eager(net: Net, batch: int) -> None:
    compiled = pipeline.default(require_full_compilation=True)(net, args=(BATCH,))
    x = torch.randn(batch, 3, 8, 8)
    assert len(compiled.engines) == 1
    assert not compiled.coverage.fallback
    close(compiled.module(executor="reference")(x), net(x))


def test_a_custom_stage_is_appended(net: Net) -> None:
    seen: list[Compiled] = []

    @pipeline.stage
    def remember(compiled: Compiled) -> Compiled:
        seen.append(compiled)
        return compiled

    compile = pipeline.default() | remember
    compiled = compile(net, args=(BATCH,))
    assert seen == [compiled]
    assert compile.names[-1] == "remember"


def test_a_partitioner_is_swapped(net: Net) -> None:
    @pipeline.stage
    def all_in_torch(validated: Validated) -> Partitioned:
        none = attrs.evolve(validated.program.settings, torch_executed_ops=frozenset())
        refused = {
            name: attrs.evolve(v, choice=None, reasons=(pipeline.Rejection("not today"),))
            for name, v in validated.verdicts.items()
        }
        program = attrs.evolve(validated.program, settings=none)
        return partition(Validated(program, pipeline.FrozenDict(refused)))

    compiled = pipeline.default().replace("partition", all_in_torch)(net, args=(BATCH,))
    x = torch.randn(3, 3, 8, 8)
    assert compiled.engines == ()
    assert {f.reason for f in compiled.coverage.fallback} == {"not today"}
    close(compiled.module(executor="reference")(x), net(x))


def test_a_stage_is_inserted(net: Net) -> None:
    names: list[str] = []

    @pipeline.stage
    def look(program: Program) -> Program:
        names.extend(str(n.target) for n in program.graph.nodes if n.op == "call_function")
        return program

    pipeline.default().insert(look, after="decompose").until("convert")(net, args=(BATCH,))
    assert "aten.convolution.default" in names
    assert not any("batch_norm" in name for name in names)


def test_an_own_converter_of_high_priority_wins(net: Net) -> None:
    @dynamo_tensorrt_converter(aten.gelu.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
    def doubled(ctx, target, args, kwargs, name):  # type: ignore[no-untyped-def]
        return elementwise.binary(ctx, name, "PROD", args[0], 2.0)

    registry = pipeline.DYNAMO_CONVERTERS.register(doubled)
    compiled = pipeline.default(registry=registry)(net, args=(BATCH,))
    x = torch.randn(2, 3, 8, 8)
    features = torch.relu(net.norm(net.conv(x))) + 1
    close(compiled.module(executor="reference")(x), net.head((2 * features).mean((2, 3))))
    close(pipeline.default()(net, args=(BATCH,)).module(executor="reference")(x), net(x))


def test_a_legacy_converter_is_adopted(net: Net) -> None:
    def legacy(net, target, args, kwargs, name):  # type: ignore[no-untyped-def]
        return net.add_identity(args[0]).get_output(0)

    registry = pipeline.DYNAMO_CONVERTERS.without(aten.gelu.default) | ConverterRegistry.from_legacy(
        {aten.gelu.default: legacy}
    )
    compiled = pipeline.default(registry=registry)(net, args=(torch.randn(2, 3, 8, 8),))
    assert "IDENTITY 'gelu'" in str(compiled.networks[0])
    x = torch.randn(2, 3, 8, 8)
    features = torch.relu(net.norm(net.conv(x))) + 1
    close(compiled.module(executor="reference")(x), net.head(features.mean((2, 3))))


def test_pipelines_nest(net: Net) -> None:
    front = pipeline.default().until("validate")
    back = pipeline.Pipeline(pipeline.default().stages[3:])
    whole = front | back
    assert whole(net, args=(BATCH,)).networks == pipeline.default()(net, args=(BATCH,)).networks
    assert isinstance(back(front(net, args=(BATCH,))), Compiled)


def test_a_wrong_join_names_both_stages() -> None:
    @pipeline.stage
    def misplaced(built: Built) -> Built:
        return built

    with pytest.raises(TypeError, match=r"(?s)misplaced.*Built|Built.*misplaced"):
        pipeline.default().insert(misplaced, after="decompose")


def test_full_compilation_is_refused_with_reasons(net: Net) -> None:
    with pytest.raises(pipeline.UnsupportedOperatorException) as caught:
        pipeline.default(require_full_compilation=True, torch_executed_ops={"aten.gelu.default"})(net, args=(BATCH,))
    assert "aten.gelu.default at node gelu (test_use.py:" in str(caught.value)
    assert "torch_executed_ops" in str(caught.value)


def test_segments_run_beside_pytorch(net: Net) -> None:
    compiled = pipeline.default(torch_executed_ops={"aten.gelu.default"}, min_block_size=1)(net, args=(BATCH,))
    x = torch.randn(3, 3, 8, 8)
    assert [s.kind for s in compiled.partitioned.segments] == ["engine", "torch", "engine"]
    close(compiled.module(executor="reference")(x), net(x))


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="min_blocksize"):
        pipeline.default(min_blocksize=3)


def test_nothing_the_user_passes_in_is_changed(net: Net) -> None:
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    pipeline.default()(net, args=(BATCH,))
    assert not net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    exported = torch.export.export(net, (torch.randn(2, 3, 8, 8),), dynamic_shapes=({0: torch.export.Dim("b", max=4)},))
    text = str(exported)
    compiled = pipeline.default()(exported)
    assert str(exported) == text
    x = torch.randn(3, 3, 8, 8)
    close(compiled.module(executor="reference")(x), net(x))


def test_compiling_twice_prints_the_same(net: Net) -> None:
    compile = pipeline.default()
    first, second = compile(net, args=(BATCH,)), compile(net, args=(BATCH,))
    assert str(first.networks[0]) == str(second.networks[0])
    assert first.networks[0].digest == second.networks[0].digest


SCRIPT = """
import torch, pipeline
from tests.test_use import BATCH, Net
torch.manual_seed(0)
print(pipeline.default().until("convert")(Net().eval(), args=(BATCH,)).networks[0])
"""


def test_two_processes_print_the_same() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert "network 'engine_0'" in runs[0]


def test_sizes_outside_the_range_are_refused(net: Net) -> None:
    module = pipeline.default()(net, args=(BATCH,)).module(executor="reference")
    with pytest.raises(pipeline.ShapeError, match="size 5 in dimension 0"):
        module(torch.randn(5, 3, 8, 8))
    with pytest.raises(TypeError, match="float64"):
        module(torch.randn(2, 3, 8, 8).double())


def test_a_converter_error_names_the_node_and_its_line(net: Net) -> None:
    @dynamo_tensorrt_converter(aten.gelu.default, priority=ConverterPriority.HIGH, supports_dynamic_shapes=True)
    def wrong(ctx, target, args, kwargs, name):  # type: ignore[no-untyped-def]
        return elementwise.compare(ctx, name, "GREATER", args[0], 0.0)

    with pytest.raises(pipeline.ConversionError) as caught:
        pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(wrong))(net, args=(BATCH,))
    assert "aten.gelu.default at node gelu (test_use.py:" in str(caught.value)
    assert "torch.bool" in str(caught.value)


def test_functions_that_use_the_package_can_be_sent_elsewhere() -> None:
    """cloudpickle, with which Ray and Dask send functions, pickles the modules that a function reads."""
    assert pickle.loads(pickle.dumps(pipeline)) is pipeline


def test_refit_goes_there_and_back(net: Net) -> None:
    x = torch.randn(2, 3, 8, 8)
    compiled = pipeline.default()(net, args=(BATCH,))
    old = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    first = compiled.module(executor="reference")(x)
    torch.manual_seed(7)
    other = Net().eval()
    other.norm.running_mean.normal_()
    changed = pipeline.refit_module_weights(compiled, other)
    close(changed.module(executor="reference")(x), other(x))
    assert torch.equal(compiled.module(executor="reference")(x), first)
    back = pipeline.refit_module_weights(changed, old)
    assert torch.equal(back.module(executor="reference")(x), first)
    assert set(compiled.refit_map) >= {"head.weight", "head.bias"}
    read = {name for recipe in compiled.refit_map.values() for name in recipe.parameters}
    assert read >= {"conv.weight", "conv.bias", "norm.running_mean"}


def test_refit_names_what_does_not_fit(net: Net) -> None:
    compiled = pipeline.default()(net, args=(BATCH,))
    with pytest.raises(pipeline.RefitError) as caught:
        pipeline.refit_module_weights(compiled, {"conv.weight": torch.zeros(1), "no.such": torch.zeros(1)})
    assert set(caught.value.weights) == {"conv.weight", "no.such"}


def test_weights_changed_in_place_are_noticed(net: Net) -> None:
    compiled = pipeline.default()(net, args=(BATCH,))
    with torch.no_grad():
        net.head.weight.zero_()
    with pytest.raises(pipeline.ExecutionError, match=r"head\.weight"):
        compiled.module(executor="reference")
