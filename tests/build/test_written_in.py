"""Sums of few elements are in no kernel of a reduction that gets them wrong: the kernels of plans, run on this CPU."""

from __future__ import annotations

import pytest
import torch

import pipeline
from benchmarks.emulator import COMPILER, emulated
from pipeline import quirks
from pipeline.trt import CAPABILITIES
from tests.build.written_in import BATCH, BESIDE, BROADCAST, FORMS, Written, example

pytestmark = [
    pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT hold no sources"),
    pytest.mark.skipif(COMPILER is None, reason="kernels are compiled for the CPU, with a C++ compiler"),
]
COMPILE = pipeline.default(require_full_compilation=True, min_block_size=1, compute_capabilities=("8.0",))


def error(form: str) -> float:
    """Of the engine's kernels, relative to the largest value."""
    model, x = Written(form).eval(), example(form)
    compiled = COMPILE(model, args=(x,))
    with emulated():
        run = compiled.module("reference")
    found, exact = run(x).double(), model(x.double()).double()
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("form", sorted(FORMS.keys() - {"norms of instances"}))  # by themselves they have no source
def test_kernels_agree_with_eager(form: str) -> None:
    assert error(form) < 1e-5


WRONG = (
    *("pairs of sums", "distances", "mean of probabilities", "a residual in batches"),
    *("norms", "norms of squares", "norms of instances"),
)


@pytest.mark.parametrize("form", WRONG)
@quirks.without("sums-of-few")
def test_they_do_not_without_it(form: str) -> None:
    """If a TensorRT has them right, it needs none of this."""
    assert error(form) > 0.05


def layers(compiled: pipeline.Compiled, kind: str) -> int:
    return compiled.networks[0].kinds().get(kind, 0)


@pytest.mark.parametrize("form", BESIDE)
def test_what_is_computed_apart_is_for_any_batch(form: str) -> None:
    model, x = Written(form).eval(), example(form)
    compiled = COMPILE(model, args=(x,), dynamic_shapes=BATCH)
    assert layers(compiled, "CUMULATIVE") == 1
    torch.testing.assert_close(compiled.module("reference")(x[:2]), model(x[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", BROADCAST)
def test_what_is_broadcast_is_repeated(form: str) -> None:
    ours = COMPILE(Written(form).eval(), args=(example(form),))
    with quirks.without("sums-of-few"):
        plain = COMPILE(Written(form).eval(), args=(example(form),))
    assert layers(ours, "SLICE") > layers(plain, "SLICE")
    assert layers(ours, "CUMULATIVE") == (form == "pairs of vectors"), "a product of few is computed apart as well"


UNCHANGED = {
    "nothing reduced": lambda x: x.softmax(1) * 2 + x,
    "of many": lambda x: x.softmax(2).mean(1),
    "of a vector of many": lambda x: (x[0, 0].log_softmax(0) * x).sum(-1),
    "through a product": lambda x: (x.softmax(1) @ x.mT).amax(-1),
    "not broadcast": lambda x: (x.sum(1) * 2).amax(-1),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_others_stay_as_they_are(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return UNCHANGED[name](x)

    ours = str(COMPILE(Model().eval(), args=(torch.randn(5, 4, 20),)).networks[0])
    with quirks.without("sums-of-few"):
        assert str(COMPILE(Model().eval(), args=(torch.randn(5, 4, 20),)).networks[0]) == ours
