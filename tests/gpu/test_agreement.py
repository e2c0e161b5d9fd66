"""The reference executor and the engine agree: every test of the reference runs again, with the engine beside it.

A test below has the name of the reference's test after that of its module; ``Net.run`` in it gives the reference's
results once the engine of the same network has given the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen

from pipeline.network.description import Network
from tests.gpu import networks
from tests.runtime.reference_networks import Net

pytestmark = pytest.mark.gpu

REFERENCE = Path(__file__).parents[1] / "runtime"
run_reference: Callable[[Net], list[torch.Tensor]] = Net.run


@frozen
class Tolerance:
    """The error that the engine may have, relative to an element and to the largest element of its tensor."""

    element: float
    tensor: float


PRODUCTS = frozenset(
    {"CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM", "ATTENTION_INPUT", "ATTENTION_OUTPUT"}
)
TF32 = Tolerance(1e-3, 1e-3)
"""fp32 products have 10 bits of mantissa on a GPU, whatever the builder's TF32 flag says (measured: 8e-4)."""

TOLERANCES = {
    torch.float32: Tolerance(1e-5, 1e-6),  # the GPU's transcendental functions, and the order of sums
    torch.float16: Tolerance(2e-3, 1e-3),  # two units in the last place: 2^-10 each
    torch.bfloat16: Tolerance(1.6e-2, 8e-3),  # the same: 2^-7 each
}

NO_ENGINE = {
    "has no runners that implement it": "TensorRT-RTX has no NonZero and no NMS",
    "Strided & Dilated Deconv": "TensorRT-RTX has no deconvolution with stride and dilation above 1",
    "not supported by a dedicated kernel": "attention of RTX 1.5 and later in float32, which no converter uses",
    "has type Bool but input shape tensors must have": "an assertion on an input needs an integer there",
    "has out of bounds access": "TensorRT checks constant bounds in a branch that is never taken as well",
    "In setMyelinTensorStrides": "an assertion in a loop in a loop",
}
"""What TensorRT says where it builds no engine, and the limit that it means: networks that only the reference runs."""


def tolerance(network: Network, dtype: torch.dtype) -> Tolerance:
    """Integers and bools are exact."""
    if dtype == torch.float32 and PRODUCTS.intersection(network.kinds()):
        return TF32
    return TOLERANCES.get(dtype, Tolerance(0.0, 0.0))


def compare(net: Net, expected: list[torch.Tensor]) -> None:
    """Fails with the network, its inputs and both results where the engine's are not within the tolerance."""
    network = net.described()
    try:
        results = networks.on_gpu(net)
    except AssertionError as error:
        if any(said in str(error) for said in NO_ENGINE):
            return
        raise
    for row, want, got in zip(network.outputs, expected, results, strict=True):
        agrees(network, f"{row.name} of\n{network}\nfor {net.inputs}", got, want)


def agrees(network: Network, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    said = f"{what}\nis {got}\nthe reference gives {want}"
    assert (got.dtype, got.shape) == (want.dtype, want.shape), said
    rtol, atol = limits(network, want)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{m}\n{said}")


def limits(network: Network, want: torch.Tensor) -> tuple[float, float]:
    """Relative and absolute, as ``assert_close`` takes them."""
    allowed = tolerance(network, want.dtype)
    finite = want.double()[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return allowed.element, allowed.tensor * largest


@pytest.fixture(scope="module", autouse=True)
def beside_the_engine() -> Iterator[None]:
    """``Net.run`` also runs the engine."""

    def run(net: Net) -> list[torch.Tensor]:
        expected = run_reference(net)
        compare(net, expected)
        return expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Net, "run", run)
        yield


def reference_tests() -> dict[str, Any]:
    """The tests of the reference that make networks, by a name that is theirs alone."""
    found = {}
    for path in sorted(REFERENCE.glob("test_reference_*.py")):
        module = importlib.import_module(f"tests.runtime.{path.stem}")
        tests = {name: value for name, value in vars(module).items() if name.startswith("test_")}
        family = path.stem.removeprefix("test_reference_")
        found |= {f"test_{family}_{name.removeprefix('test_')}": test for name, test in tests.items()}
    return found


def test_every_family_of_the_reference_is_here() -> None:
    families = {name.split("_")[1] for name in reference_tests()}
    assert families == {path.stem.split("_")[2] for path in REFERENCE.glob("test_reference_*.py")}


NOT_COMPARED = {
    "test_elementwise_integer_division_by_zero_is_zero_here": "TensorRT does not define it; RTX 1.4 gives 2**32 - 1",
    "test_products_attention_without_softmax": "RTX 1.4 on compute capability 9.0 gives wrong values (22.7 where 0.02 "
    "is allowed); no converter uses an attention layer without softmax",
}
"""Tests of the reference whose networks the engine computes differently, each with what was measured."""


def test_what_is_not_compared_exists() -> None:
    assert NOT_COMPARED.keys() <= reference_tests().keys()


if torch.cuda.is_available():
    globals().update({name: test for name, test in reference_tests().items() if name not in NOT_COMPARED})
