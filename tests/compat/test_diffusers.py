"""Pipelines of diffusers: their parts compiled in place, by a file or by torch.compile, give the images of eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pipeline

pytest.importorskip("diffusers", exc_type=ImportError)
from tests.compat.diffusion import MADE, Images


@pytest.mark.parametrize("which", MADE)
def test_images_of_parts_that_were_kept(which: str, tmp_path: Path) -> None:
    images = Images(which)
    wanted = [images(32, 32), images(48, 40)]
    with pipeline.recorded(images.denoiser) as calls, pipeline.recorded(images.pipe.vae.decoder) as decoded:
        images(64, 64, steps=1), images(32, 32, steps=1)
    compile = pipeline.default(require_full_compilation=True)
    compile(images.denoiser, **calls.inputs).save(tmp_path / "denoiser.trtp")
    decoder = compile(images.pipe.vae.decoder, **decoded.inputs)
    with torch.device("meta"):
        bare = type(images.denoiser).from_config(images.denoiser.config)
    kept = pipeline.load(tmp_path / "denoiser.trtp")
    setattr(images.pipe, images.part, kept.in_place_of(bare, executor="reference"))
    images.pipe.vae.decoder = decoder.in_place_of(images.pipe.vae.decoder)
    images.pipe.to("cpu")
    for found, image in zip([images(32, 32), images(48, 40)], wanted, strict=True):
        torch.testing.assert_close(found, image, rtol=0, atol=1e-5)
    with pytest.raises(pipeline.ShapeError, match="compiled for"):
        images(128, 32)
    with pytest.raises(pipeline.ExecutionError, match="cannot save weights"):
        images.pipe.save_pretrained(tmp_path / "pipe")


def test_torch_compile_follows_adapters() -> None:
    images, peft = Images("flux"), pytest.importorskip("peft")
    own = images.denoiser
    compiled, plain = torch.compile(own, backend=pipeline.backend()), images(32, 32, steps=1)
    adapter = peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    for change in (lambda: None, lambda: own.add_adapter(adapter, adapter_name="a"), own.fuse_lora):
        change()
        setattr(images.pipe, images.part, own)
        wanted = images(32, 32, steps=1)
        setattr(images.pipe, images.part, compiled)
        torch.testing.assert_close(images(32, 32, steps=1), wanted, rtol=0, atol=1e-5)
    assert not torch.allclose(wanted, plain, atol=1e-4), "adapters change the image"


def test_adapters_on_a_part_without_weights_are_refused() -> None:
    images, peft = Images("stable diffusion 3"), pytest.importorskip("peft")
    with pipeline.recorded(images.denoiser) as calls:
        images(32, 32, steps=1)
    images.pipe.transformer = pipeline.default()(images.denoiser, **calls.inputs).in_place_of(images.denoiser)
    adapter = peft.LoraConfig(r=2, target_modules=["to_q"])
    with pytest.raises(pipeline.ExecutionError, match=r"(?s)setting to_q to a Linear would .*compiled\.with_lora"):
        images.denoiser.add_adapter(adapter, adapter_name="a")
