"""transformers' caches over buffers that a program updates: for capture, and for ``generate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticLayer

from pipeline.errors import CaptureError
from pipeline.frontend.untouched import checks_left
from pipeline.runtime.module import CompiledModule

Pretrained: TypeAlias = Any
"""A model of transformers, or what is one of its class: what it has depends on its class."""


KEPT: Final = {"key": "keys", "value": "values", "indexer": "indexer_keys"}
"""What a program keeps of a layer's past, and the attributes of transformers' layer that have it."""


class BufferLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """A layer whose keys and values are buffers [max_batch, heads, max_cache_len, width], written from ``start`` on."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, start: torch.Tensor, rows: int) -> None:
        super().__init__(keys.shape[2])
        one = keys.shape[0] == 1
        self.keys = self.own_keys = keys if one else keys[:rows]
        self.values = self.own_values = values if one else values[:rows]
        self.start, self.is_initialized, self.dtype, self.device = start, True, keys.dtype, keys.device

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Any:
        """Write the new states after the existing ones; return all."""
        positions = self.positions(key_states.shape[2])
        self.own_keys.index_copy_(2, positions, key_states)
        self.own_values.index_copy_(2, positions, value_states)
        return self.own_keys, self.own_values

    def positions(self, length: int) -> torch.Tensor:
        """Where so many new states go."""
        return torch.arange(length, device=self.device) + self.start

    def get_seq_length(self) -> Any:
        """How many positions are filled, a tensor."""
        return self.start


class IndexedLayer(BufferLayer):  # type: ignore[no-untyped-call]
    """One that has a third buffer [max_batch, max_cache_len, width]: the keys by which sparse attention (DeepSeek-V3.2,
    GLM-5) picks positions."""

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, indexer: torch.Tensor, start: torch.Tensor, rows: int
    ) -> None:
        super().__init__(keys, values, start, rows)
        self.indexer_keys = indexer if indexer.shape[0] == 1 else indexer[:rows]

    def update_indexer(self, states: torch.Tensor) -> torch.Tensor:
        """Write the new keys [batch, length, width] after the existing ones; return all."""
        self.indexer_keys.index_copy_(1, self.positions(states.shape[1]), states)
        return self.indexer_keys


class GivenLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """A layer of cross attention, whose keys and values are inputs of the program."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys, self.values, self.is_initialized = keys, values, True


class Captured(Cache):
    """A cache whose masks do not depend on whether there is one token or several."""

    @property
    def is_compileable(self) -> bool:
        """False: transformers must not compile it."""
        return False


def layer_of(own: Sequence[torch.Tensor], start: torch.Tensor, rows: int) -> BufferLayer:
    """A layer over its buffers: keys, values and, if there are, those that it picks positions by."""
    keys, values, *indexer = own
    return IndexedLayer(keys, values, indexer[0], start, rows) if indexer else BufferLayer(keys, values, start, rows)


def cache_of(layers: Sequence[StaticLayer]) -> Cache:
    """A cache of these layers."""
    return Captured(layers=list(layers))


def with_cross(own: Cache, cross: Cache) -> EncoderDecoderCache:
    """A decoder's cache, and that of its cross attention, which is filled."""
    made = EncoderDecoderCache(own, cross)
    made.is_updated = dict.fromkeys(range(len(cross.layers)), True)
    return made


class Filled(Cache):
    """The cache that ``generate`` sees: counts in Python how much of the program's own cache is filled.

    ``cross`` are the keys and values of cross attention, once the encoder's output is known. ``mask`` says which
    positions count, [batch, max_cache_len]. ``runner`` holds the program's own cache.
    """

    def __init__(self, max_cache_len: int, runner: CompiledModule) -> None:
        Cache.__init__(self, layers=[])  # that of an EncoderDecoderCache takes two caches
        self.positions, self.length, self.runner = max_cache_len, 0, runner
        self.mask: torch.Tensor | None = None
        self.cross: tuple[torch.Tensor, ...] = ()
        self.is_updated: dict[int, bool] = {}

    @property
    def is_compileable(self) -> bool:
        """False: the program is compiled already."""
        return False

    @property
    def is_initialized(self) -> bool:
        """True: the program fills it as it runs."""
        return True

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many positions are filled."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """How many there are."""
        return self.positions

    @property
    def self_attention_cache(self) -> DynamicCache:
        """The filled part of the program's own keys and values [batch, heads, length, width], as a view: the next step
        writes on."""
        state, rows = self.runner.state_dict(), 0 if self.mask is None else self.mask.shape[0]
        layers = sum(name.startswith("key_cache_") for name in state)
        names = (f"{kind}_cache_{layer}" for layer in range(layers) for kind in ("key", "value"))
        return _dynamic([state[name][:rows, :, : self.length] for name in names])

    @property
    def cross_attention_cache(self) -> DynamicCache:
        """Keys and values of cross attention [batch, heads, encoded, width]."""
        return _dynamic(self.cross)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Raise an error: beam search reorders rows, which the program's cache does not support."""
        raise ValueError("beam search is not supported: num_beams=1 generates greedily, or samples")


class FilledCross(Filled, EncoderDecoderCache):  # type: ignore[override]
    """That of a model with an encoder, of the class that some ask for; the program has the cross attention's."""

    @property
    def cross_attention_cache(self) -> DynamicCache:
        """As `Filled.cross_attention_cache`."""
        return super().cross_attention_cache

    @cross_attention_cache.setter
    def cross_attention_cache(self, cache: DynamicCache) -> None:
        """T5Gemma sets an empty one with other windows before it begins: there is nothing to keep."""


def _dynamic(tensors: Sequence[torch.Tensor]) -> DynamicCache:
    """Keys and values in turns as a cache of transformers."""
    made = DynamicCache()
    for layer, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        made.update(keys, values, layer)
    return made


def shapes_of(model: Pretrained, inputs: dict[str, Any]) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of what each layer keeps, by its name (``key``, ``value`` and, if there are, ``indexer``), for one
    position and one row, found by calling the model."""
    cache: Cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    more = CaptureError(
        f"{type(model).__name__} keeps more than keys and values of its past",
        "models whose every layer is attention generate; others can be compiled as they are",
    )
    if any(not hasattr(layer, "keys") for layer in cache.layers):
        raise more
    cache = EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache
    with torch.no_grad(), checks_left():
        found = getattr(model(**inputs, past_key_values=cache, use_cache=True), "past_key_values", None)
    if found is None:
        why = f"{type(model).__name__} gives no cache of keys and values"
        raise CaptureError(why, "a decoder does: models such as BERT are one with is_decoder=True in their config")
    own = found.self_attention_cache if model.config.is_encoder_decoder else found
    shapes = []
    for layer in own.layers:
        named = {kind: getattr(layer, name, None) for kind, name in KEPT.items()}
        kept = {kind: tensor for kind, tensor in named.items() if tensor is not None}
        states = [t for t in tree_leaves(vars(layer)) if isinstance(t, torch.Tensor) and t.dim() > 1]
        if "key" not in kept or kept["key"].dim() != 4 or {*map(id, states)} - {*map(id, kept.values())}:
            raise more
        shapes.append({kind: tuple(tensor.shape) for kind, tensor in kept.items()})
    return shapes
