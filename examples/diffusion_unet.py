"""Denoise: a UNet that a loop in Python calls, with a CUDA graph of each size on a GPU."""

import torch

import pipeline
from examples.unet import UNet


def main() -> None:
    """Compile the UNet once; remove its noise from a batch step by step."""
    torch.manual_seed(0)
    model = UNet().eval().requires_grad_(False)
    batch = pipeline.Input(min_shape=(1, 3, 32, 32), opt_shape=(2, 3, 32, 32), max_shape=(4, 3, 32, 32))
    compiled = pipeline.compile(model, args=(batch,), cuda_graphs=True)
    module = compiled.module()
    x = torch.randn(2, 3, 32, 32)
    for step in range(3):
        noise = module(x)
        torch.testing.assert_close(noise.cpu(), model(x), rtol=1e-2, atol=1e-2)
        x = x - 0.1 * noise.cpu()
        print(f"step {step}: norm {x.norm():.3f}")


if __name__ == "__main__":
    main()
