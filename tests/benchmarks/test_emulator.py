"""The emulator runs kernels as a GPU does, tells what it does not run, and finds faults that are planted in a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from attrs import evolve
from torch.export import Dim
from torch.nn import functional

import pipeline
from benchmarks import emulated as campaign
from benchmarks.emulator import COMPILER, NotEmulated, emulated, run
from benchmarks.emulator.plan import Plan
from benchmarks.emulator.programs import program
from pipeline.trt import CAPABILITIES

pytestmark = [
    pytest.mark.skipif(CAPABILITIES.flavour != "tensorrt_rtx", reason="plans of another TensorRT hold no sources"),
    pytest.mark.skipif(COMPILER is None, reason="kernels are compiled for the CPU, with a C++ compiler"),
]
COMPILE: Final = pipeline.default(require_full_compilation=True, min_block_size=1, compute_capabilities=("8.0",))
ERRORS: Final = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
PROGRAMS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    "elementwise": lambda x: (x.tanh() + 1).exp() / (x.abs() + 2),
    "rows": lambda x: x.softmax(-1),
    "columns": lambda x: x.sum(1) - x.amax(1),
    "everything": lambda x: (x * x).mean(),
    "norm": lambda x: functional.layer_norm(x, (40,)) * 2,
    "running sums": lambda x: x.cumsum(1),
    "views": lambda x: x.mT.flip(0).roll(1, 1).reshape(-1, 5)[1:-1] + x[0, :1, 5],
    "joined": lambda x: torch.cat([x[:, :2] * 2, x, x[:, :1].neg()], 1),
    "constants": lambda x: x * torch.arange(40).to(x) + torch.full((6, 1), 0.5).to(x),
    "several": lambda x: (x.sum(-1), x.sigmoid(), x.mT + 1, x > 0, x.argmax(-1)),
}


class Model(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor) -> Any:
        return PROGRAMS[self.name](x)


def compiled(name: str, x: torch.Tensor, **more: Any) -> pipeline.Compiled:
    return COMPILE(Model(name).eval(), args=(x,), **more)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_agree_with_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 40).to(dtype)
    with emulated():
        made = compiled(name, x).module("reference")
    leaves = (torch.utils._pytree.tree_leaves(value) for value in (made(x), Model(name)(x.double())))
    for found, exact in zip(*leaves, strict=True):
        if exact.is_floating_point():
            assert found.dtype == dtype
            assert float((found.double() - exact).abs().max() / exact.abs().max()) <= ERRORS[dtype]
        elif found.dtype == torch.bool:
            assert torch.equal(found, exact)


def test_inputs_may_be_given_anew() -> None:
    x = torch.randn(4, 6, 40)
    with emulated():
        made = compiled("several", x).module("reference")
    for each in (x, x * 2, x.mT.contiguous().mT):
        torch.testing.assert_close(made(each), Model("several")(each))


FAULTS: Final = {
    "another operator": ("= __myln_add___myln_float___myln_float(", "= __myln_max___myln_float___myln_float("),
    "another place": ("0 + (", "1 + ("),
    "fewer elements": (") < ", ") + 7 < "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    x = torch.randn(4, 6, 40)
    plan = Plan.of(bytes(compiled("views", x).engines[0].plan))
    name, wanted = plan.inputs[0].rpartition(".")[0], Model("views")(x)
    torch.testing.assert_close(run(plan, {name: x})["output"], wanted)
    kernels = {kernel: _planted(source, *FAULTS[fault]) for kernel, source in plan.sources.items()}
    assert kernels != plan.sources
    assert not torch.allclose(run(evolve(plan, sources=kernels), {name: x})["output"], wanted)


def _planted(source: str, before: str, after: str) -> str:
    """A source with a fault in its kernel, and not in the definitions before."""
    place = source.index("__global__ void ")
    return source[:place] + source[place:].replace(before, after)


def test_what_has_no_source_is_told() -> None:
    x = torch.randn(4, 6, 40)

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.mT

    with emulated(), pytest.raises(NotEmulated, match=r"fully_connected|Fc"):
        COMPILE(Product().eval(), args=(x,)).module("reference")
    varying = compiled("rows", x, dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    with emulated(), pytest.raises(NotEmulated, match="sizes that vary"):
        varying.module("reference")
    torch.testing.assert_close(varying.module("reference")(x), x.softmax(-1))


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_random_programs_are_right(first: int) -> None:
    """Programs of what TensorRT fuses; ``python -m benchmarks.emulated`` has more of them."""
    kinds = [campaign.checked(seed, torch.float32) for seed in range(first, first + 4)]
    assert not [text for kind, text in kinds if kind == "wrong"]
    assert sum(kind == "right" for kind, _ in kinds) >= 3


def test_programs_are_the_same_in_every_process() -> None:
    assert program(7) == program(7) and program(7) != program(8)
    assert len({program(seed).text for seed in range(50)}) == 50
