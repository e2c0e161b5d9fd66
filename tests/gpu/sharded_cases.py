"""What two ranks check together on GPUs: each case runs in both, and compares with the model that is not sharded.

Without a GPU the cases run with the reference executor, so that they can be tried before.
"""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from benchmarks.sharded import by_plan, cuda, device, step_of
from pipeline.compat.transformers import compile_for_generation
from pipeline.stages import choose, faster_in_torch
from pipeline.trt import CAPABILITIES
from tests.distributed.cases import BY_ROWS_AND_COLUMNS, COLLECTIVES, ROWS, Block, Reduced, in_engines
from tests.distributed.models import TEXT, vit_and_plan

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
BOUND = 4e-3
"""The error of a few layers in float32 with TF32, relative to the largest result."""


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def llama(dtype: torch.dtype) -> Any:
    """A Llama of two layers, the same on all ranks."""
    torch.manual_seed(6)
    config = LlamaConfig(**SIZES, **TEXT, eos_token_id=None, initializer_range=0.1)
    return LlamaForCausalLM(config).eval().requires_grad_(False).to(device(), dtype)


def generated(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The greedy tokens after two prompts, and the logits of each."""
    torch.manual_seed(4)
    ids = torch.randint(1, 64, (2, 5)).to(device())
    how = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
    return found.sequences, torch.stack(found.logits)


def agree(compiled: Any) -> None:
    """The tokens are those of the whole model in float32, and the logits no worse than twice as far as in float16."""
    (tokens, exact), (_, half) = generated(llama(torch.float32)), generated(llama(torch.float16))
    allowed, best = 2 * error(half, exact) + 2e-3, exact.topk(2).values
    assert allowed < 0.4 * float((best[..., 0] - best[..., 1]).min() / exact.abs().max()), "a choice of tokens is close"
    found, logits = generated(compiled)
    assert torch.equal(found, tokens)
    assert error(logits, exact) < allowed


def loads(decoder: pipeline.Compiled, path: Path) -> None:
    """The program in a file computes what it computed before."""
    decoder.save(path)
    before, after = (step_of(each.module(), 2, 16)(3) for each in (decoder, pipeline.load(path, COLLECTIVES)))
    assert error(after, before) < BOUND


def llama_with_gloo(rank: int, folder: Path) -> None:
    """Engines on one GPU, and collectives through the host. The model itself does not run there: torch 2.11 ends the
    process in gloo's thread, so that nothing is generated."""
    ids, whole = torch.randint(1, 64, (2, 5)).to(device()), llama(torch.float32)
    expected = whole(ids).logits
    rows = pipeline.Input(min_shape=(2, 5), max_shape=(4, 5), dtype=torch.int64)
    compiled = pipeline.compile(by_plan(whole), kwargs={"input_ids": rows, "use_cache": False})
    module = compiled.module()
    assert len(compiled.engines) > 2
    for given in (ids, ids.repeat(2, 1)):
        assert error(module(input_ids=given, use_cache=False).logits, expected.repeat(len(given) // 2, 1, 1)) < BOUND


def vit_with_gloo(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    (model, plan), x = vit_and_plan(), torch.randn(2, 3, 16, 16).to(device())
    model = model.requires_grad_(False).to(device())
    expected = model(x).last_hidden_state
    mesh = init_device_mesh(device().type, (2,))
    compiled = pipeline.compile(parallelize_module(model, mesh, plan, src_data_rank=None), (x,))
    assert compiled.engines
    assert error(compiled.module()(x).last_hidden_state, expected) < BOUND


def nccl() -> Any:
    """A context in which process groups are NCCL's, or count as such."""
    return contextlib.nullcontext() if cuda() else in_engines()


def llama_in_and_between_engines(rank: int, folder: Path) -> None:
    """The collectives of NCCL between engines, and inside of one; first calls run without a graph, later ones with."""
    engines = []
    for inside in (False, True):
        how: dict[str, Any] = {"shared_weights": False, "cuda_graphs": True, "collectives_in_engine": inside}
        with nccl():
            compiled = compile_for_generation(by_plan(llama(torch.float16)), max_cache_len=16, max_batch=2, **how)
        engines.append(len(compiled.compiled["decoder"].engines))
        agree(compiled)
        assert not (cuda() and compiled.runners["decoder"].refused_graphs)
    loads(compiled.compiled["decoder"], folder / f"{rank}.trtp")
    assert engines[1] < engines[0] if CAPABILITIES.collectives and cuda() else engines[1] <= engines[0], engines


def llama_with_measured_forms(rank: int, folder: Path) -> None:
    """Each rank measures its own part in three forms, and all take the same one."""
    asked: list[Any] = []

    def timer(programs: Any, profile: Any) -> Any:
        asked.extend(programs)
        return choose.measure_segments(programs, profile)

    kept = str(folder / f"measured{rank}.json")
    compile = pipeline.default(cuda_graphs=cuda(), measurements=kept).replace("choose", choose.Choose(timer))
    with nccl(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "LARGE", 0)
        patched.setattr(faster_in_torch, "LEAST", 0)
        patched.setattr(faster_in_torch, "QUERIES", 2)
        compiled = compile_for_generation(by_plan(llama(torch.float16)), max_cache_len=16, max_batch=2, compile=compile)
    agree(compiled)
    assert len(asked) == 6 * cuda()  # three forms in each of two profiles


def collectives_of_engines(rank: int, folder: Path) -> None:
    """Each operation of the layer is that of NCCL, also of two that differ in the reduction alone."""
    for dtype in (torch.float16, torch.int64):
        every = torch.randint(-9, 9, (2, 4, 5)).to(device(), dtype)
        with nccl():
            compiled = pipeline.default(collectives_in_engine=True)(Reduced(), (every[rank],))
        found = [network.kinds()["DIST_COLLECTIVE"] for network in compiled.networks]
        assert found == [4] or not CAPABILITIES.collectives
        module = compiled.module(cuda_graphs=cuda())
        for _ in range(4):
            torch.testing.assert_close(module(every[rank]), Reduced.expected(every, rank))


def a_varying_batch_in_an_engine(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    whole = Block().eval().requires_grad_(False).to(device())
    model = parallelize_module(copy.deepcopy(whole), init_device_mesh(device().type, (2,)), BY_ROWS_AND_COLUMNS)
    with nccl():
        compiled = pipeline.default(collectives_in_engine=True)(model, (ROWS,))
    module = compiled.module(cuda_graphs=cuda())
    for rows in (2, 5, 2, 2):
        x = torch.randn(rows, 4, 16, device=device())
        assert error(module(x), whole(x)) < BOUND


ON_ONE_GPU = (vit_with_gloo, llama_with_gloo)
ON_TWO_GPUS = (
    collectives_of_engines,
    a_varying_batch_in_an_engine,
    llama_in_and_between_engines,
    llama_with_measured_forms,
)
