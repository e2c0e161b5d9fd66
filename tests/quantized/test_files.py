"""Quantized programs in files, replayed and refitted: weights keep their bits everywhere."""

from pathlib import Path

import pytest
import torch

import pipeline
from pipeline.network.description import describe
from pipeline.network.handle import trt_weights_of_tensor
from pipeline.network.replay import replay
from pipeline.trt import Log, trt
from tests.quantized.models import COMPILE, by_modelopt, by_torchao, rows, two

torchao = pytest.importorskip("torchao.quantization")
INT4 = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(64))


def quantized(kind: str) -> pipeline.Compiled:
    """A program of INT4 or INT8 weights, as torchao's or ModelOpt's."""
    model = by_torchao(INT4) if kind == "int4" else by_modelopt("INT8_DEFAULT_CFG")
    return COMPILE(model, args=(rows(),))


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_file_has_the_program(kind: str, tmp_path: Path) -> None:
    compiled = quantized(kind)
    compiled.save(tmp_path / "model.trtp")
    loaded = pipeline.load(tmp_path / "model.trtp")
    assert torch.equal(loaded(rows()), compiled(rows()))


def test_parameters_made_of_others_have_names() -> None:
    names = quantized("int4").program.parameters
    assert {"first.weight.qdata", "first.weight.scale"} <= names.keys()
    assert all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in names.values())


def test_codes_of_torchao_are_refitted() -> None:
    torch.manual_seed(7)
    model = type(two())().eval()
    other = by_torchao(INT4, model)
    compiled = quantized("int4")
    from pipeline.artifact.refit import _tensors_by_name
    from pipeline.capture.shared_tensors import unwrap_subclasses

    given = unwrap_subclasses(_tensors_by_name(other, compiled.program))
    fresh = COMPILE(other, args=(rows(),))
    assert len(compiled.refit_map) == len(fresh.refit_map)
    for name, recipe in compiled.refit_map.items():
        assert torch.equal(recipe.evaluate(given), fresh.refit_map[name].evaluate(fresh.program.parameters))


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_networks_are_replayed(kind: str) -> None:
    compiled = quantized(kind)
    network = compiled.networks[0]
    values = {
        w.name: compiled.refit_map[w.name].evaluate(compiled.program.parameters)
        if w.name in compiled.refit_map
        else compiled.literals[w.name]
        for w in network.weights
    }
    rows_by_name = {w.name: w for w in network.weights}
    log = Log()
    made = replay(network, lambda name: trt_weights_of_tensor(values[name], rows_by_name[name]), trt.Builder(log), log)
    by_pointer = {values[name].data_ptr(): weight for name, weight in rows_by_name.items()}
    assert (
        describe(made, name=network.name, weight_name=by_pointer.get, profile=network.profile).digest == network.digest
    )
