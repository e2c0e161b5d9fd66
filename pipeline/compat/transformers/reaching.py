"""What a model's own code calls its language model with: taken from there, or put there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from pipeline.compat.transformers.caches import Pretrained
from pipeline.errors import PipelineError

DEEP = ("visual_pos_masks", "deepstack_visual_embeds")
"""What the first layers of a language model add at the places of images, by the names that transformers has for it."""
BY_LAYER = "per_layer_inputs"
"""What each layer takes of each token beside its embedding (Gemma 3n, Gemma 4), by the name that transformers has."""
LOOKS_UP = "get_per_layer_inputs"
"""The method that looks it up by ids."""
TABLE = "embed_tokens_per_layer"
"""The module that has it, in the language model."""


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
    by_layer: torch.Tensor | None = None,
) -> Iterator[None]:
    """While entered, what a model gives to its language model has what a prompt has beside embeddings; ``ahead`` is for
    the masks of these kinds of layers."""

    def give(
        _: object, args: tuple[object, ...], given: dict[str, Pretrained]
    ) -> tuple[tuple[object, ...], dict[str, Pretrained]]:
        if added is not None:
            given = {**given, **dict(zip(DEEP, (seen, list(added.unbind(0))), strict=True))}
        if by_layer is not None:
            given = {**given, BY_LAYER: by_layer}
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
    if by_layer is not None:  # Gemma 4's own code looks ids up by their embeddings
        decoder.__dict__[LOOKS_UP] = lambda *_, **__: by_layer
    try:
        yield
    finally:
        handle.remove()
        for name in ("_deepstack_process", LOOKS_UP):
            decoder.__dict__.pop(name, None)


def looked_up(decoder: Pretrained, ids: torch.Tensor) -> torch.Tensor:
    """What each layer takes of tokens [rows, length] beside their embeddings: [rows, length, layers, width]."""
    parameters = inspect.signature(getattr(decoder, LOOKS_UP)).parameters
    found: torch.Tensor = getattr(decoder, LOOKS_UP)(*([ids, None][: len(parameters)]))
    return found


def _open(mask: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
    """A mask [rows, 1, length, positions] that lets tokens attend ahead as well."""
    if mask.dtype == torch.bool:
        return mask | ahead[:, None]
    return mask.masked_fill(ahead[:, None], 0)
