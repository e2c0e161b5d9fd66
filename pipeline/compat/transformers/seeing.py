"""Models that see or hear beside their text: what their own code makes of a prompt, up to their language model."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat

import torch
from attrs import evolve, frozen

from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.reaching import BY_LAYER, DEEP, TABLE, ReachedError, eager_attention, reach
from pipeline.compat.transformers.towers import TowerCall, beside, noting, tower_calls
from pipeline.errors import CaptureError, ExecutionError

OF_TEXT = frozenset({"input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "decoder_input_ids"})


@frozen
class Sight:
    """How a model's prompt reaches its language model.

    Attributes:
        width: of what a token becomes.
        dtype: of the same.
        positions: how many a token has, if it is no single one.
        layers: how many of the first add something at the places of images.
        ahead: the kinds of layers, by the names of their masks, in which tokens of an image attend to later ones of it:
            "" where there is one mask; none if no tokens do.
        by_layer: how many layers take something of each token beside its embedding, and its width; none if none does.
        places: the dtype of positions.
        padded: whether the model counts hidden tokens where it is given no positions.
    """

    width: int
    dtype: torch.dtype
    positions: int | None
    layers: int
    ahead: tuple[str, ...]
    by_layer: tuple[int, ...]
    places: torch.dtype
    padded: bool = False


@frozen
class Prompt:
    """A prompt as it reaches the language model: embeddings [rows, length, width], positions [rows, length] or
    [positions, rows, length], what layers add [layers, rows, length, width], which later tokens each token attends to
    [rows, length, length], in which kinds of layers, and what each layer takes beside [rows, length, layers, width]."""

    embeds: torch.Tensor
    places: torch.Tensor | None
    added: torch.Tensor | None
    ahead: torch.Tensor | None
    kinds: tuple[str, ...] = ()
    by_layer: torch.Tensor | None = None

    @property
    def sight(self) -> Sight:
        """What a program has to take for this prompt and others like it."""
        positions = self.places.shape[0] if self.places is not None and self.places.dim() == 3 else None
        layers = 0 if self.added is None else self.added.shape[0]
        dtype = torch.int64 if self.places is None else self.places.dtype
        by_layer = () if self.by_layer is None else tuple(self.by_layer.shape[2:])
        return Sight(self.embeds.shape[-1], self.embeds.dtype, positions, layers, self.kinds, by_layer, dtype)

    def is_like(self, sight: Sight) -> bool:
        """Whether a program that was made so takes it."""
        positions = self.places is not None and self.places.dim() == 3
        own = self.sight
        at_most = own.layers in (0, sight.layers) and own.ahead in ((), sight.ahead)
        return at_most and own.by_layer == sight.by_layer and (not positions or sight.positions is not None)


@frozen
class Sample:
    """An example's tokens and mask, its prompt, the logits [rows, vocabulary] of its last token, what its towers are
    called with, and whether the model counts hidden tokens where it is given no positions."""

    tokens: torch.Tensor
    mask: torch.Tensor
    prompt: Prompt
    logits: torch.Tensor
    towers: tuple[TowerCall, ...]
    padded: bool


def sight_of(samples: Sequence[Sample]) -> Sight | None:
    """What a program has to take for the prompts of all examples; None if there are none."""
    if not samples:
        return None
    every = [sample.prompt.sight for sample in samples]
    positions = next((each.positions for each in every if each.positions is not None), None)
    return evolve(
        every[0],
        positions=positions,
        layers=max(each.layers for each in every),
        ahead=max((each.ahead for each in every), key=len),
        places=next((each.places for each in every if each.places.is_floating_point), every[0].places),
        padded=samples[0].padded,
    )


def sample_of(model: Pretrained, example: Mapping[str, torch.Tensor]) -> Sample:
    """How a prompt with what is beside its text reaches a model's language model: it generates a token.

    Raises:
        CaptureError: more reaches it than a step takes, or nothing does.
    """
    name = type(model).__name__
    with noting(*(each for _, each in beside(model))) as seen:
        logits = first_logits(model, example)
    with noting(model.get_decoder()) as called, eager_attention(model):
        first_logits(model, example)
    found = [given for _, _, given in called]
    if not found or found[0].get("inputs_embeds") is None:
        why = f"{name} does not give its language model embeddings of a prompt"
        raise CaptureError(why, "models that do take images or sound; leave encoder_example out for text")
    tokens = tokens_of(example)
    mask = example.get("attention_mask", torch.ones_like(tokens)).to(torch.bool)
    prompt = prompt_of(name, found[0], mask)
    return Sample(tokens, mask, prompt, logits, tower_calls(model, seen), _counts_padding(model))


def _counts_padding(model: Pretrained) -> bool:
    """Whether a model that is given no positions of text counts hidden tokens: they are from 0 on in each row."""
    ids = torch.arange(1, 4, device=model.device)[None]
    mask = torch.tensor([[0, 1, 1]], device=model.device)
    with noting(model.get_decoder()) as called, suppress(Exception), torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    places = called[0][2].get("position_ids") if called else None
    return isinstance(places, torch.Tensor) and places.dim() == 2 and bool((places[:, -1] == 2).all())


def tokens_of(given: Mapping[str, Pretrained]) -> torch.Tensor:
    """The ids of a prompt's tokens [rows, length]: zeros, which nothing reads, for one that is embeddings."""
    ids: torch.Tensor | None = given.get("input_ids")
    embeds: torch.Tensor | None = given.get("inputs_embeds")
    if embeds is not None and (ids is None or ids.shape[1] != embeds.shape[1]):
        return torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
    assert ids is not None
    return ids


def first_logits(model: Pretrained, example: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The logits [rows, vocabulary] of the first token that a model generates."""
    how = copy.deepcopy(model.generation_config)
    how.max_new_tokens, how.num_beams, how.num_return_sequences, how.do_sample = 1, 1, 1, False
    how.output_logits, how.return_dict_in_generate, how.cache_implementation = True, True, None
    try:
        with torch.no_grad():
            made = model.generate(**example, generation_config=how)
    except Exception as error:
        why = f"{type(model).__name__} cannot generate for encoder_example"
        raise CaptureError(why, f"pass what its processor gives for a prompt; it says: {error}") from error
    found: torch.Tensor = made.logits[0]
    return found


def check(step: torch.nn.Module, sample: Sample, cache: int) -> None:
    """Whether a step gives the logits that the model gives for its example: whatever else reaches the language model
    would be missing.

    Raises:
        CaptureError: it does not.
        ValueError: the example has more tokens than the cache has positions.
    """
    length, prompt = sample.tokens.shape[1], sample.prompt
    if length > cache:
        raise ValueError(f"encoder_example has {length} tokens, and max_cache_len is {cache}")
    mask = torch.nn.functional.pad(sample.mask, (0, cache - length))
    places = (sample.mask.cumsum(-1) - 1).clamp(min=0) if prompt.places is None else prompt.places
    ahead = None if prompt.ahead is None else torch.nn.functional.pad(prompt.ahead, (0, cache - length))
    start, seen = torch.zeros((), dtype=torch.int64, device=mask.device), torch.ones_like(sample.mask)
    with torch.no_grad(), eager_attention(step.model):
        beside = (seen, prompt.added, ahead, prompt.by_layer)
        found = step(sample.tokens, mask, places, start, prompt.embeds, *beside)[:, -1].float()
        for buffer in step.buffers(recurse=False):
            buffer.zero_()
    off, dtype = (found - sample.logits).abs().max(), prompt.embeds.dtype
    rounding = max(16 * torch.finfo(dtype).eps, 1e-3 if dtype == torch.float32 else 0.03)
    if off > rounding * sample.logits.abs().max().clamp(min=1):
        name = type(step.model).__name__
        why = f"{name} reads its prompts in another way: its logits for encoder_example differ by {off:.1e}"
        raise CaptureError(why, "images cannot be in its prompts; without encoder_example it generates for text")


def prompt_of(model: str, given: Mapping[str, Pretrained], real: torch.Tensor | None) -> Prompt:
    """A prompt, from what a language model is called with; ``real`` [rows, length] says which tokens are no padding.

    Raises:
        CaptureError: it is called with more.
    """
    known = {"inputs_embeds", "position_ids", "attention_mask", BY_LAYER, *DEEP}
    if more := [name for name, value in given.items() if name not in known and _has_tensors(value)]:
        why = f"{model} gives its language model more than embeddings: {', '.join(more)}"
        raise CaptureError(why, "images cannot be in its prompts; without encoder_example it generates for text")
    embeds, at, added = (given.get(name) for name in ("inputs_embeds", *DEEP))
    assert embeds is not None
    if at is not None and added is not None:
        each = [embeds.new_zeros(embeds.shape).masked_scatter(at[..., None], x.to(embeds.dtype)) for x in added]
        added = torch.stack(each)
    ahead, kinds = _ahead(given.get("attention_mask"), real)
    return Prompt(embeds, given.get("position_ids"), added, ahead, kinds, given.get(BY_LAYER))


def _ahead(mask: object, real: torch.Tensor | None) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Which later tokens each token attends to, by one mask or those of each kind of layer, and the kinds in which it
    does; None if none does. What padding attends to does not matter."""
    masks = mask if isinstance(mask, Mapping) else {"": mask}
    every = {kind: each for kind, each in masks.items() if isinstance(each, torch.Tensor) and each.dim() == 4}
    later = {kind: (each if each.dtype == torch.bool else each > -1)[:, 0].triu(1) for kind, each in every.items()}
    if real is not None:
        later = {kind: each & real[:, :, None].to(torch.bool) for kind, each in later.items()}
    later = {kind: each for kind, each in later.items() if each.any()}
    return functools.reduce(torch.Tensor.logical_and, later.values()) if later else None, tuple(later)


def _has_tensors(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def fill(shell: Pretrained, model: Pretrained) -> None:
    """Give a model's shell all that is not its language model: towers, projections, and the embedding of tokens. The
    shell of a decoder then says what its own code calls the language model with."""
    embed = model.get_input_embeddings()
    for path in {path.rpartition(".")[0] for path, _ in beside(model)}:
        own, real = shell.get_submodule(path), model.get_submodule(path)
        own._parameters, own._buffers = dict(real._parameters), dict(real._buffers)
    for path, child in beside(model):
        within, _, name = path.rpartition(".")
        shell.get_submodule(within)._modules[name] = child
    if not model.config.is_encoder_decoder:
        _let_reach(shell, model)
    shell.set_input_embeddings(embed)


def _let_reach(shell: Pretrained, model: Pretrained) -> None:
    decoder, own = shell.get_decoder(), model.get_decoder()
    decoder.forward = reach
    if TABLE in own._modules:
        decoder._modules[TABLE] = own._modules[TABLE]
    for config in {id(each): each for each in (shell.config, shell.config.get_text_config(decoder=True))}.values():
        config._attn_implementation_internal = "eager"  # masks are tensors


def that_are_seen(given: Mapping[str, Pretrained]) -> list[str]:
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


def embedded(forward: Callable[..., object], given: Mapping[str, Pretrained], model: str) -> Prompt | None:
    """What a model's own code makes of a prompt and of what is beside its text: of new tokens alone, as if there were
    none before them. None if it leaves ids to its language model."""
    length = tokens_of(given).shape[1]
    by_token = {name for name in given if name == "attention_mask" or name.endswith("token_type_ids")}
    own = {name: x[:, -length:] if name in by_token else x for name, x in given.items() if x is not None}
    try:
        with torch.no_grad():
            forward(**own)
    except ReachedError as reached:
        if reached.given.get("inputs_embeds") is None:
            return None
        return prompt_of(model, reached.given, own.get("attention_mask"))
    raise ExecutionError(f"{model} has not called its language model", "generate with text alone")


def sight_inputs(
    sight: Sight | None, tokens: torch.Tensor, ends: Sequence[tuple[int, int]], cache: int, prompt: Prompt | None
) -> Iterator[dict[str, torch.Tensor]]:
    """Of each call what a program takes of what is seen: nothing, if it does not see. Calls are from a token of these
    to another; the first is at the position of the cache where the first call begins.

    Raises:
        ExecutionError: an image is in two calls, and its tokens attend to all of it; or the example had no such prompt.
    """
    if sight is None:
        yield from repeat({}, len(ends))
        return
    if prompt is not None and not prompt.is_like(sight):
        why = "a prompt reaches the language model in another way than that of encoder_example"
        raise ExecutionError(why, "compile with a prompt that has an image, or sound")
    for start, end in ends:
        if prompt is None:
            yield _nothing(sight, (tokens.shape[0], end - start), cache, tokens.device)
        else:
            yield _part(sight, prompt, start, end, ends[0][0], cache)


def _part(sight: Sight, prompt: Prompt, start: int, end: int, first: int, cache: int) -> dict[str, torch.Tensor]:
    """What a program takes of a part of a prompt, which begins at the position ``first`` of the cache."""
    part, shape = slice(start - first, end - first), (prompt.embeds.shape[0], end - start)
    made = {"embedded": prompt.embeds[:, part].contiguous(), "seen": prompt.embeds.new_ones(shape, dtype=torch.bool)}
    if sight.layers:
        zeros = made["embedded"].new_zeros(sight.layers, *shape, sight.width)
        made["added"] = zeros if prompt.added is None else prompt.added[:, :, part].contiguous()
    if prompt.by_layer is not None:
        made["by_layer"] = prompt.by_layer[:, part].contiguous()
    if sight.ahead:
        made["ahead"] = made["seen"].new_zeros(*shape, cache)
    if prompt.ahead is not None:
        made["ahead"][:, :, first : first + prompt.ahead.shape[1]] = prompt.ahead[:, part]
        if made["ahead"][:, :, end:].any():
            why = "the tokens of an image are in two calls, and each attends to all of them"
            raise ExecutionError(why, "compile with a larger max_prompt_len")
    return made


@functools.lru_cache(maxsize=8)
def _nothing(sight: Sight, shape: tuple[int, int], cache: int, device: torch.device) -> dict[str, torch.Tensor]:
    """What a program takes of a single token: nothing is seen. Nobody writes to it."""
    zeros = torch.zeros((), dtype=sight.dtype, device=device)
    made = {"embedded": zeros.new_zeros(*shape, sight.width), "seen": zeros.new_zeros(shape, dtype=torch.bool)}
    if sight.layers:
        made["added"] = zeros.new_zeros(sight.layers, *shape, sight.width)
    if sight.by_layer:
        made["by_layer"] = zeros.new_zeros(*shape, *sight.by_layer)
    if sight.ahead:
        made["ahead"] = zeros.new_zeros(*shape, cache, dtype=torch.bool)
    return made


def positions_of(sight: Sight | None) -> tuple[tuple[int, ...], torch.dtype]:
    """How many positions a token has, if it is no single one, and their dtype."""
    if sight is None:
        return (), torch.int64
    return (() if sight.positions is None else (sight.positions,)), sight.places


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
