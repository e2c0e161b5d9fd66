"""Models that see or hear beside their text: what their own code makes of a prompt, up to their language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from attrs import frozen

from pipeline.compat.transformers.caches import Pretrained
from pipeline.errors import CaptureError, ExecutionError

TAKEN = frozenset({"inputs_embeds", "position_ids", "attention_mask"})
"""The tensors that a language model takes in a step."""
OF_TEXT = frozenset({"input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "decoder_input_ids"})


@frozen
class Sight:
    """How a model's prompt reaches its language model: how many positions a token has, if it is no single one, and the
    width of what tokens become."""

    width: int
    dtype: torch.dtype
    positions: int | None


@frozen
class Sample:
    """An example's prompt as it reached the language model, and the logits [rows, vocabulary] of its last token."""

    sight: Sight
    tokens: torch.Tensor
    mask: torch.Tensor
    embeds: torch.Tensor
    places: torch.Tensor
    logits: torch.Tensor


class ReachedError(Exception):
    """A model's own code calls its language model: with what."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = given


def reach(*_: object, **given: object) -> None:
    """Take the place of a language model's ``forward``."""
    raise ReachedError(given)


def sample_of(model: Pretrained, example: Mapping[str, torch.Tensor]) -> Sample:
    """How a prompt with what is beside its text reaches a model's language model: it generates a token.

    Raises:
        CaptureError: more reaches it than a step takes, or nothing does.
    """
    name, found = type(model).__name__, list[Mapping[str, Any]]()

    def note(_: object, args: tuple[object, ...], given: Mapping[str, Any]) -> None:
        found.append(given)

    handle = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    how = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1}
    try:
        with torch.no_grad():
            made = model.generate(**example, **how, return_dict_in_generate=True, output_logits=True)
    except Exception as error:
        why = f"{name} cannot generate for encoder_example"
        raise CaptureError(why, f"pass what its processor gives for a prompt; it says: {error}") from error
    finally:
        handle.remove()
    if not found or found[0].get("inputs_embeds") is None:
        why = f"{name} does not give its language model embeddings of a prompt"
        raise CaptureError(why, "models that do take images or sound; leave encoder_example out for text")
    embeds, places = embeddings(name, found[0])
    tokens = example["input_ids"]
    mask = example.get("attention_mask", torch.ones_like(tokens)).to(torch.bool)
    places = (mask.cumsum(-1) - 1).clamp(min=0) if places is None else places
    sight = Sight(embeds.shape[-1], embeds.dtype, places.shape[0] if places.dim() == 3 else None)
    return Sample(sight, tokens, mask, embeds, places, made.logits[0])


def check(step: torch.nn.Module, sample: Sample, cache: int) -> None:
    """Whether a step gives the logits that the model gives for its example: whatever else reaches the language model
    would be missing.

    Raises:
        CaptureError: it does not.
        ValueError: the example has more tokens than the cache has positions.
    """
    length = sample.tokens.shape[1]
    if length > cache:
        raise ValueError(f"encoder_example has {length} tokens, and max_cache_len is {cache}")
    mask = torch.nn.functional.pad(sample.mask, (0, cache - length))
    start, seen = torch.zeros((), dtype=torch.int64, device=mask.device), torch.ones_like(sample.mask)
    with torch.no_grad():
        found = step(sample.tokens, mask, sample.places, start, sample.embeds, seen)[:, -1].float()
        for buffer in step.buffers(recurse=False):
            buffer.zero_()
    off = (found - sample.logits).abs().max()
    if off > 16 * torch.finfo(sample.sight.dtype).eps * sample.logits.abs().max().clamp(min=1):
        name = type(step.model).__name__
        why = f"{name} reads its prompts in another way: its logits for encoder_example differ by {off:.1e}"
        raise CaptureError(why, "images cannot be in its prompts; without encoder_example it generates for text")


def embeddings(model: str, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a language model is called with: a prompt's embeddings [rows, length, width], and its positions.

    Raises:
        CaptureError: it is called with more.
    """
    more = [name for name, value in given.items() if name not in TAKEN and _has_tensors(value)]
    mask = given.get("attention_mask")
    if isinstance(mask, Mapping) or (isinstance(mask, torch.Tensor) and mask.dim() > 2):
        more.append("attention_mask, of its own")
    if more:
        why = f"{model} gives its language model more than embeddings: {', '.join(more)}"
        raise CaptureError(why, "images cannot be in its prompts; without encoder_example it generates for text")
    return given["inputs_embeds"], given.get("position_ids")


def _has_tensors(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def fill(shell: Pretrained, model: Pretrained) -> None:
    """Give a model's shell all that is not its language model: towers, projections, and the embedding of tokens."""
    decoder, head, embed = model.get_decoder(), model.get_output_embeddings(), model.get_input_embeddings()
    path = next(name for name, each in model.named_modules() if each is decoder)
    for own, real in _ancestors(shell, model, path):
        own._parameters, own._buffers = dict(real._parameters), dict(real._buffers)
        for name, child in real.named_children():
            if child is not head and not any(child is each for each in _on_the_way(model, path)):
                own._modules[name] = child
    shell.get_decoder().forward = reach
    shell.set_input_embeddings(embed)


def _on_the_way(model: torch.nn.Module, path: str) -> Iterator[torch.nn.Module]:
    parts = path.split(".")
    yield from (model.get_submodule(".".join(parts[: i + 1])) for i in range(len(parts)))


def _ancestors(
    shell: torch.nn.Module, model: torch.nn.Module, path: str
) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
    """The modules that a module lies in, in a shell and in its model."""
    parts = path.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[:i])
        yield shell.get_submodule(name), model.get_submodule(name)


def that_are_seen(given: Mapping[str, Any]) -> list[str]:
    """The names of inputs that are no text: pixels and features are floats."""
    return [name for name, value in given.items() if name not in OF_TEXT and any(_floats(value))]


def _floats(value: object) -> Iterator[bool]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _floats(part)
    elif isinstance(value, torch.Tensor):
        yield value.is_floating_point()


def embedded(
    forward: Callable[..., object], given: Mapping[str, Any], model: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a model's own code makes of a prompt and of what is beside its text, and the tokens' positions."""
    try:
        with torch.no_grad():
            forward(**{name: value for name, value in given.items() if value is not None})
    except ReachedError as reached:
        return embeddings(model, reached.given)
    raise ExecutionError(f"{model} has not called its language model", "generate with text alone")


def sight_inputs(
    sight: Sight | None, tokens: torch.Tensor, sizes: Sequence[int], embeds: torch.Tensor | None
) -> Iterator[dict[str, torch.Tensor]]:
    """Of each call what a program takes of what is seen: nothing, if it does not see."""
    if sight is None:
        yield from repeat({}, len(sizes))
        return
    rows, length = tokens.shape
    seen = tokens.new_full((rows, length), embeds is not None, dtype=torch.bool)
    if embeds is None:
        embeds = torch.zeros(rows, length, sight.width, dtype=sight.dtype, device=tokens.device)
    for part, own in zip(
        embeds.to(tokens.device, sight.dtype).split(list(sizes), 1), seen.split(list(sizes), 1), strict=True
    ):
        yield {"embedded": part.contiguous(), "seen": own.contiguous()}


def positions_of(sight: Sight | None) -> tuple[int, ...]:
    """How many positions a token has, if it is no single one."""
    return () if sight is None or sight.positions is None else (sight.positions,)


def as_in(model: Pretrained, ours: Callable[..., object]) -> Callable[..., object]:
    """Our ``forward`` with what the model's own takes beside: ``generate`` looks there for what may be passed."""
    own = dict(inspect.signature(ours).parameters)
    rest = own.pop("kwargs")
    for name, each in inspect.signature(type(model).forward).parameters.items():
        if each.kind is not inspect.Parameter.VAR_KEYWORD:
            own.setdefault(name, each.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None))

    def forward(self: Pretrained, *args: object, **kwargs: object) -> object:
        return ours(self, *args, **kwargs)

    forward.__signature__ = inspect.Signature([*own.values(), rest])  # type: ignore[attr-defined]
    return forward
