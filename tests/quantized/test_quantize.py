"""The stage ``quantize``: round to nearest, from the model's own parameters and from calibration."""

from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.quantized.models import COMPILE, rows, two

HALF_A_STEP = {"int8": 1 / 254, "int4": 1 / 14, "fp8": 1 / 16}
"""How far a number may move, by the type: relative to the greatest of its block, or of itself in FP8."""


def compiled(model: nn.Module, *args: Any, **options: Any) -> pipeline.Compiled:
    """The model by way of the stage."""
    return COMPILE.insert(pipeline.quantize(*args, **options), before="decompose")(model, args=(rows(),))


@pytest.mark.parametrize("kind", HALF_A_STEP)
def test_weights_move_by_half_a_step_at_most(kind: Any) -> None:
    model = two()
    made = compiled(model, kind)
    held = {weight.name: weight for weight in made.networks[0].weights if len(weight.shape) == 2}
    assert {w.dtype for w in held.values()} & {"int8", "int4", "float8_e4m3fn"}
    with torch.no_grad():
        eager = model.first(rows())
    rounded = pipeline.quantize(kind)(pipeline.capture(model.first, (rows(),)))
    weight = next(n for n in rounded.graph.nodes if n.target is torch.ops.pipeline.dequantize.default)
    from pipeline.verification.eager import EagerRun

    values: dict[Any, Any] = {}
    EagerRun(rounded, rounded.parameters, torch.device("cpu"), observe=values.__setitem__)([rows()])
    moved = (values[weight] - model.first.weight.detach()).abs()
    size = model.first.weight.detach().abs()
    length = {"int4": 128}.get(kind, 256)
    most = size if kind == "fp8" else size.unflatten(1, (-1, length)).amax(-1).repeat_interleave(length, 1)
    least = size.amax(1, keepdim=True) / 448 / 2**9 if kind == "fp8" else 0
    assert bool((moved <= most * HALF_A_STEP[kind] * (1 + 1e-5) + least).all())
    assert eager.shape == (8, 128)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_activations_by_calibration(kind: Any) -> None:
    model = two()
    made = compiled(model, kind, kind, calibration=[rows(), (rows() * 0.5,), {"x": rows()}])
    assert made.networks[0].kinds()["QUANTIZE"] == 2
    error = float((made(rows()) - model(rows())).norm() / model(rows()).norm())
    assert 0 < error < (0.02 if kind == "int8" else 0.08)


def test_a_percentile_narrows_the_range() -> None:
    program = pipeline.capture(two(), (rows(),))
    said = [pipeline.quantize("int8", "int8", [rows()], percentile=p).explain(program) for p in (None, 100, 99)]
    assert said[0] == said[1] != said[2]


def test_explain_tells_each_operator_and_where_to_go_on() -> None:
    said = pipeline.quantize("int8", exclude=("*second",)).explain(pipeline.capture(two(), (rows(),)))
    assert "first: aten.linear.default: int8 weight by output" in said
    assert "second: aten.linear.default: not quantized: exclude matches it" in said
    assert "1 of 2 operators" in said
    assert "ModelOpt" in said and "torchao" in said


def test_the_program_that_is_given_stays() -> None:
    program = pipeline.capture(two(), (rows(),))
    before = program.digest
    pipeline.quantize("int8", "int8", [rows()])(program)
    assert program.digest == before


def test_a_refit_rounds_the_new_parameters() -> None:
    torch.manual_seed(5)
    other = type(two())().eval()
    made = compiled(two(), "int8")
    recipes = [recipe for name, recipe in made.refit_map.items() if "weight" in " ".join(recipe.parameters)]
    fresh = compiled(other, "int8")
    for recipe in recipes:
        twin = fresh.refit_map[recipe.name]
        assert torch.equal(recipe.evaluate(dict(other.state_dict())), twin.evaluate(fresh.program.parameters))
    assert len(recipes) >= 4


def test_int4_is_for_even_linear_layers() -> None:
    layers = nn.Sequential(nn.Linear(256, 7), nn.ReLU(), nn.Linear(7, 64)).eval()
    said = pipeline.quantize("int4").explain(pipeline.capture(layers, (rows(),)))
    assert said.count("not quantized") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "int2"}, "weights must be one of 'int8', 'int4', 'fp8'"),
        ({"activations": "int4", "calibration": [1]}, "activations must be one of None, 'int8', 'fp8'"),
        ({"activations": "int8"}, "needs typical inputs"),
        ({"weights": "fp8", "activations": "int8", "calibration": [1]}, "no GPU multiplies"),
        ({"percentile": 0}, "percentile"),
    ],
)
def test_what_cannot_be_is_told_at_once(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pipeline.quantize(**options)


def test_calibration_that_does_not_fit() -> None:
    program = pipeline.capture(two(), (rows(),))
    with pytest.raises(pipeline.CalibrationError, match="has 2 values, but the model takes 1"):
        pipeline.quantize("int8", "int8", [(rows(), rows())])(program)
    with pytest.raises(pipeline.CalibrationError, match="fails on inputs in calibration"):
        pipeline.quantize("int8", "int8", [torch.randn(8, 3)])(program)
    with pytest.raises(pipeline.CalibrationError, match="activation x reaches nan on inputs in calibration"):
        pipeline.quantize("int8", "int8", [rows() * torch.nan])(program)
    one = rows()
    one[0, 0] = torch.nan
    with pytest.raises(pipeline.CalibrationError, match="activation x reaches nan on inputs in calibration"):
        pipeline.quantize("int8", "int8", [one], percentile=99.9)(program)


def test_an_activation_without_a_range_stays_in_floating_point() -> None:
    model, stage = two().first, pipeline.quantize("int8", "int8", [rows() * 0])
    said = stage.explain(pipeline.capture(model, (rows(),)))
    assert "int8 weight by output, activations in floating point: all are 0 in calibration" in said
    made = COMPILE.insert(stage, before="decompose")(model, args=(rows(),))
    assert float((made(rows()) - model(rows())).norm() / model(rows()).norm()) < 0.02


def test_an_entry_of_exclude_that_matches_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    pipeline.quantize("int8", exclude=("*second", "*third", torch.ops.aten.conv2d.default))(
        pipeline.capture(two(), (rows(),))
    )
    told = [record.getMessage() for record in caplog.records if record.name.startswith("pipeline")]
    unmatched = "'*third'", "torch.ops.aten.conv2d.default"
    assert told == [f"quantize: {each} in exclude matches no operator or module of this program" for each in unmatched]
