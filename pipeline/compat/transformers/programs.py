"""Modules that are compiled for a language model: decoder steps, and an encoder that returns keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from pipeline.compat.transformers.caches import (
    CaptureCache,
    CrossAttentionLayer,
    Pretrained,
    cache_argument,
    create_cache_layer,
    find_cached_tensors,
    has_parameter,
)
from pipeline.compat.transformers.decoder_input_hook import BY_LAYER, capture_decoder_inputs, replace_decoder_inputs


def is_like_whisper(encoder: Pretrained) -> bool:
    """Return whether an encoder has inputs like Whisper's: audio features of a fixed length, and no mask."""
    return hasattr(encoder, "conv2") and hasattr(encoder.config, "max_source_positions")


def audio_input_sizes(model: Pretrained) -> tuple[int, int]:
    """Return the number of features and of frames in the input of an encoder like Whisper's."""
    config, encoder = model.config, model.get_encoder()
    return config.num_mel_bins, config.max_source_positions * encoder.conv1.stride[0] * encoder.conv2.stride[0]


def layer_path_pattern(module: torch.nn.Module, submodule: torch.nn.Module) -> str:
    """Return an `fnmatch` pattern that matches the paths, in ``module``, of the layers of ``submodule``: the items of
    the largest ``ModuleList`` in ``submodule``. Return "" if there is no ``ModuleList``."""
    lists = [each for each in submodule.modules() if isinstance(each, torch.nn.ModuleList) and len(each) > 1]
    most = max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=None)
    return next((f"{path}.*" for path, each in module.named_modules() if each is most and path), "")


class Decoder(torch.nn.Module):
    """A decoder step, which runs a model for new tokens and updates the KV cache. It returns the logits [batch, 1,
    vocabulary] of the last of the tokens [batch, length], or the logits [batch, wanted, vocabulary] of the tokens at
    the indices in ``wanted`` [wanted].

    The KV cache is stored in buffers ``key_cache_0``, ``value_cache_0`` and so on, [max_batch, heads, max_cache_len,
    width]. Sparse attention also has the indexer's keys in ``indexer_cache_0`` [max_batch, max_cache_len, width].
    Recurrent states are ``conv_0_cache_0`` and ``recurrent_0_cache_0``, [max_batch, …].
    """

    def __init__(self, model: Pretrained, max_batch: int, max_cache_len: int, example: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.kept, self.cache_name = model, find_cached_tensors(model, example), cache_argument(model)
        self.places = next((n for n in ("position_ids", "decoder_position_ids") if has_parameter(model, n)), None)
        for layer, kept in enumerate(self.kept):
            for name, each in kept.items():
                cache = each.create_buffer(max_batch, max_cache_len, model.device)
                self.register_buffer(f"{name}_cache_{layer}", cache, persistent=False)

    def create_cache(self, start: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor) -> Pretrained:
        """Return a transformers cache that uses this module's buffers, for tokens from position ``start`` on; ``mask``
        covers all positions."""
        named = dict(self.named_buffers(recurse=False))
        layers = ({name: named[f"{name}_cache_{i}"] for name in kept} for i, kept in enumerate(self.kept))
        rows, length = input_ids.shape
        of_tokens = None
        if any(each.positions is None for kept in self.kept for each in kept.values()):  # a state
            of_tokens = mask.index_select(1, torch.arange(length, device=mask.device) + start)
        return CaptureCache([create_cache_layer(own, start, rows, of_tokens) for own in layers], start)

    def compute_logits(
        self,
        cache: Pretrained,
        position_ids: torch.Tensor,
        logit_indices: torch.Tensor | None,
        **inputs: torch.Tensor | EncoderOutput | None,
    ) -> torch.Tensor:
        """Call the model with these inputs, passed by the model's own argument names, and return its logits."""
        places = {self.places: position_ids} if self.places else {}
        can_keep = has_parameter(self.model, "logits_to_keep")
        keep = {"logits_to_keep": 1 if logit_indices is None else logit_indices} if can_keep else {}
        out = self.model(**inputs, **places, **keep, **{self.cache_name: cache}, use_cache=True)
        found: torch.Tensor = out.logits
        if logit_indices is None:
            return found[:, -1:]
        return found if keep else found.index_select(1, logit_indices)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        start: torch.Tensor,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the new tokens' keys and values to the cache from position ``start`` on, attend to all cached positions
        that the mask [batch, positions] allows, and return the logits of the last token or, if given, of the tokens at
        the indices in ``wanted`` [wanted]."""
        cache = self.create_cache(start, input_ids, attention_mask)
        mask = attention_mask if cache.has_keys_and_values else None
        return self.compute_logits(cache, position_ids, wanted, input_ids=input_ids, attention_mask=mask)


class MultimodalDecoder(Decoder):
    """A decoder step of a multimodal model, whose tokens are token ids (generated text) or embeddings (of the prompt).

    Attributes:
        ahead_layer_types: the layer types in which a token may attend to later tokens (see `PromptSpec`).
        model_embeds: True if the model's own code embeds token ids (see `bypasses_embedding_table`), not a mere table.
    """

    ahead_layer_types: tuple[str, ...] = ()
    model_embeds: bool = False

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        start: torch.Tensor,
        embedded: torch.Tensor,
        seen: torch.Tensor,
        added: torch.Tensor | None = None,
        ahead: torch.Tensor | None = None,
        by_layer: torch.Tensor | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run like `Decoder.forward`, which describes ``start`` and ``wanted``. Where ``seen`` [batch, length] is True,
        tokens are given by ``embedded`` [batch, length, width], not by ids. The first layers add image features
        ``added`` [layers, batch, length, width]. ``ahead`` [batch, length, positions] is True where a token attends to
        a later position. ``by_layer`` [batch, length, layers, width] is an additional input of each layer."""
        cache = self.create_cache(start, input_ids, attention_mask)
        ids, decoder = input_ids.masked_fill(seen, 0), self.model.get_decoder()
        own = capture_decoder_inputs(self.model, input_ids=ids, position_ids=position_ids) if self.model_embeds else {}
        tokens = own["inputs_embeds"] if own else self.model.get_input_embeddings()(ids)
        embeds = torch.where(seen[..., None], embedded, tokens)
        if by_layer is not None:
            by_layer = torch.where(seen[..., None, None], by_layer, own[BY_LAYER])
        mask = attention_mask if cache.has_keys_and_values else None
        with replace_decoder_inputs(decoder, seen, added, ahead, self.ahead_layer_types, by_layer):
            return self.compute_logits(cache, position_ids, wanted, inputs_embeds=embeds, attention_mask=mask)


@dataclass
class EncoderOutput(BaseModelOutput):
    """An encoder's output with additional fields that some decoders read: router outputs for training (Switch
    Transformers, NLLB-MoE), and the attention mask of audio (Moonshine)."""

    attention_mask: None = None
    router_logits: None = None
    router_probs: None = None


class CrossDecoder(Decoder):
    """A decoder step with cross attention, whose keys and values are inputs (the encoder computes them)."""

    def __init__(self, model: Pretrained, max_batch: int, max_cache_len: int, example: dict[str, Any]) -> None:
        super().__init__(model, max_batch, max_cache_len, example)
        self.width = example["encoder_outputs"].last_hidden_state.shape[-1]

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        start: torch.Tensor,
        encoder_mask: torch.Tensor | None,
        cross: tuple[torch.Tensor, ...],
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run like `Decoder.forward`, which describes ``start`` and ``wanted``, with cross attention to keys and values
        ``cross`` of each layer [batch, heads, encoder length, width]. ``encoder_mask`` is 0 for padding."""
        own = self.create_cache(start, input_ids, attention_mask)
        pairs = zip(cross[0::2], cross[1::2], strict=True)
        layers = [CrossAttentionLayer(keys, values) for keys, values in pairs]
        cache = EncoderDecoderCache(own, CaptureCache(layers, start))
        cache.is_updated = dict.fromkeys(range(len(cross) // 2), True)
        hidden = cross[0].new_zeros(input_ids.shape[0], cross[0].shape[2], self.width)
        masks = {} if encoder_mask is None else {"attention_mask": encoder_mask}
        return self.compute_logits(
            cache,
            position_ids,
            wanted,
            encoder_outputs=EncoderOutput(last_hidden_state=hidden),
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            **masks,
        )


class Encoder(torch.nn.Module):
    """An encoder that returns its last hidden state, and the cross-attention keys and values that each decoder layer
    computes from the hidden state."""

    def __init__(self, model: Pretrained, embedded: bool = False) -> None:
        super().__init__()
        self.model, self.main = model, "inputs_embeds" if embedded else model.get_encoder().main_input_name
        self.texts = self.main in ("input_ids", "inputs_embeds")
        self.masked = has_parameter(model.get_encoder(), "attention_mask") and self.texts

    def forward(self, inputs: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Encode ``inputs``; return the last hidden state, and the keys and values of the decoder's cross attention."""
        masks = {"attention_mask": attention_mask} if self.masked else {}
        hidden = self.model.get_encoder()(**{self.main: inputs}, **masks).last_hidden_state
        first = torch.zeros(inputs.shape[0], 1, dtype=torch.int64, device=inputs.device)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        out = self.model(
            encoder_outputs=EncoderOutput(last_hidden_state=hidden),
            decoder_input_ids=first,
            past_key_values=cache,
            use_cache=True,
            **masks,
        )
        layers = out.past_key_values.cross_attention_cache.layers
        return hidden, *(tensor for layer in layers for tensor in (layer.keys, layer.values))
