"""Weights outside of engines on a GPU: beside eager, with graphs, refitted, with states of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.compiled import Compiled
from pipeline.verification.eager import use_tf32

pytestmark = pytest.mark.gpu
WIDTH, LAYERS = 256, 4


class Layer(nn.Module):
    """A layer that keeps the sum of the rows that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH), nn.LayerNorm(WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, WIDTH] -> [rows, WIDTH]"""
        self.seen += x.mean(0)
        return x + self.down(torch.relu(self.up(self.norm(x)))) + self.seen


class Deep(nn.Module):
    """Layers of one structure, and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, WIDTH] -> [rows, 8]"""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def deep(dtype: torch.dtype, seed: int = 0) -> nn.Module:
    return Deep(seed).to("cuda", dtype).eval()


def compiled(model: nn.Module, dtype: torch.dtype) -> Compiled:
    compile = pipeline.default(min_block_size=1).replace("partition", pipeline.in_pieces(between="layers.*"))
    compile = compile.insert(pipeline.engine_per_profile(), after="partition")
    compile = compile.insert(pipeline.shared_weights(), after="partition")
    shapes = [({0: 1},), ({0: Dim("rows", min=2, max=64)},)]
    made = compile(model, args=(torch.randn(4, WIDTH, device="cuda", dtype=dtype),), profiles=shapes)
    assert isinstance(made, Compiled)
    return made


def check(run: Any, model: nn.Module, dtype: torch.dtype, *rows: int) -> None:
    with torch.no_grad(), use_tf32(enabled=True):
        for count in rows:
            x = torch.randn(count, WIDTH, device="cuda", dtype=dtype)
            want, got = model(x), run(x)
            assert close(got, want), f"{count} rows"


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether the largest difference is a few roundings of the largest value."""
    floor = 3e-3 if want.dtype == torch.float32 else 8 * torch.finfo(want.dtype).eps
    return bool((got.float() - want.float()).abs().max() <= floor * want.float().abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("graphs", [False, True])
def test_each_call_runs_its_own_engines_on_one_copy_of_the_weights(dtype: torch.dtype, graphs: bool) -> None:
    result = compiled(deep(dtype), dtype)
    plans = {id(engine.plan) for engine in result.engines}
    assert len(result.engines) == 2 * LAYERS and len(plans) == 4, "a layer, and the last with the head"
    module = result.module("tensorrt", cuda_graphs=graphs)
    model = deep(dtype)
    check(module, model, dtype, 1, 1, 1, 1, 5, 64, 64, 64, 1, 5)
    for name, value in model.named_buffers():
        assert close(module.state_dict()[name], value), name


def test_states_are_apart_and_weights_are_not() -> None:
    module = compiled(deep(torch.float16), torch.float16).module("tensorrt", cuda_graphs=True)
    before = torch.cuda.memory_allocated()
    other = module.new_state()
    assert torch.cuda.memory_allocated() - before < 1 << 20, "a state has no weights"
    check(module, deep(torch.float16), torch.float16, 1, 1, 1, 3)
    check(other, deep(torch.float16), torch.float16, 3, 1, 1, 1)


def test_other_weights_without_a_build() -> None:
    result, other = compiled(deep(torch.float16), torch.float16), deep(torch.float16, seed=1)
    refitted = pipeline.refit_module_weights(result, other)
    assert [engine.digest for engine in refitted.engines] == [engine.digest for engine in result.engines]
    check(refitted.module("tensorrt"), other, torch.float16, 1, 4)
    check(result.module("tensorrt"), deep(torch.float16), torch.float16, 1, 4)


def test_the_models_own_weights_are_read_where_they_lie_if_tensorrt_can() -> None:
    model = deep(torch.float16)
    memory = torch.zeros(8 * WIDTH + 1, device="cuda", dtype=torch.float16)
    off = memory[1:].view(8, WIDTH)
    off.copy_(model.head.weight.detach())  # type: ignore[union-attr, arg-type]
    model.head.weight = nn.Parameter(off)  # type: ignore[union-attr]
    result = compiled(model, torch.float16)
    before = torch.cuda.memory_allocated()
    module = result.module("tensorrt", cuda_graphs=True, copy_weights=False)
    weights = sum(p.nbytes for p in model.parameters())
    assert torch.cuda.memory_allocated() - before < weights / 2
    own = {value.data_ptr() for value in module._weights.values()}
    assert off.data_ptr() not in own and model.layers[1].up.weight.data_ptr() in own  # type: ignore[index, union-attr]
    check(module, deep(torch.float16), torch.float16, 1, 1, 1, 5)


class Two(nn.Module):
    """A layer for each of two inputs, whose rows have nothing to do with each other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(2))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[n, WIDTH], [m, WIDTH] -> the same"""
        return self.layers[0](a), self.layers[1](b)


@pytest.mark.parametrize("graphs", [False, True])
def test_one_engine_serves_layers_of_other_sizes(graphs: bool) -> None:
    model = Two().cuda().half().eval()
    a, b = (torch.randn(rows, WIDTH, device="cuda", dtype=torch.float16) for rows in (5, 5))
    compile = pipeline.default(min_block_size=1).replace("partition", pipeline.in_pieces(between="layers.*"))
    compile = compile.insert(pipeline.shared_weights(), after="partition")
    shapes = {"a": {0: Dim("n", min=1, max=9)}, "b": {0: Dim("m", min=1, max=9)}}
    made: Any = compile(model, args=(a, b), dynamic_shapes=shapes)
    assert len({id(engine.plan) for engine in made.engines}) == 1 < len(made.engines)
    module = made.module("tensorrt", cuda_graphs=graphs, engine_graphs=False)
    for n, m in ((3, 5), (5, 3), (9, 1)):
        given = a[:1].expand(n, WIDTH).contiguous(), b[:1].expand(m, WIDTH).contiguous()
        for _ in range(4):
            for got, want in zip(module(*given), model(*given), strict=True):
                assert close(got, want)
    assert module.refused_graphs == ()
