"""Adapters as PEFT has them are recipes over a program's weights: merged as PEFT merges, and out again bit by bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pipeline

pytestmark = pytest.mark.filterwarnings("ignore::pipeline.ArtifactWarning")
peft = pytest.importorskip("peft")
X = torch.linspace(-1, 1, 16).reshape(2, 8)


class Model(nn.Module):
    """Layers with and without adapters; three products that read one tensor, and one that a norm is folded into."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 12)
        self.norm, self.out = nn.BatchNorm1d(12), nn.Linear(12, 3, bias=False)
        nn.init.uniform_(self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        """[2, 8] -> [2, 3]"""
        scores = torch.softmax(self.q(x) @ self.k(x).t(), -1)
        return self.out(self.norm(scores @ self.v(x)))


class Table(nn.Module):
    """An embedding and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.conv = nn.Embedding(5, 6), nn.Conv2d(2, 4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """[6] -> [4, 4, 2]"""
        return self.conv(torch.stack([self.table(ids)] * 2))


def adapted(model: nn.Module, *targets: str, seed: int = 1, **options: Any) -> Any:
    """The model, adapted by PEFT with factors that are not zero."""
    config = peft.LoraConfig(target_modules=list(targets), r=2, lora_alpha=6, **options)
    made = peft.get_peft_model(copy.deepcopy(model), config).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.normal_()
    return made


def merged(model: Any) -> nn.Module:
    """What PEFT makes of it."""
    result: nn.Module = copy.deepcopy(model).merge_and_unload()
    return result


@pytest.fixture(scope="module")
def base() -> pipeline.Compiled:
    """The model, compiled."""
    result: pipeline.Compiled = pipeline.default()(Model().eval(), args=(X,))
    return result


def test_adapters_come_in_as_peft_merges_them_and_go_out_bit_by_bit(base: pipeline.Compiled) -> None:
    tuned = adapted(Model(), "q", "v", "out")
    made = base.with_lora(peft.get_peft_model_state_dict(tuned), scale=3.0)
    torch.testing.assert_close(made(X), tuned(X), rtol=1e-5, atol=1e-5)
    assert [engine.digest for engine in made.engines] != [engine.digest for engine in base.engines]
    back = made.with_lora({})
    assert list(map(bytes, back.engines)) == list(map(bytes, base.engines))
    assert str(back.refit_map) == str(base.refit_map)
    assert back.program.digest == base.program.digest
    assert torch.equal(back(X), base(X))


def test_the_same_state_dict_with_adapters_names_in_it(base: pipeline.Compiled) -> None:
    tuned = adapted(Model(), "k")
    given = {name: value for name, value in tuned.state_dict().items() if "lora_" in name}
    torch.testing.assert_close(base.with_lora(given, 3.0)(X), tuned(X), rtol=1e-5, atol=1e-5)


def test_adapters_take_each_others_place(base: pipeline.Compiled) -> None:
    one, other = adapted(Model(), "q", seed=1), adapted(Model(), "k", seed=2)
    states = [peft.get_peft_model_state_dict(each) for each in (one, other)]
    turned = base.with_lora(states[0], 3.0).with_lora(states[1], 3.0)
    direct = base.with_lora(states[1], 3.0)
    assert list(map(bytes, turned.engines)) == list(map(bytes, direct.engines))
    torch.testing.assert_close(turned(X), other(X), rtol=1e-5, atol=1e-5)


def test_embeddings_and_convolutions_are_adapted() -> None:
    model, ids = Table().eval(), torch.tensor([0, 1, 2, 3, 4, 1])
    tuned = adapted(model, "table", "conv")
    made = pipeline.default()(model, args=(ids,)).with_lora(peft.get_peft_model_state_dict(tuned), 3.0)
    torch.testing.assert_close(made(ids), merged(tuned)(ids), rtol=1e-5, atol=1e-5)


def test_halves_are_rounded_as_peft_rounds_them() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).half().eval()
    tuned = adapted(model, "0")
    made = pipeline.default()(model, args=(X.half(),)).with_lora(peft.get_peft_model_state_dict(tuned), 3.0)
    weight = made.refit_map["0.weight"].evaluate(made.program.parameters)
    assert torch.equal(weight, merged(tuned)[0].weight)


def test_a_mapping_of_pairs_and_square_weights(base: pipeline.Compiled) -> None:
    a, b = torch.randn(2, 8), torch.randn(8, 2)
    other = Model().eval()
    with torch.no_grad():
        other.q.weight += 0.5 * b @ a
    torch.testing.assert_close(base.with_lora({"q.weight": (a, b)}, 0.5)(X), other(X), rtol=1e-5, atol=1e-5)
    turned = Model().eval()
    with torch.no_grad():
        turned.q.weight += (b @ a).t()
    found = base.with_lora({"q.weight": (a, b)}, fan_in_fan_out=True)
    torch.testing.assert_close(found(X), turned(X), rtol=1e-5, atol=1e-5)


def test_a_file_keeps_adapters_and_base(base: pipeline.Compiled, tmp_path: Path) -> None:
    tuned = adapted(Model(), "q", "v")
    made = base.with_lora(peft.get_peft_model_state_dict(tuned), 3.0)
    made.save(tmp_path / "p.trtp")
    loaded = pipeline.load(tmp_path / "p.trtp")
    torch.testing.assert_close(loaded(X), tuned(X), rtol=1e-5, atol=1e-5)
    assert list(map(bytes, loaded.with_lora({}).engines)) == list(map(bytes, base.engines))


def test_other_weights_below_the_adapters(base: pipeline.Compiled) -> None:
    tuned, other = adapted(Model(), "q"), Model().eval()
    nn.init.normal_(other.q.weight)
    made = pipeline.refit_module_weights(base.with_lora(peft.get_peft_model_state_dict(tuned), 3.0), other)
    again = adapted(other, "q")
    torch.testing.assert_close(made(X), again(X), rtol=1e-5, atol=1e-5)


def test_nothing_that_is_passed_in_changes(base: pipeline.Compiled) -> None:
    before = [bytes(engine) for engine in base.engines]
    a, b = torch.ones(2, 8), torch.ones(8, 2)
    made = base.with_lora({"q.weight": (a, b)})
    expected = made(X)
    a.zero_()
    assert [bytes(engine) for engine in base.engines] == before
    assert torch.equal(made(X), expected)
    assert "q.weight.lora_A" not in base.program.parameters


@pytest.mark.parametrize(
    ("given", "name", "reason"),
    [
        ({"base_model.model.z.lora_A.weight": torch.ones(2, 8)}, "z.lora_A", "has no such parameter"),
        ({"base_model.model.q.lora_A.weight": torch.ones(2, 8)}, "q.weight", "one of lora_A and lora_B is missing"),
        ({"q.weight": (torch.ones(2, 7), torch.ones(8, 2))}, "q.weight", "do not fit"),
        ({"q.weight": (torch.ones(2, 8), torch.ones(8, 3))}, "q.weight", "do not fit"),
        ({"q.weight": torch.ones(8, 8)}, "q.weight", "expected only lora_A and lora_B"),
        ({"q.weight": "a"}, "q.weight", "a pair of tensors"),
        ({"base_model.model.q.lora_magnitude_vector": torch.ones(8)}, "magnitude", "are not supported"),
    ],
)
def test_what_does_not_fit_is_named(base: pipeline.Compiled, given: Any, name: str, reason: str) -> None:
    with pytest.raises(pipeline.RefitError, match=reason) as caught:
        base.with_lora(given)
    assert any(name in key for key in caught.value.weights)


def test_tied_weights_are_named() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).relu())

    made = pipeline.default()(Tied().eval(), args=(X,))
    with pytest.raises(pipeline.RefitError, match=r"one tensor with two\.weight"):
        made.with_lora({"one.weight": (torch.ones(1, 8), torch.ones(8, 1))})
    with pytest.raises(TypeError, match="PEFT"):
        made.with_lora([1])  # type: ignore[arg-type]


def test_what_is_no_adapter_is_told(base: pipeline.Compiled) -> None:
    a, b = torch.ones(2, 8), torch.ones(8, 2)
    for scale in ("x", None, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"scale is .*: expected a finite number"):
            base.with_lora({"q.weight": (a, b)}, scale)  # type: ignore[arg-type]
    with pytest.raises(pipeline.RefitError, match="on the meta device"):
        base.with_lora({"q.weight": (a.to("meta"), b)})
    two = {f"q.lora_{side}.{name}.weight": factor for name in ("one", "two") for side, factor in (("A", a), ("B", b))}
    with pytest.raises(pipeline.RefitError, match=r"lora_A\.two\.weight: another key has factors of q\.weight, too"):
        base.with_lora(two)
    with pytest.raises(pipeline.RefitError, match=r"q\.lora_A\.one\.weight: another key has factors of q\.weight"):
        base.with_lora({"q.weight": (a, b), **two})
    with pytest.raises(pipeline.RefitError, match=r"3: the program has no such parameter"):
        base.with_lora({3: (a, b)})  # type: ignore[dict-item]


def test_adapters_are_kept_without_weights(base: pipeline.Compiled, tmp_path: Path) -> None:
    tuned = base.with_lora({"q.weight": (torch.ones(2, 8), torch.ones(8, 2))}, scale=0.5)
    tuned.save(tmp_path / "p.trtp", weights="none")
    whole = pipeline.refit_module_weights(pipeline.load(tmp_path / "p.trtp"), Model().eval())
    assert torch.equal(whole(X), tuned(X))
    assert list(map(bytes, whole.with_lora({}).engines)) == list(map(bytes, base.engines))
