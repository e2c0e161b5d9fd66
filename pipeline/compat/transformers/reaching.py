"""What a model's own code calls its language model with: taken from there, or put there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from pipeline.compat.transformers.caches import Pretrained
from pipeline.errors import PipelineError

DEEP = ("visual_pos_masks", "deepstack_visual_embeds")
"""What the first layers of a language model add at the places of images, by the names that transformers has for it."""


class ReachedError(PipelineError):
    """A model's own code calls its language model: with what."""

    def __init__(self, given: Mapping[str, Pretrained]) -> None:
        super().__init__("the language model is called")
        self.given = given


def reach(*_: object, **given: object) -> None:
    """Take the place of a language model's ``forward``."""
    raise ReachedError(given)


@contextmanager
def eager_attention(model: Pretrained) -> Iterator[None]:
    """While entered, a model's masks are tensors, whichever way it attends by itself."""
    every: list[Pretrained] = [getattr(each, "config", None) for each in model.modules()]
    configs = {id(each): each for each in every if hasattr(each, "_attn_implementation_internal")}
    before = {key: each._attn_implementation_internal for key, each in configs.items()}
    try:
        for each in configs.values():
            each._attn_implementation_internal = "eager"
        yield
    finally:
        for key, each in configs.items():
            each._attn_implementation_internal = before[key]


@contextmanager
def reaching(
    decoder: Pretrained,
    seen: torch.Tensor,
    added: torch.Tensor | None,
    ahead: torch.Tensor | None,
    kinds: tuple[str, ...] = (),
) -> Iterator[None]:
    """While entered, what a model gives to its language model has what a prompt has beside embeddings; ``ahead`` is for
    the masks of these kinds of layers."""

    def give(
        _: object, args: tuple[object, ...], given: dict[str, Pretrained]
    ) -> tuple[tuple[object, ...], dict[str, Pretrained]]:
        if added is not None:
            given = {**given, **dict(zip(DEEP, (seen, list(added.unbind(0))), strict=True))}
        if ahead is not None:
            mask = given["attention_mask"]
            if isinstance(mask, Mapping):
                opened = {name: _open(each, ahead) if name in kinds else each for name, each in mask.items()}
                given = {**given, "attention_mask": opened}
            else:
                given = {**given, "attention_mask": _open(mask, ahead)}
        return args, given

    handle = decoder.register_forward_pre_hook(give, with_kwargs=True)
    if added is not None:  # at all places alike, 0 where nothing is added
        decoder.__dict__["_deepstack_process"] = lambda hidden, _, more: hidden + more
    try:
        yield
    finally:
        handle.remove()
        decoder.__dict__.pop("_deepstack_process", None)


def _open(mask: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
    """A mask [rows, 1, length, positions] that lets tokens attend ahead as well."""
    if mask.dtype == torch.bool:
        return mask | ahead[:, None]
    return mask.masked_fill(ahead[:, None], 0)
