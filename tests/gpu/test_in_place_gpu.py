"""Parts of pipelines of diffusers in their place, on a GPU: images are as near to exact ones as eager's."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import pipeline
from benchmarks.zoo_gpu import FLOOR
from pipeline.verification.bounds import MULTIPLE
from pipeline.verification.eager import use_tf32

pytest.importorskip("diffusers", exc_type=ImportError)
from tests.compat.diffusion import MADE, Images

pytestmark = pytest.mark.gpu
SIZES = ((32, 32), (64, 48))


def put_in_place(images: Images, **how: Any) -> None:
    """Its denoiser and decoder, compiled for two sizes of images and those between."""
    with pipeline.recorded(images.denoiser) as calls, pipeline.recorded(images.pipe.vae.decoder) as decoded:
        images(64, 64, steps=1), images(32, 32, steps=1)
    compile = pipeline.default(require_full_compilation=True)
    denoiser, decoder = images.denoiser, images.pipe.vae.decoder
    made = compile(denoiser, **calls.inputs), compile(decoder, **decoded.inputs)
    setattr(images.pipe, images.part, made[0].in_place_of(denoiser, **how))
    images.pipe.vae.decoder = made[1].in_place_of(decoder, **how)


@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("which", MADE)
def test_images(which: str, dtype: str) -> None:
    images, exact = Images(which, "cuda", getattr(torch, dtype)), Images(which, dtype=torch.float64)
    with use_tf32(True):
        theirs = [images(*size) for size in SIZES]
    put_in_place(images, cuda_graphs=True)
    for size, eager in zip(SIZES, theirs, strict=True):
        best = exact(*size)
        scale = best.abs().max()
        for _ in range(2):  # the second one replays what the first recorded
            error, own = (((found.cpu() - best).abs().max() / scale).item() for found in (images(*size), eager))
            assert error <= MULTIPLE * own + FLOOR[dtype], (size, error, own)


def test_weights_that_nothing_needs_leave_the_gpu() -> None:
    images = Images("stable diffusion 3", "cuda")
    names = [(name, p.shape) for name, p in images.denoiser.named_parameters()]
    put_in_place(images)
    gc.collect()
    assert [(name, p.shape) for name, p in images.denoiser.named_parameters()] == names
    assert images.denoiser.device.type == "cuda" and images(32, 32).device.type == "cuda"
    assert all(p.untyped_storage().nbytes() <= p.element_size() for p in images.denoiser.parameters())
