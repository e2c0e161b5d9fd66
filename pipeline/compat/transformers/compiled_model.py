"""``CompiledGeneration``: a transformers model whose ``forward`` runs programs, which update its cache in place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise, repeat
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
import transformers
from attrs import astuple
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast, Seq2SeqLMOutput

from pipeline.artifact.load import FOLDER
from pipeline.artifact.save import save
from pipeline.compat.transformers import multimodal
from pipeline.compat.transformers.caches import (
    FilledCache,
    FilledCrossCache,
    LatestCache,
    Pretrained,
    cache_argument,
    can_crop,
    has_tokens,
)
from pipeline.compat.transformers.encoder_parts import CallGroup, insert_encoders
from pipeline.compat.transformers.encoders import CompiledEncoder, EmbeddingSpec, program_mask
from pipeline.compat.transformers.sampling import can_decode_ahead, decode_ahead
from pipeline.compat.transformers.sizes import Limits
from pipeline.compiled import Compiled, CompiledModule, StrPath
from pipeline.errors import ArtifactError, ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.records.agreement import Agreement
from pipeline.records.wording import kind_of, to_path
from pipeline.runtime.ranks import share_random_numbers

Inputs: TypeAlias = dict[str, Any]

OTHERS: Final = {
    "penalty_alpha": "contrastive search needs another cache than the compiled model's",
    "cache_implementation": "a compiled model always uses its own cache",
    "assistant_early_exit": "the engine always runs all layers",
    "use_mtp": "the engines return no hidden states",
    "speculation_type": "the engines return no hidden states",
    "output_attentions": "the engines return no attentions",
    "output_hidden_states": "the engines return no hidden states",
}
"""The options of ``generate`` that a compiled model does not support, and the reason for each."""


def create_weightless_copy(
    model: Pretrained,
    spec: multimodal.PromptSpec | None,
    embedding_spec: EmbeddingSpec | None,
    encoder_groups: Mapping[str, CallGroup],
    runners: Mapping[str, CompiledModule],
) -> CompiledGeneration:
    """Return a copy of the model on the meta device, with every attribute that ``generate`` reads.

    spec, embedding_spec: given for a multimodal model. Then modules outside the language model keep their weights, and
    each image or audio encoder runs a program, ``runners[name]``, for the calls in ``encoder_groups[name]``."""
    with torch.device("meta"):
        made = type(model)(copy.deepcopy(model.config))
    own: Inputs = {}
    if spec is not None or embedding_spec is not None:
        multimodal.copy_all_but_language_model(made, model)
        insert_encoders(made, [(calls, runners[name]) for name, calls in encoder_groups.items()])
        own["forward"] = multimodal.with_signature_of(model, CompiledGeneration.forward)
    made.__class__ = type(f"Compiled{type(model).__name__}", (CompiledGeneration, type(model)), own)
    made.generation_config = copy.deepcopy(model.generation_config)
    made.generation_config.cache_implementation = None  # Gemma 2's checkpoints ask for one
    made.__dict__.update(_place=model.device, _float=model.dtype, _cache_name=cache_argument(model))
    made.__dict__.update(_spec=spec, _embedding_spec=embedding_spec)
    return made.eval()  # type: ignore[no-any-return]


class CompiledGeneration:
    """A language model whose forward pass runs engines. All other methods are those of the model's own class.

    Attributes:
        compiled: the programs by name; `Compiled` records.
        runners: the modules that run the programs, by the same names; the decoder's module holds the KV cache.
        limits: the number of cache positions, and the maximum numbers of rows, tokens and draft tokens in a call.
        agreement: the errors of the logits, if the model was compiled with ``verify``.
    """

    compiled: Mapping[str, Compiled]
    runners: Mapping[str, CompiledModule]
    limits: Limits
    agreement: Agreement | None = None
    config: Any
    generation_config: Any

    def set_programs(
        self, compiled: Mapping[str, Compiled], runners: Mapping[str, CompiledModule], limits: Limits
    ) -> CompiledGeneration:
        """Set the programs and the modules that run them, both by program name (``"decoder"``), and the maximum sizes
        of a call (`Limits`); return the same object."""
        place = runners["decoder"].device
        self.__dict__.update(compiled=FrozenDict(compiled), runners=FrozenDict(runners), limits=limits, _place=place)
        self.__dict__.update(_latest=LatestCache(), _starts=torch.arange(limits.max_cache_len, device=place))
        return self

    @property
    def device(self) -> torch.device:
        """Return the device of the outputs; inputs are copied to this device."""
        return self.__dict__["_place"]  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the model's weights."""
        return self.__dict__["_float"]  # type: ignore[no-any-return]

    def new_state(self) -> CompiledGeneration:
        """Return another object with the same engines and weights but a separate cache, so that both can generate
        different sequences concurrently."""
        runners = {**self.runners, "decoder": self.runners["decoder"].new_state()}
        made = copy.copy(self)
        made.__dict__["_modules"] = {name: copy.copy(each) for name, each in self.__dict__["_modules"].items()}
        return made.set_programs(self.compiled, runners, self.limits)

    def save(self, path: StrPath, weights: StrPath = "inside") -> None:
        """Save the model to a file, from which `pipeline.load` returns an object with ``generate``. To load the file,
        transformers must be installed; the model's checkpoint and own code are not needed.

        Args:
            path: the file; the program of an encoder is saved beside it (``NAME.encoder.trtp``).
            weights: how to save the decoder's weights, as in `Compiled.save`.

        Raises:
            ArtifactError: the model is multimodal, or its class is not one of transformers.
            OSError: a file cannot be written.
        """
        kind, place = type(self).__bases__[1], to_path(path, "save")
        if getattr(transformers, kind.__name__, None) is not kind:
            why = f"{kind.__name__} is not a class of transformers {transformers.__version__}"
            hint = "save each program, model.compiled[name].save(path), and compile the model again where it runs"
            raise ArtifactError(f"{why}, and a file does not contain the code of other classes", hint)
        if self.__dict__["_spec"] is not None or self.__dict__["_embedding_spec"] is not None:
            why = "a part of the model runs in PyTorch before the engines, and a file cannot contain this part"
            once = "cache_built_engines=True and reuse_cached_engines=True build its engines only once"
            hint = f"compile it again in the process that runs it: {once}"
            raise ArtifactError(f"{kind.__name__} takes images or audio: {why}", hint)
        others = {name: f"{place.stem}.{name}{place.suffix}" for name in self.compiled if name != "decoder"}
        for name, file in others.items():
            save(self.compiled[name], place.with_name(file))
        record = {
            "library": "transformers",
            "class": kind.__name__,
            "config": json.loads(self.config.to_json_string(use_diff=False)),
            "generation_config": json.loads(self.generation_config.to_json_string(use_diff=False)),
            "dtype": str(self.dtype).removeprefix("torch."),
            "limits": astuple(self.limits),
            "others": others,
        }
        save(self.compiled["decoder"], place, weights, json.dumps(record))

    def save_pretrained(self, save_directory: StrPath) -> None:
        """Save the model to a folder, with the file that `save` writes, ``config.json`` and ``generation_config.json``;
        `pipeline.load` loads the folder."""
        os.makedirs(save_directory, exist_ok=True)  # noqa: PTH103 - a path of any kind
        self.save(Path(save_directory) / FOLDER)
        self.config.save_pretrained(save_directory)
        self.generation_config.save_pretrained(save_directory)

    def __copy__(self) -> CompiledGeneration:
        made = self.__class__.__new__(self.__class__)
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> Any:
        raise TypeError("a compiled language model cannot be pickled: use model.save(path) and pipeline.load(path)")

    @torch.no_grad()
    def generate(self, *args: object, **kwargs: Any) -> Pretrained:
        """Generate tokens by transformers' own ``generate``: greedily, by sampling, with beams (each is a row), or
        assisted by another model or by prompt lookup. The cache is used even with ``use_cache=False``, which some
        checkpoints have left from training; the tokens are the same.

        Raises:
            ValueError: an option requires another kind of cache or further outputs, or assisted generation is
                impossible.
        """
        _check_prompt(next(iter(args), kwargs.get("input_ids", kwargs.get("inputs"))))
        config = kwargs.get("generation_config") or self.generation_config
        for name, why in OTHERS.items():
            if asked := kwargs.get(name, getattr(config, name, None)):
                raise ValueError(f"generate cannot use {name}={asked!r}: {why}; leave it out")
        is_of_text = self.__dict__["_spec"] is None and "encoder" not in self.runners
        if is_of_text and (names := multimodal.non_text_inputs(kwargs)):
            why = "but the model is compiled for text alone: pass encoder_example to compile_for_generation"
            raise ValueError(f"generate got {', '.join(names)}, {why}")
        assistant = kwargs.get("assistant_model")
        if assistant is not None or kwargs.get("prompt_lookup_num_tokens", config.prompt_lookup_num_tokens):
            _check_assisted(self, assistant)
        with share_random_numbers(self.compiled["decoder"].program):
            return super().generate(*args, **{**kwargs, "use_cache": True})  # type: ignore[misc]

    def _sample(
        self,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **inputs: Any,
    ) -> Any:
        """Generate tokens greedily or by sampling, without waiting for each token (`decode_ahead`)."""
        given = logits_processor, stopping_criteria, generation_config
        if not synced_gpus and can_decode_ahead(self, generation_config, stopping_criteria, inputs):
            return decode_ahead(self, input_ids, *given, streamer, inputs)
        return super()._sample(input_ids, *given, synced_gpus=synced_gpus, streamer=streamer, **inputs)  # type: ignore[misc]

    def _get_candidate_generator(self, *args: object, **kwargs: object) -> Pretrained:
        """Return transformers' generator of draft tokens for assisted generation; raise a ValueError if it needs the
        model's hidden states."""
        made = super()._get_candidate_generator(*args, **kwargs)  # type: ignore[misc]
        if getattr(made, "requires_model_outputs", False):
            raise ValueError(f"{type(made).__name__} needs hidden states, which engines do not return: use no drafts")
        return made

    def get_encoder(self, *args: object, **kwargs: Any) -> Pretrained:
        """Return the compiled encoder; if the model has none, return what the model's own class returns."""
        if "encoder" not in self.runners:
            return super().get_encoder(*args, **kwargs)  # type: ignore[misc]
        own, embed = super().get_encoder(*args, **kwargs), self.get_input_embeddings()  # type: ignore[misc, attr-defined]
        return CompiledEncoder(own, self.runners["encoder"], self.__dict__["_embedding_spec"], embed)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        cache_params: Cache | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        logits_to_keep: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Return the logits of the last ``logits_to_keep`` tokens (at least one), and the cache with the new tokens:
        the cache that was passed, or else a new cache. The program is called several times for more tokens than
        ``max_prompt_len``, or for logits of more than ``max_draft_len`` tokens before the last.

        Raises:
            ExecutionError: the cache has no room for the tokens, is not from an earlier call, or has been overwritten;
                or the inputs are not tokens.
            ShapeError: there are more rows than the model is compiled for.
        """
        crossed = "encoder" in self.runners
        tokens, mask = (decoder_input_ids, decoder_attention_mask) if crossed else (input_ids, attention_mask)
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids, **kwargs}
        embeds = kwargs.get("inputs_embeds") is not None
        tokens = _token_ids(self, tokens, given)
        filled = _own_cache(self, past_key_values if cache_params is None else cache_params)
        places = decoder_position_ids if crossed else position_ids
        beside: Inputs = {}
        if crossed:
            if encoder_outputs is None:
                raise ExecutionError("encoder_outputs is missing", "pass the encoder's output, or call generate")
            cross = filled.repeat_cross(encoder_outputs.get("cross"), tokens.shape[0])
            encoded = cross[0].shape[0], cross[0].shape[2]
            beside["encoder_mask"] = program_mask(self.runners["decoder"], "encoder_mask", attention_mask, encoded)
            beside["cross"] = cross
        prompt = None
        if self.__dict__["_spec"] is not None and (tokens.shape[1] > 1 or embeds or multimodal.non_text_inputs(kwargs)):
            prompt = multimodal.compute_prompt(super().forward, given, type(self).__name__)  # type: ignore[misc]
            places = places if prompt is None or prompt.position_ids is None else prompt.position_ids
        wanted = max(1, min(logits_to_keep, tokens.shape[1]))
        steps = _decoder_call_inputs(self, tokens.to(self.device), mask, places, filled, wanted, prompt)
        found = [self.runners["decoder"](**inputs, **beside) for inputs in steps]
        logits = found[-1] if found[-1].shape[1] >= wanted else torch.cat(found, 1)[:, -wanted:]
        made: Any = (Seq2SeqLMOutput if crossed else CausalLMOutputWithPast)(logits=logits)
        made[self.__dict__["_cache_name"]] = filled
        return made


def _check_prompt(ids: object) -> None:
    """Raise an error if the prompt is not a tensor with a batch dim."""
    if isinstance(ids, str | list | tuple) and not (ids and isinstance(ids[0], torch.Tensor)):
        how = "tokenizer(text, return_tensors='pt').input_ids" if isinstance(ids, str) else "torch.tensor(ids)"
        raise TypeError(f"the prompt is {kind_of(ids)}: expected a tensor of token ids [rows, tokens], such as {how}")
    if isinstance(ids, torch.Tensor) and ids.dim() == 1:
        raise ValueError(f"the prompt has the shape {[*ids.shape]}, expected [rows, tokens]: pass prompt[None]")


def _token_ids(model: CompiledGeneration, tokens: torch.Tensor | None, inputs: Inputs) -> torch.Tensor:
    """Return the token ids that a call passes; if it passes embeddings instead, return zeros."""
    if inputs.get("labels") is not None:
        raise ValueError("labels were passed, but the engines compute no loss: leave labels out, and use the logits")
    embeds = inputs.get("inputs_embeds") is not None
    if embeds and model.__dict__["_spec"] is not None:
        return multimodal.token_ids_of(inputs)
    if embeds or tokens is None:
        hint = "pass input_ids, or compile for embeddings with encoder_example={'inputs_embeds': …}"
        raise ExecutionError("input_ids is missing: the model is compiled for token ids", hint)
    return tokens


def _own_cache(model: CompiledGeneration, passed_cache: Cache | None) -> FilledCache:
    """Return the `FilledCache` that was passed; if None or an empty cache (which transformers creates first) was
    passed, return a new `FilledCache`."""
    if isinstance(passed_cache, FilledCache):
        return passed_cache
    if passed_cache is not None and has_tokens(passed_cache):
        why = f"past_key_values is {kind_of(passed_cache)} with tokens, and a compiled model uses only its own cache"
        raise ExecutionError(why, "pass the past_key_values that an earlier call of this model returned, or None")
    kind = FilledCrossCache if "encoder" in model.runners else FilledCache
    return kind(model.limits.max_cache_len, model.runners["decoder"], model.__dict__["_latest"])


def _check_assisted(model: CompiledGeneration, assistant: object) -> None:
    """Raise a ValueError if ``assistant`` (None: prompt lookup) cannot propose draft tokens for ``model``."""
    if isinstance(assistant, CompiledGeneration):
        if assistant.runners["decoder"] is model.runners["decoder"]:
            raise ValueError("assistant_model is the model itself, and shares its cache: pass model.new_state()")
        if hasattr(assistant, "generate_with_fallback"):
            raise ValueError("a compiled Whisper cannot be the assistant_model: pass the uncompiled Whisper model")
    for each in (model, assistant):
        if isinstance(each, CompiledGeneration) and not can_crop(each.runners["decoder"]):
            name = type(each).__name__.removeprefix("Compiled")
            raise ValueError(f"{name} has recurrent states, which assisted decoding cannot revert: generate unassisted")


def _decoder_call_inputs(
    model: CompiledGeneration,
    tokens: torch.Tensor,
    mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: FilledCache,
    logit_count: int,
    prompt: multimodal.Prompt | None,
) -> Iterator[Inputs]:
    """Yield the inputs of each call, and add its tokens to the cache's length and mask. Tokens, and logits of the last
    ``logit_count`` tokens, are split into calls by `Limits`. ``prompt``: a multimodal prompt; None for text."""
    limits, starts, drafts = model.limits, model.__dict__["_starts"], model.limits.max_draft_len > 0
    rows, length = tokens.shape
    spec: multimodal.PromptSpec | None = model.__dict__["_spec"]
    shape, dtype = multimodal.position_ids_format(spec)
    limits.check_call(rows, cache.length + length)
    cache.claim_buffers()
    if cache.mask is None:
        cache.mask = torch.zeros(rows, limits.max_cache_len, dtype=torch.bool, device=model.device)
    calls = limits.split_tokens(length, logit_count)
    sizes = [size for size, _ in calls]
    positions = repeat(None) if position_ids is None else position_ids.split(sizes, -1)
    ends = [cache.length + end for end in accumulate(sizes, initial=0)]
    sights = multimodal.multimodal_inputs(spec, tokens, list(pairwise(ends)), limits.max_cache_len, prompt)
    for (size, count), piece, where, seen in zip(calls, tokens.split(sizes, 1), positions, sights, strict=False):
        start, end = cache.length, cache.length + size
        cache.mask[:, start:end] = True if mask is None else mask[:, start:end].to(torch.bool)
        if where is None and spec is not None and spec.counts_padding:
            where = starts[start:end]
        elif where is None:
            where = (cache.mask[:, :end].to(torch.int64).cumsum(-1) - 1).clamp(min=0)[:, start:]
        elif where.dim() > 2 + len(shape):  # position ids of text in several dims, which are equal
            where = where[0]
        cache.length = end
        where = where.to(model.device, dtype).expand(*shape, rows, size).contiguous()
        own: Inputs = {"wanted": starts[size - count : size]} if drafts else {}
        given: Inputs = {"input_ids": piece, "attention_mask": cache.mask, "position_ids": where}
        yield {**given, "start": starts[start], **own, **seen}
