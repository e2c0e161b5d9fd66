"""timm's models by name, with random weights, at the smallest image that each takes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from benchmarks.suites.judge import Case, Row, judged

SIZES = (64, 96, 128, 192, 224, 256, 384)
"""Sizes of images, tried in turn."""
LARGEST = 150_000_000
"""Parameters above which a model is left out: it is run in float64 too."""
UNDEFINED = ("nms", "qnms", "roi_align", "qroi_align", "_roi_align_backward", "roi_pool", "_roi_pool_backward")
UNDEFINED += ("ps_roi_align", "_ps_roi_align_backward", "ps_roi_pool", "_ps_roi_pool_backward")
UNDEFINED += ("deform_conv2d", "_deform_conv2d_backward")
"""Operators without which torchvision, which timm imports, cannot be imported beside a torch built for a CPU."""


def cases() -> Iterator[Case]:
    """Yield a case for each of ``timm.list_models()``."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in UNDEFINED:
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor x) -> Tensor")
    import timm

    for name in timm.list_models():
        yield Case(name, partial(_judge, timm.create_model, name, library))


def version() -> str:
    """Return the version of the suite."""
    return f"timm {importlib.metadata.version('timm')}"


def _judge(create: Any, name: str, library: object) -> Row:
    for size in SIZES:
        found: tuple[torch.nn.Module, torch.Tensor] | None = None
        with suppress(Exception), torch.no_grad():
            if _parameters(create, name, size) > LARGEST:
                return {"outcome": "no case", "reason": f"more than {LARGEST:,} parameters"}
            torch.manual_seed(0)
            model, image = _created(create, name, size)
            model(image)
            found = model, image
        if found:
            return judged(found[0], [found[1]]) | {"size": size}
    return {"outcome": "no case", "reason": f"eager PyTorch runs it at none of {SIZES}"}


def _parameters(create: Any, name: str, size: int) -> int:
    """Return the number of a model's parameters, without memory for them."""
    with torch.device("meta"):
        model, _ = _created(create, name, size)
    return sum(parameter.numel() for parameter in model.parameters())


def _created(create: Any, name: str, size: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return the model for images of this size, if its size can be chosen, and an image."""
    try:
        model = create(name, img_size=size).eval()
    except TypeError:
        model = create(name).eval()
    channels = model.pretrained_cfg["input_size"][0]
    return model, torch.randn(2, channels, size, size)
