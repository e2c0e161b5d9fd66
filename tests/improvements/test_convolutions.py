"""padding and scales: convolutions and pools take in what stands around them, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

from pipeline import Program
from pipeline.frozen import FrozenDict
from tests.improvements.programs import agree, decomposed, improved, targets, values

X = torch.randn(2, 4, 9, 8, generator=torch.Generator().manual_seed(0))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_batch_norms_become_part_of_convolutions(name: str, dtype: torch.dtype) -> None:
    model, x = seeded(NORMS[name]).to(dtype), X.to(dtype)
    program = decomposed(model, x, immutable_weights=False)
    after = improved(program, "scales")
    assert [t for t in targets(after) if "flatten" not in t and "view" not in t] == ["convolution.default"]
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    agree(program, after, x, rtol=tolerance, atol=tolerance)


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
    program = decomposed(seeded(KEPT[name]), X, immutable_weights=False)
    assert str(improved(program, "scales")) == str(program)


def test_tensorrt_folds_into_fixed_weights_itself() -> None:
    program = decomposed(seeded(NORMS["conv2d"]), X)
    assert str(improved(program, "scales")) == str(program)


def test_a_folded_batch_norm_has_its_recipe_and_can_be_refitted() -> None:
    first, second = (seeded(NORMS["conv2d"]) for _ in range(2))
    for parameter in second.parameters():
        parameter.data.mul_(1.5)
    program = decomposed(first, X, immutable_weights=False)
    after = improved(program, "scales")
    recipes = sorted(recipe.parameters for recipe in after.constants.values())
    assert [set(r) for r in recipes] == [
        {"0.bias", "1.weight", "1.running_var", "1.bias", "1.running_mean"},
        {"0.weight", "1.weight", "1.running_var"},
    ]
    changed = evolve(after, parameters=FrozenDict({n: second.state_dict()[n] for n in after.parameters}))
    with torch.no_grad():
        torch.testing.assert_close(values(changed, X)[0], second(X), rtol=1e-4, atol=1e-4)


def pad(amounts: Any, value: float = 0.0, mode: str = "constant") -> nn.Module:
    class Pad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Pads as it was told."""
            return nn.functional.pad(x, amounts, mode, value if mode == "constant" else None)

    return Pad()


TAKEN = {
    "convolution": lambda: nn.Sequential(pad((2, 2, 1, 1)), nn.Conv2d(4, 6, 3)),
    "with its own": lambda: nn.Sequential(pad((2, 2)), nn.Conv2d(4, 6, 3, padding=(1, 0), stride=2)),
    "layer": lambda: nn.Sequential(nn.ZeroPad2d(3), nn.Conv2d(4, 6, 7)),
    "average": lambda: nn.Sequential(pad((1, 1, 1, 1)), nn.AvgPool2d(3, 2)),
    "average of one dim": lambda: nn.Sequential(nn.Flatten(2), pad((1, 1)), nn.AvgPool1d(3)),
    "maximum": lambda: nn.Sequential(pad((1, 1, 1, 1), -torch.inf), nn.MaxPool2d(3, 2)),
}
LEFT = {
    "another value": lambda: nn.Sequential(pad((1, 1, 1, 1), 1.0), nn.Conv2d(4, 6, 3)),
    "another mode": lambda: nn.Sequential(pad((1, 1, 1, 1), mode="reflect"), nn.Conv2d(4, 6, 3)),
    "one side": lambda: nn.Sequential(pad((0, 1, 0, 1)), nn.Conv2d(4, 6, 3)),
    "channels": lambda: nn.Sequential(pad((0, 0, 0, 0, 1, 1)), nn.Conv2d(6, 6, 3)),
    "less than nothing": lambda: nn.Sequential(pad((-1, -1)), nn.Conv2d(4, 6, 3)),
    "more than half a window": lambda: nn.Sequential(pad((2, 2, 2, 2)), nn.AvgPool2d(3)),
    "an average with ceil_mode": lambda: nn.Sequential(pad((1, 1, 1, 1)), nn.AvgPool2d(3, 2, ceil_mode=True)),
    "an average with its own": lambda: nn.Sequential(pad((1, 1, 1, 1)), nn.AvgPool2d(3, padding=1)),
    "zeros before a maximum": lambda: nn.Sequential(pad((1, 1, 1, 1)), nn.MaxPool2d(3)),
    "transposed": lambda: nn.Sequential(pad((1, 1, 1, 1)), nn.ConvTranspose2d(4, 6, 3)),
}


def paddings(program: Program) -> int:
    return sum("pad" in target for target in targets(program))


@pytest.mark.parametrize("name", TAKEN)
def test_padding_becomes_part_of_what_follows(name: str) -> None:
    program = decomposed(seeded(TAKEN[name]), X)
    after = improved(program, "padding")
    assert (paddings(program), paddings(after)) == (1, 0)
    agree(program, after, X, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LEFT)
def test_other_padding_stays(name: str) -> None:
    program = decomposed(seeded(LEFT[name]), X)
    assert str(improved(program, "padding")) == str(program)


def test_padding_that_others_read_is_computed_once_and_for_them() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3)

        def forward(self, x: torch.Tensor) -> Any:
            """The padded input is an output as well."""
            y = nn.functional.pad(x, (1, 1, 1, 1))
            return self.conv(y), y

    program = decomposed(seeded(Shared), X)
    agree(program, improved(program, "padding"), X, rtol=1e-5, atol=1e-5)
