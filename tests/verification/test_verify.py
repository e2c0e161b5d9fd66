"""The stage: what agrees, what raises, warns and is healed, and what the record says."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.records.agreement import Agreement
from pipeline.stages import unbuilt
from pipeline.verification.eager import EagerRun
from tests.meta.executor_faults import factor, half_sums, one_size, planted
from tests.meta.executor_models import compiled

UNBUILT = pipeline.default().replace("build", unbuilt)


def verify(on_failure: Any = "raise", **options: Any) -> Any:
    return pipeline.verify(on_failure, executor="reference", **options)


def program(model: nn.Module, *args: Any, dims: Any = None, **settings: Any) -> pipeline.Compiled:
    compile = pipeline.default(**settings).replace("build", unbuilt)
    made: pipeline.Compiled = compile(model.eval(), args, dynamic_shapes=dims)
    return made


def test_a_program_without_verify_has_no_agreement() -> None:
    assert compiled("images").agreement is None


def test_the_record_says_what_was_measured() -> None:
    found = verify()(compiled("tokens"))
    agreement = found.agreement
    assert isinstance(agreement, Agreement) and agreement.holds and not agreement.failures
    assert (agreement.executor, agreement.gpu, agreement.tf32) == ("reference", "", False)
    assert {row.sample for row in agreement.rows} == {"smallest", "optimal", "largest"} == set(agreement.sizes)
    assert agreement.sizes["largest"] == {"ids.shape[0]": 5, "ids.shape[1]": 9}
    assert {"pipeline", "torch"} < set(agreement.versions)
    assert all(row.error <= row.bound for row in agreement.rows)
    assert {row.exact for row in agreement.rows if row.sample == "optimal"} == {"float64"}
    assert found == compiled("tokens")


def runs_in(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype | None]:
    """The dtypes that eager runs in from now on, in order; None is the model's own."""
    found: list[torch.dtype | None] = []
    call = EagerRun.__call__

    def noted(self: EagerRun, inputs: Any) -> Any:
        found.append(self.dtype)
        return call(self, inputs)

    monkeypatch.setattr(EagerRun, "__call__", noted)
    return found


def test_float64_runs_at_the_ends_only_where_the_floor_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runs_in(monkeypatch)
    agreement = verify()(compiled("tokens")).agreement
    assert found.count(None) == 3 and found.count(torch.float64) == 1
    ends = [row for row in agreement.rows if row.sample != "optimal"]
    assert {row.exact for row in ends} == {"eager"} and all(row.error <= row.bound < 1e-5 for row in ends)


def test_beyond_the_floor_float64_decides_at_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runs_in(monkeypatch)
    with planted(one_size, "SOFTMAX"), pytest.warns(pipeline.AgreementWarning):
        agreement = verify("warn", module=False)(compiled("tokens")).agreement
    assert found.count(torch.float64) > 2
    assert {row.exact for row in agreement.rows if not row.holds} == {"float64"}


def test_below_a_multiple_of_one_and_the_floor_float64_decides_all() -> None:
    agreement = verify("warn", multiple=1)(compiled("tokens")).agreement
    assert {row.exact for row in agreement.rows} == {"float64"}


def test_verify_raises_naming_output_size_errors_and_how_to_go_on() -> None:
    with planted(one_size, "SOFTMAX"), pytest.raises(pipeline.AgreementError) as caught:
        verify()(compiled("tokens"))
    assert [(row.output, row.sample) for row in caught.value.agreement.failures] == [("output.0", "largest")]
    for words in ("output.0, largest", "bound", "ids.shape[0] = 5", "eager's", "pipeline.bisect", "heal"):
        assert words in str(caught.value)
    assert isinstance(caught.value, pipeline.PipelineError)


def test_verify_warns() -> None:
    with planted(factor, "SOFTMAX"), pytest.warns(pipeline.AgreementWarning, match="outputs are wrong"):
        found = verify("warn")(compiled("tokens"))
    assert found.agreement is not None and not found.agreement.holds


def test_the_report_has_the_agreement() -> None:
    made = (pipeline.default() | verify())(nn.Linear(3, 3).eval(), (torch.randn(2, 3),))
    assert str(made.agreement) in made.report() and made.engines


def test_verify_stands_in_a_pipeline() -> None:
    compile = UNBUILT | verify()
    assert compile.names[-1] == "verify"
    made = compile(nn.Linear(3, 3).eval(), (torch.randn(2, 3),))
    assert made.agreement.holds
    assert compile.without("verify")(nn.Linear(3, 3).eval(), (torch.randn(2, 3),)).agreement is None
    assert UNBUILT.insert(verify(), after="choose").replace("verify", verify("warn")).names == compile.names


def test_verify_is_a_value() -> None:
    assert pipeline.verify() == pipeline.verify("raise") != pipeline.verify("warn")
    assert hash(pipeline.verify("heal")) == hash(pipeline.verify("heal"))


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"on_failure": "explode"}, ValueError, "on_failure must be one of 'raise', 'warn', 'heal'"),
        ({"executor": "abacus"}, ValueError, "executor must be one of"),
        ({"multiple": 0.5}, ValueError, "at least 1"),
        ({"multiple": "4"}, TypeError, "multiple must be a number"),
        ({"inputs": 3}, TypeError, "inputs must be a list of calls"),
    ],
)
def test_misuse(options: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        pipeline.verify(**options)


class Choosing(nn.Module):
    """Takes the largest of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 8] -> places, values and whether they are positive"""
        y = self.linear(x)
        return {"place": y.argmax(1), "positive": y > 0, "top": {"values": y.topk(2).values}}


def test_outputs_are_called_by_their_keys() -> None:
    found = verify(module=False)(program(Choosing(), torch.randn(4, 8))).agreement
    assert found is not None
    assert [row.output for row in found.rows] == ["place", "positive", "top.values"]


def test_a_near_tie_is_decided_by_rounding_and_a_wrong_choice_is_not() -> None:
    model = Choosing()
    with torch.no_grad():  # outputs 3 and 4 are the largest, and all but equal
        model.linear.weight[4] = model.linear.weight[3] = 1.0
        model.linear.weight[4] *= 1 + 1e-7
        model.linear.bias[3:5] = 50.0
    made = program(model, torch.rand(4, 8))
    module = made.module("reference")

    def exchanged(right: Any, layer: Any, inputs: Any, weights: Any) -> Any:
        values, places = right(layer, inputs, weights)
        return values, torch.where(places == 3, 4, torch.where(places == 4, 3, places)).to(places.dtype)

    def other(right: Any, layer: Any, inputs: Any, weights: Any) -> Any:
        values, places = right(layer, inputs, weights)
        return values, torch.zeros_like(places)

    assert module(torch.rand(4, 8))["place"].min() >= 3
    layers = frozenset(la.name for la in made.networks[0].layers if la.kind == "TOPK" and "argmax" in la.name)
    assert layers
    with planted(exchanged, "TOPK", layers):
        agreement = verify()(made).agreement
    assert next(row for row in agreement.rows if row.output == "place").undecided
    with planted(other, "TOPK", layers), pytest.raises(pipeline.AgreementError, match="place, optimal"):
        verify()(made)


class Nudged(Choosing):
    """Adds a little that depends on the choice to one number in four."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 4]"""
        place = self.linear(x).argmax(1, keepdim=True)
        return torch.cat([1 + 2e-5 * (place - 3), x[:, :3]], 1)


def test_what_changes_by_little_with_a_near_tie_is_in_its_range_or_wrong() -> None:
    """The change is beyond the bound, and less than what `FLIPS` takes for a decision."""
    model = Nudged()
    with torch.no_grad():
        model.linear.weight[4] = model.linear.weight[3] = 1.0
        model.linear.weight[3] *= 1 + 2e-7  # eager's choice is float64's
        model.linear.bias[3:5] = 50.0
    made = program(model, torch.rand(4, 8))

    def by(places: int) -> Any:
        def moved(right: Any, layer: Any, inputs: Any, weights: Any) -> Any:
            values, found = right(layer, inputs, weights)
            return values, (torch.where(found == 3, 4, 3) if places else torch.full_like(found, 7)).to(found.dtype)

        return moved

    with planted(by(1), "TOPK"):
        (row,) = verify(module=False)(made).agreement.rows
    assert 0 < row.undecided <= 4
    with planted(by(0), "TOPK"), pytest.raises(pipeline.AgreementError, match="1 of 1 outputs"):
        verify(module=False)(made)


class Apart(nn.Module):
    """Two linear layers, one in float32 and one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Linear(64, 64), nn.Linear(64, 64).bfloat16()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 64] -> two of [N, 64]"""
        return self.wide(x), self.narrow(x.bfloat16())


def test_what_rounding_does_to_halves_excuses_no_floats() -> None:
    made = program(Apart(), torch.randn(8, 64))

    def wrong(right: Any, layer: Any, inputs: Any, weights: Any) -> Any:
        (y,) = right(layer, inputs, weights)
        return ((torch.cat([y[..., :16] * 1.004, y[..., 16:]], -1) if y.dtype == torch.float32 else y),)

    verify(module=False)(made)
    with planted(wrong, "ELEMENTWISE"), pytest.raises(pipeline.AgreementError, match="1 of 2 outputs"):
        verify(module=False)(made)


class Stateful(nn.Module):
    """Counts in a buffer, and writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        self.count += x.exp().sum(0)
        x.mul_(2)
        return x + self.count


def test_what_is_written_to_is_compared_from_the_same_state_at_every_size() -> None:
    made = program(Stateful(), torch.randn(2, 4), dims=({0: Dim("n", min=1, max=6)},))
    agreement = verify()(made).agreement
    assert {row.output for row in agreement.rows} == {
        "buffer count after the call",
        "input x after the call",
        "output",
    }
    with planted(factor, "UNARY"), pytest.raises(pipeline.AgreementError, match="buffer count after the call"):
        verify()(made)


class Dropping(nn.Module):
    """Adds noise to one of its results."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N] -> two of them"""
        return x + torch.rand_like(x), x * 2


def test_random_outputs_are_said_not_to_be_judged() -> None:
    found = verify(module=False)(program(Dropping(), torch.randn(4), min_block_size=1)).agreement
    assert [bool(row.unjudged) for row in found.rows] == [True, False]
    assert "random numbers" in str(found)


def test_dropout_in_evaluation_is_judged() -> None:
    found = verify()(program(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(3, 4))).agreement
    assert all(not row.unjudged for row in found.rows)


class Picky(nn.Module):
    """Reads rows that its input names, in a table of four."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """[4, 2], [N] -> [N, 2]"""
        return x[rows]


def test_inputs_that_eager_does_not_take_are_skipped_with_the_reason() -> None:
    made = program(Picky(), torch.randn(4, 2), torch.tensor([0, 3]))
    with pytest.raises(pipeline.AgreementError, match="could not be compared with eager"):
        verify(inputs=[(torch.randn(4, 2), torch.tensor([0, 9]))])(made)
    found = verify(inputs=[(torch.randn(4, 2), torch.tensor([1, 2]))], module=False)(made).agreement
    assert [row.sample for row in found.rows] == ["inputs[0]"]


def test_halves_are_measured_beside_eager_in_halves() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).half()
    (row,) = verify(module=False)(program(model, torch.randn(4, 64).half())).agreement.rows
    assert row.exact == "float64" and row.eager_error > 1e-5 and row.bound > 3.9e-3


def test_sums_of_halves_in_halves_are_found() -> None:
    with planted(half_sums, "MATRIX_MULTIPLY"):
        made = program(nn.Linear(4096, 24).half(), torch.randn(8, 4096).half())
        with pytest.raises(pipeline.AgreementError, match="of the norm"):
            verify()(made)


def test_autocast_is_compared_with_mixed_precision() -> None:
    compile = UNBUILT.insert(pipeline.autocast(torch.bfloat16), before="decompose") | verify()
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    (row,) = compile(model, (torch.randn(4, 32),)).agreement.rows
    assert row.eager_error > 1e-4


def test_the_model_and_its_inputs_stay_as_they_are() -> None:
    model, x = Stateful().eval(), torch.randn(2, 4)
    before = x.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (UNBUILT | verify())(model, (x,))
    assert torch.equal(x, before) and not model.count.any()


def test_refitted_weights_are_what_eager_runs_with() -> None:
    made = pipeline.default()(nn.Linear(4, 4).eval(), (torch.randn(2, 4),))
    made = verify()(made)
    new = pipeline.refit_module_weights(made, nn.Linear(4, 4).eval())
    assert made.agreement is not None and new.agreement is None
    assert verify()(new).agreement.holds
