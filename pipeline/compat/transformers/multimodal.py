"""Multimodal models: the inputs that a model's own code computes from a prompt for its language model."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TypeAlias

import torch
from attrs import evolve, frozen

from pipeline.compat.transformers.attention import use_attention
from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.decoder_input_hook import (
    BY_LAYER,
    DEEPSTACK_INPUTS,
    TABLE,
    DecoderCalledError,
    raise_decoder_called,
)
from pipeline.compat.transformers.modality_encoders import EncoderCall, non_language_modules, record_calls, select_calls
from pipeline.errors import CaptureError, ExecutionError

TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "decoder_input_ids"})
Tensors: TypeAlias = dict[str, torch.Tensor]


@frozen
class PromptSpec:
    """A description of the inputs that a multimodal model passes to its language model for a prompt: which inputs, and
    their sizes.

    Attributes:
        width, dtype: the width and dtype of a token's embedding.
        positions: the number of position ids of a token, as in M-RoPE; None for a single id without an extra dim.
        layers: the number of language-model layers, from the first on, that add image features at image tokens
            (DeepStack).
        ahead_layer_types: the layer types, such as ``"sliding_attention"``, in which the tokens of an image attend to
            its later tokens, too; ("",) if all layers have the same mask; empty if attention is causal.
        by_layer: (layers, width) of the input that a token has for each layer; empty if there is no such input.
        position_dtype: the dtype of the position ids.
        counts_padding: True if the model's default position ids count padding tokens.
    """

    width: int
    dtype: torch.dtype
    positions: int | None
    layers: int
    ahead_layer_types: tuple[str, ...]
    by_layer: tuple[int, ...]
    position_dtype: torch.dtype
    counts_padding: bool = False


@frozen
class Prompt:
    """The inputs that a language model gets for a multimodal prompt.

    embeds: the embeddings [rows, length, width] of text and image tokens. position_ids: [rows, length] or [positions,
    rows, length]. added: image features [layers, rows, length, width], which the first layers add (DeepStack).
    ahead: a mask [rows, length, length], True where a token attends to a later token in the layer types
    ``ahead_layer_types``. by_layer: an additional input of each layer, [rows, length, layers, width].
    """

    embeds: torch.Tensor
    position_ids: torch.Tensor | None
    added: torch.Tensor | None
    ahead: torch.Tensor | None
    ahead_layer_types: tuple[str, ...] = ()
    by_layer: torch.Tensor | None = None

    @property
    def spec(self) -> PromptSpec:
        """Return a description of this prompt's inputs, which a program must accept to run the prompt."""
        ids, types, (*_, width) = self.position_ids, self.ahead_layer_types, self.embeds.shape
        positions = ids.shape[0] if ids is not None and ids.dim() == 3 else None
        layers = 0 if self.added is None else self.added.shape[0]
        dtype = torch.int64 if ids is None else ids.dtype
        by_layer = () if self.by_layer is None else tuple(self.by_layer.shape[2:])
        return PromptSpec(width, self.embeds.dtype, positions, layers, types, by_layer, dtype)

    def fits(self, spec: PromptSpec) -> bool:
        """Return whether a program that was compiled for the inputs that ``spec`` describes accepts this prompt."""
        positions = self.position_ids is not None and self.position_ids.dim() == 3
        own = self.spec
        at_most = own.layers in (0, spec.layers) and own.ahead_layer_types in ((), spec.ahead_layer_types)
        return at_most and own.by_layer == spec.by_layer and (not positions or spec.positions is not None)


@frozen
class Sample:
    """A recorded run of a model on a multimodal example: tokens and mask, the language model's inputs, the last token's
    logits [rows, vocabulary], the calls of image and audio encoders (``towers``), and `PromptSpec.counts_padding`."""

    tokens: torch.Tensor
    mask: torch.Tensor
    prompt: Prompt
    logits: torch.Tensor
    towers: tuple[EncoderCall, ...]
    counts_padding: bool


def merge_specs(samples: Sequence[Sample]) -> PromptSpec | None:
    """Return a description (`PromptSpec`) of the inputs of all examples' prompts; None if there are no examples."""
    if not samples:
        return None
    every = [sample.prompt.spec for sample in samples]
    dtypes = [each.position_dtype for each in every]
    positions = next((each.positions for each in every if each.positions is not None), None)
    return evolve(
        every[0],
        positions=positions,
        layers=max(each.layers for each in every),
        ahead_layer_types=max((each.ahead_layer_types for each in every), key=len),
        position_dtype=next((dtype for dtype in dtypes if dtype.is_floating_point), dtypes[0]),
        counts_padding=samples[0].counts_padding,
    )


def record_sample(model: Pretrained, example: Mapping[str, torch.Tensor]) -> Sample:
    """Run a multimodal example through the model, and record it as a `Sample` while the model generates one token."""
    name = type(model).__name__
    with record_calls(*(each for _, each in non_language_modules(model))) as seen:
        logits = first_logits(model, example)
    with record_calls(model.get_decoder()) as called, use_attention(model, "eager"):
        first_logits(model, example)
    found = [given for _, _, given in called]
    if not found or found[0].get("inputs_embeds") is None:
        why = f"{name} passes no inputs_embeds to its language model"
        raise CaptureError(why, "leave encoder_example out: the model then generates for text only")
    tokens = token_ids_of(example)
    mask = example.get("attention_mask", torch.ones_like(tokens)).to(torch.bool)
    prompt = create_prompt(name, found[0], mask)
    return Sample(tokens, mask, prompt, logits, select_calls(model, seen), _positions_count_padding(model))


def _positions_count_padding(model: Pretrained) -> bool:
    """Return whether a model's default position ids for text count padding; else they start at 0 after padding."""
    ids = torch.arange(1, 4, device=model.device)[None]
    mask = torch.tensor([[0, 1, 1]], device=model.device)
    with record_calls(model.get_decoder()) as called, suppress(Exception), torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
    places = called[0][2].get("position_ids") if called else None
    return isinstance(places, torch.Tensor) and places.dim() == 2 and bool((places[:, -1] == 2).all())


def token_ids_of(inputs: Mapping[str, Pretrained]) -> torch.Tensor:
    """Return the token ids of a prompt [rows, length]; for a prompt of embeddings, return zeros, which are not used."""
    ids: torch.Tensor | None = inputs.get("input_ids")
    embeds: torch.Tensor | None = inputs.get("inputs_embeds")
    if embeds is not None and (ids is None or ids.shape[1] != embeds.shape[1]):
        return torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
    assert ids is not None
    return ids


def first_logits(model: Pretrained, example: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits [rows, vocabulary] from which a model generates its first token for an example."""
    how = copy.deepcopy(model.generation_config)
    how.max_new_tokens, how.num_beams, how.num_return_sequences, how.do_sample = 1, 1, 1, False
    how.output_logits, how.return_dict_in_generate, how.cache_implementation = True, True, None
    try:
        with torch.no_grad():
            made = model.generate(**example, generation_config=how)
    except Exception as error:
        why = f"{type(model).__name__}.generate fails for encoder_example"
        raise CaptureError(why, f"pass the processor's output for a prompt; the call raised: {error}") from error
    found: torch.Tensor = made.logits[0]
    return found


def check_logits(step: torch.nn.Module, sample: Sample, cache_len: int) -> None:
    """Raise an error if the decoder step (`MultimodalDecoder`) does not return the model's own logits for a recorded
    example: the language model may need inputs that `Prompt` lacks. ``cache_len``: the number of cache positions."""
    length, prompt = sample.tokens.shape[1], sample.prompt
    if length > cache_len:
        raise ValueError(f"max_cache_len is {cache_len}: expected at least {length}, the tokens of encoder_example")
    mask = torch.nn.functional.pad(sample.mask, (0, cache_len - length))
    places = (sample.mask.cumsum(-1) - 1).clamp(min=0) if prompt.position_ids is None else prompt.position_ids
    ahead = None if prompt.ahead is None else torch.nn.functional.pad(prompt.ahead, (0, cache_len - length))
    start, seen = torch.zeros((), dtype=torch.int64, device=mask.device), torch.ones_like(sample.mask)
    with torch.no_grad(), use_attention(step.model, "eager"):
        beside = (seen, prompt.added, ahead, prompt.by_layer)
        found = step(sample.tokens, mask, places, start, prompt.embeds, *beside)[:, -1].float()
        for buffer in step.buffers(recurse=False):
            buffer.zero_()
    off, dtype = (found - sample.logits).abs().max(), prompt.embeds.dtype
    rounding = max(16 * torch.finfo(dtype).eps, 1e-3 if dtype == torch.float32 else 0.03)
    if off > rounding * sample.logits.abs().max().clamp(min=1):
        name = type(step.model).__name__
        why = f"{name} is not supported with images or audio: the logits for encoder_example differ by {off:.1e}"
        raise CaptureError(why, "leave encoder_example out: the model then generates for text only")


def create_prompt(model_name: str, decoder_inputs: Mapping[str, Pretrained], is_token: torch.Tensor | None) -> Prompt:
    """Create a `Prompt` from a language model's arguments by name; ``is_token`` [rows, length] is False for padding."""
    known = {"inputs_embeds", "position_ids", "attention_mask", BY_LAYER, *DEEPSTACK_INPUTS}
    if more := [
        name for name, value in decoder_inputs.items() if name not in known and any(True for _ in _tensors_in(value))
    ]:
        why = f"{model_name} passes inputs to its language model that are not supported: {', '.join(more)}"
        raise CaptureError(why, "leave encoder_example out: the model then generates for text only")
    embeds, at, added = (decoder_inputs.get(name) for name in ("inputs_embeds", *DEEPSTACK_INPUTS))
    assert embeds is not None
    if at is not None and added is not None:
        each = [embeds.new_zeros(embeds.shape).masked_scatter(at[..., None], x.to(embeds.dtype)) for x in added]
        added = torch.stack(each)
    ahead, kinds = _later_tokens_mask(decoder_inputs.get("attention_mask"), is_token)
    return Prompt(embeds, decoder_inputs.get("position_ids"), added, ahead, kinds, decoder_inputs.get(BY_LAYER))


def _later_tokens_mask(mask: object, is_token: torch.Tensor | None) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Return a mask [rows, length, length] that is True where a token attends to a later token, and the layer types
    with such attention; (None, ()) if attention is causal. ``mask``: the language model's attention mask, or a dict of
    masks by layer type. ``is_token`` [rows, length]: False for padding tokens, whose rows of the mask are ignored."""
    masks = mask if isinstance(mask, Mapping) else {"": mask}
    every = {kind: each for kind, each in masks.items() if isinstance(each, torch.Tensor) and each.dim() == 4}
    later = {kind: (each if each.dtype == torch.bool else each > -1)[:, 0].triu(1) for kind, each in every.items()}
    if is_token is not None:
        later = {kind: each & is_token[:, :, None].to(torch.bool) for kind, each in later.items()}
    later = {kind: each for kind, each in later.items() if each.any()}
    return functools.reduce(torch.Tensor.logical_and, later.values()) if later else None, tuple(later)


def copy_all_but_language_model(model_copy: Pretrained, model: Pretrained) -> None:
    """Copy all modules except the language model (encoders, projections, token embedding) into a model's copy without
    weights. Calling the language model in that copy then raises `DecoderCalledError` with its inputs."""
    embed = model.get_input_embeddings()
    for path in {path.rpartition(".")[0] for path, _ in non_language_modules(model)}:
        own, real = model_copy.get_submodule(path), model.get_submodule(path)
        own._parameters, own._buffers = dict(real._parameters), dict(real._buffers)
    for path, child in non_language_modules(model):
        within, _, name = path.rpartition(".")
        model_copy.get_submodule(within)._modules[name] = child
    if not model.config.is_encoder_decoder:
        decoder, tables = model_copy.get_decoder(), model.get_decoder()._modules
        decoder.forward = raise_decoder_called
        if TABLE in tables:
            decoder._modules[TABLE] = tables[TABLE]
        for config in (model_copy.config, model_copy.config.get_text_config(decoder=True)):
            config._attn_implementation_internal = "eager"  # masks are tensors
    model_copy.set_input_embeddings(embed)


def non_text_inputs(inputs: Mapping[str, Pretrained]) -> list[str]:
    """Return the names of inputs that are not text, such as pixels and audio features: all floating-point tensors."""
    floats = {name for name, value in inputs.items() if any(x.is_floating_point() for x in _tensors_in(value))}
    return [name for name in inputs if name in floats - TEXT_INPUTS]


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested lists, tuples and mappings."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _tensors_in(part)
    elif isinstance(value, torch.Tensor):
        yield value


def compute_prompt(forward: Callable[..., object], inputs: Mapping[str, Pretrained], model_name: str) -> Prompt | None:
    """Return the inputs (`Prompt`) that a model's own ``forward`` passes to its language model (`raise_decoder_called`)
    for ``inputs``, such as token ids and pixels. Return None if it passes token ids instead of embeddings."""
    length = token_ids_of(inputs).shape[1]
    by_token = {name for name in inputs if name == "attention_mask" or name.endswith("token_type_ids")}
    own = {name: x[:, -length:] if name in by_token else x for name, x in inputs.items() if x is not None}
    try:
        with torch.no_grad():
            forward(**own)
    except DecoderCalledError as reached:
        if reached.given.get("inputs_embeds") is None:
            return None
        return create_prompt(model_name, reached.given, own.get("attention_mask"))
    raise ExecutionError(f"{model_name} did not call its language model for this prompt", "pass a prompt of text alone")


def multimodal_inputs(
    spec: PromptSpec | None, tokens: torch.Tensor, chunks: list[tuple[int, int]], cache_len: int, prompt: Prompt | None
) -> Iterator[Tensors]:
    """Yield the decoder's multimodal inputs for each chunk of a prompt; chunks are (start, end) positions of the cache.
    For text-only models (``spec`` is None) the inputs are empty; ``prompt`` is None if ``tokens`` are only text."""
    if spec is None:
        yield from repeat({}, len(chunks))
        return
    if prompt is not None and not prompt.fits(spec):
        why = "this prompt gives the language model other inputs than encoder_example did when compiling"
        raise ExecutionError(why, "compile with an encoder_example that has the same kinds of data: images, audio")
    for start, end in chunks:
        if prompt is None:
            yield _shared_zero_inputs(spec, (tokens.shape[0], end - start), cache_len, tokens.device)
        else:
            yield _chunk_inputs(spec, prompt, start, end, chunks[0][0], cache_len)


def _chunk_inputs(spec: PromptSpec, prompt: Prompt, start: int, end: int, first: int, cache_len: int) -> Tensors:
    """Return the decoder's inputs for a chunk of a prompt: the cache positions from ``start`` to ``end``. The prompt
    begins at cache position ``first``; ``cache_len`` is the number of all positions."""
    part, shape = slice(start - first, end - first), (prompt.embeds.shape[0], end - start)
    made = zero_inputs(spec, shape, cache_len, prompt.embeds.device)
    made["embedded"], made["seen"] = prompt.embeds[:, part].contiguous(), torch.ones_like(made["seen"])
    if prompt.added is not None:
        made["added"] = prompt.added[:, :, part].contiguous()
    if prompt.by_layer is not None:
        made["by_layer"] = prompt.by_layer[:, part].contiguous()
    if prompt.ahead is not None:
        made["ahead"][:, :, first : first + prompt.ahead.shape[1]] = prompt.ahead[:, part]
        if made["ahead"][:, :, end:].any():
            why = "the tokens of an image must be in one call, but this prompt is split into calls within an image"
            raise ExecutionError(why, "compile with a larger max_prompt_len")
    return made


def zero_inputs(spec: PromptSpec, shape: tuple[int, int], cache_len: int, device: torch.device) -> Tensors:
    """Return the decoder's multimodal inputs for tokens that are only text: zeros."""
    zeros = torch.zeros((), dtype=spec.dtype, device=device)
    made = {"embedded": zeros.new_zeros(*shape, spec.width), "seen": zeros.new_zeros(shape, dtype=torch.bool)}
    if spec.layers:
        made["added"] = zeros.new_zeros(spec.layers, *shape, spec.width)
    if spec.by_layer:
        made["by_layer"] = zeros.new_zeros(*shape, *spec.by_layer)
    if spec.ahead_layer_types:
        made["ahead"] = zeros.new_zeros(*shape, cache_len, dtype=torch.bool)
    return made


_shared_zero_inputs = functools.lru_cache(maxsize=8)(zero_inputs)
"""A cached `zero_inputs`: calls share the returned tensors, so nothing may write to them."""


def position_ids_format(spec: PromptSpec | None) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape of one token's position ids, (positions,), or () for a single id; and the dtype of the ids."""
    if spec is None:
        return (), torch.int64
    return (() if spec.positions is None else (spec.positions,)), spec.position_dtype


def with_signature_of(model: Pretrained, function: Callable[..., object]) -> Callable[..., object]:
    """Return ``function`` with the signature of the model's own ``forward``, which ``generate`` inspects."""
    own = dict(inspect.signature(function).parameters)
    rest = own.pop("kwargs")
    for name, each in inspect.signature(type(model).forward).parameters.items():
        if each.kind is not inspect.Parameter.VAR_KEYWORD:
            own.setdefault(name, each.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None))

    def forward(self: Pretrained, *args: object, **kwargs: object) -> object:
        return function(self, *args, **kwargs)

    forward.__signature__ = inspect.Signature([*own.values(), rest])  # type: ignore[attr-defined]
    return forward
