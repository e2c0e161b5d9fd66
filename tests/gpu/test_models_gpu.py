"""The public architectures on a GPU: engines agree with eager, also those that were built without a GPU."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import pipeline
from benchmarks.zoo_gpu import FLOOR, IEEE
from examples.models import SMALL, Case, small
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.eager import use_tf32
from tests.gpu.refits import needs_refit

pytestmark = pytest.mark.gpu

SIZES = [{"batch": 1}, {"batch": 3, "sequence": 9, "target": 5}, {"batch": 8, "sequence": 32, "target": 32}]


def compiled(case: Case, **fields: Any) -> pipeline.Compiled:
    """The case in one engine."""
    compile = pipeline.default(require_full_compilation=True, **fields)
    return compile(case.model, args=(), kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)


def agree(case: Case, module: torch.nn.Module) -> None:
    """No worse against float32 on the CPU than eager in the case's dtype on this GPU, times a factor."""
    exact = small(case.name).model
    dtype = str(next(case.model.parameters()).dtype).removeprefix("torch.")
    eager = case.model.cuda()
    for sizes in SIZES:
        kwargs = case.inputs(**sizes)
        with torch.no_grad():
            truth = exact(**tree_map(lambda t: t.float() if t.is_floating_point() else t, kwargs))
            own = eager(**{k: v.cuda() for k, v in kwargs.items()})
        ours = module(**{k: v.cuda() for k, v in kwargs.items()})
        assert type(ours) is type(own)
        for a, e, t in zip(tree_leaves(ours), tree_leaves(own), tree_leaves(truth), strict=True):
            assert a.dtype == e.dtype
            assert a.device.type == "cuda"
            scale = t.abs().max().item()
            allowed = MULTIPLE * (e.cpu().float() - t).abs().max().item() + FLOOR[dtype] * scale
            assert (a.cpu().float() - t).abs().max().item() <= allowed, (sizes, scale)


@pytest.fixture(autouse=True)
def products_as_the_engine_has_them() -> Iterator[None]:
    """eager is the judge: its float32 products use TF32 where the engine's do, and are exact where they are exact."""
    with use_tf32(not IEEE):
        yield


@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("name", sorted(SMALL))
def test_agrees_with_eager(name: str, dtype: str) -> None:
    case = small(name, getattr(torch, dtype))
    result = compiled(case)
    assert len(result.engines) == 1
    agree(case, result.module(executor="tensorrt"))


SCRIPT = """
import pickle, sys, torch
from tests.gpu.test_models_gpu import compiled, small
assert not torch.cuda.is_available()
result = compiled(small(sys.argv[1], getattr(torch, sys.argv[2])))
pickle.dump((bytes(result.engines[0]), result.networks[0].digest), open(sys.argv[3], "wb"))
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet50", "unet"])
def test_an_engine_built_without_a_gpu_runs(name: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "engine"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", SCRIPT, name, dtype, str(path)], check=True, env=environment)
    plan, digest = pickle.loads(path.read_bytes())
    case = small(name, getattr(torch, dtype))
    result = compiled(case)
    assert result.networks[0].digest == digest
    engine = attrs.evolve(result.engines[0], plan=plan)
    agree(case, attrs.evolve(result, engines=(engine,)).module(executor="tensorrt"))


@pytest.mark.parametrize("name", ["resnet18", "bert", "llama"])
@needs_refit
def test_refit_there_and_back_is_exact(name: str) -> None:
    case = small(name, torch.float16)
    result = compiled(case, immutable_weights=False)
    assert result.engines[0].refittable
    kwargs = {k: v.cuda() for k, v in case.inputs(batch=3).items()}
    old = {n: t.clone() for n, t in case.model.state_dict().items()}
    first = tree_leaves(result.module()(**kwargs))
    generator = torch.Generator().manual_seed(1)
    new = {
        n: t + 0.02 * torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else t
        for n, t in old.items()
    }
    changed = pipeline.refit_module_weights(result, new)
    other = tree_leaves(changed.module()(**kwargs))
    twin = small(name, torch.float16).model
    twin.load_state_dict(new)
    with torch.no_grad():
        expected = tree_leaves(twin.cuda()(**kwargs))
    scale = expected[0].abs().max()
    assert (other[0] - expected[0]).abs().max() <= 0.02 * scale
    assert (other[0] - first[0]).abs().max() > 0.02 * scale
    back = tree_leaves(pipeline.refit_module_weights(changed, old).module()(**kwargs))
    again = tree_leaves(result.module()(**kwargs))
    assert all(torch.equal(a, b) for a, b in zip(first, back, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
