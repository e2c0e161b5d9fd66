"""See what was compiled and what takes the time: a text, a page, and on a GPU the milliseconds of each layer."""

import tempfile
from pathlib import Path

import torch

import pipeline
from examples.unet import UNet


def main() -> None:
    """Compile a UNet; write its page, with times where there is a GPU."""
    model, x = UNet().eval().requires_grad_(False), torch.rand(1, 3, 32, 32)
    compiled = pipeline.compile(model, args=(x,))
    profile = compiled.profile(x) if torch.cuda.is_available() else None
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        print(compiled.report(html=page, title="UNet", profile=profile))
        print(f"{page.stat().st_size} bytes: one file, which opens without a network")
    print(profile or "no GPU here: no times")


if __name__ == "__main__":
    main()
