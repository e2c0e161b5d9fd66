"""fold_batch_norm: convolutions take in what multiplies their channels, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.export import Dim

from pipeline.frozen import FrozenDict
from tests.improvements.programs import agree, decomposed, improved, targets, values

X = torch.randn(4, 4, 9, 8, generator=torch.Generator().manual_seed(0)).half()


def seeded(make: Any) -> nn.Module:
    """A module with random weights and statistics, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = make()
        for norm in (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
            norm.running_mean.copy_(torch.randn(norm.num_features))  # type: ignore[union-attr]
            norm.running_var.copy_(torch.rand(norm.num_features) + 0.5)  # type: ignore[union-attr]
            if norm.affine:
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
    return model.eval()


class Then(nn.Module):
    """What a function makes of a convolution's result."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 6, 3), function
        self.scale, self.shift = nn.Parameter(torch.randn(6, 1, 1)), nn.Parameter(torch.randn(1, 6, 1, 1))

    def forward(self, x: torch.Tensor) -> Any:
        """[N, 4, H, W] -> [N, 6, H - 2, W - 2]"""
        return self.function(self.conv(x), self)


NORMS = {
    "conv2d": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)),
    "no bias": lambda: nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)),
    "not affine": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)),
    "groups": lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4, stride=2), nn.BatchNorm2d(8)),
    "conv1d": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)),
    "conv3d": lambda: nn.Sequential(nn.Unflatten(3, (4, 2)), nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6)),
    "scale": lambda: Then(lambda y, m: y * m.scale),
    "scale, then shift": lambda: Then(lambda y, m: m.shift + m.scale * y),
}


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "refittable"])
@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_become_part_of_convolutions(name: str, fixed: bool) -> None:
    program = decomposed(seeded(NORMS[name]).half(), X, immutable_weights=fixed)
    after = improved(program, "fold_batch_norm")
    assert [t for t in targets(after) if "flatten" not in t and "view" not in t] == ["convolution.default"]
    agree(program, after, X, rtol=2e-2, atol=2e-2)


KEPT = {
    "both are read": lambda: Then(lambda y, m: (y, y * m.scale)),
    "a scale of another dim": lambda: Then(lambda y, m: y * m.scale.reshape(6)),
    "what is no constant": lambda: Then(lambda y, m: y * y.mean((2, 3), keepdim=True)),
    "an activation between": lambda: Then(lambda y, m: y.relu() * m.scale),
    "a shift alone": lambda: Then(lambda y, m: y + m.shift),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6)),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_products_stay(name: str) -> None:
    program = decomposed(seeded(KEPT[name]).half(), X)
    assert str(improved(program, "fold_batch_norm")) == str(program)


@pytest.mark.parametrize("x", [X[:2], X.float(), X.bfloat16()], ids=["a small batch", "float32", "bfloat16"])
def test_tensorrt_does_as_well_or_better_elsewhere(x: torch.Tensor) -> None:
    program = decomposed(seeded(NORMS["conv2d"]).to(x.dtype), x)
    assert str(improved(program, "fold_batch_norm")) == str(program)


@pytest.mark.parametrize(("opt", "folded"), [(2, False), (4, True)])
def test_a_dynamic_batch_is_judged_by_its_opt(opt: int, folded: bool) -> None:
    batch = {0: Dim("batch", min=1, max=8)}
    program = decomposed(seeded(NORMS["conv2d"]).half(), X[:opt], dynamic_shapes=(batch,))
    assert (str(improved(program, "fold_batch_norm")) != str(program)) is folded


def test_a_folded_batch_norm_has_its_recipe_and_can_be_refitted() -> None:
    first, second = (seeded(NORMS["conv2d"]) for _ in range(2))
    for parameter in second.parameters():
        parameter.data.mul_(1.5)
    program = decomposed(first.half(), X, immutable_weights=False)
    after = improved(program, "fold_batch_norm")
    recipes = sorted(recipe.parameters for recipe in after.constants.values())
    assert [set(r) for r in recipes] == [
        {"0.bias", "1.weight", "1.running_var", "1.bias", "1.running_mean"},
        {"0.weight", "1.weight", "1.running_var"},
    ]
    changed = evolve(after, parameters=FrozenDict({n: second.half().state_dict()[n] for n in after.parameters}))
    with torch.no_grad():
        torch.testing.assert_close(values(changed, X)[0], second.half()(X), rtol=2e-2, atol=2e-2)
