"""Caches with transformers' interface over a program's KV buffers: one for capture, and one for ``generate``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from attrs import define, frozen
from torch.utils._pytree import tree_leaves
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    EncoderDecoderCache,
    StaticLayer,
)

from pipeline.compat.transformers.recurrences import RecurrentStates, WithStates, replace_recurrences
from pipeline.compiled import CompiledModule
from pipeline.distributed.sharded import check_call_is_safe
from pipeline.errors import CaptureError, ExecutionError, PipelineError
from pipeline.export_fixes.restore_model_state import restore_distribution_checks

Pretrained: TypeAlias = Any
"""An object of transformers whose attributes depend on its class: a model, a part of a model, or its output."""
Layer: TypeAlias = Any
"""A layer of a KV cache: a class of transformers or of this package."""

CACHED_TENSORS: Final = {"key": "keys", "value": "values", "indexer": "indexer_keys"}
"""For each kind of tensor that a program caches, the attribute of transformers' cache layers that holds it."""


@frozen
class CachedTensor:
    """A tensor that a model caches for one layer: its shape for one row and one position, its dtype, and the dim of
    positions (None for a recurrent state, which has no such dim)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    positions: int | None = None

    def create_buffer(self, rows: int, positions: int, device: torch.device) -> torch.Tensor:
        """Return a cache buffer of zeros for this number of rows and positions."""
        shape = [rows, *self.shape[1:]]
        if self.positions is not None:
            shape[self.positions] = positions
        return torch.zeros(shape, dtype=self.dtype, device=device)


class BufferLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """A cache layer of buffers [batch, heads, positions, width]; new keys and values begin at position ``start``."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, start: torch.Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys = self.own_keys = keys
        self.values = self.own_values = values
        self.start, self.is_initialized, self.dtype, self.device = start, True, keys.dtype, keys.device

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Any:
        """Write the keys and values of new tokens after the existing ones; return all keys and values."""
        positions = self.positions_of_new_tokens(key_states.shape[2])
        self.own_keys.index_copy_(2, positions, key_states)
        self.own_values.index_copy_(2, positions, value_states)
        return self.own_keys, self.own_values

    def positions_of_new_tokens(self, token_count: int) -> torch.Tensor:
        return torch.arange(token_count, device=self.device) + self.start

    def get_seq_length(self) -> Any:
        """Return the number of cached positions as a tensor."""
        return self.start


class IndexedLayer(BufferLayer):  # type: ignore[no-untyped-call]
    """A `BufferLayer` with a third buffer [max_batch, max_cache_len, width]: the indexer's keys, by which sparse
    attention (DeepSeek-V3.2, GLM-5) selects positions."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, indexer: torch.Tensor, start: torch.Tensor) -> None:
        super().__init__(keys, values, start)
        self.indexer_keys = indexer

    def update_indexer(self, states: torch.Tensor) -> torch.Tensor:
        """Write keys of new tokens [batch, length, width], by which sparse attention selects positions, after the
        existing ones; return all keys."""
        self.indexer_keys.index_copy_(1, self.positions_of_new_tokens(states.shape[1]), states)
        return self.indexer_keys


class BufferStates(RecurrentStates, BufferLayer):  # type: ignore[no-untyped-call]
    """A `BufferLayer` that stores recurrent states in addition to keys and values (Falcon-H1, Zamba2)."""

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        own: Mapping[str, torch.Tensor],
        start: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        RecurrentStates.__init__(self, own, start, mask, len(own))
        BufferLayer.__init__(self, keys, values, start)


class StateShapeRecorder(RecurrentStates, DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer like `BufferStates` that only records the shapes of its recurrent states, in the first call."""

    def __init__(self, start: torch.Tensor, count: int, model: str) -> None:
        DynamicLayer.__init__(self)  # type: ignore[no-untyped-call]
        RecurrentStates.__init__(self, None, start, None, count, model)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:  # type: ignore[override]
        """Create empty keys and values with this dtype and device, unlike the inherited method."""
        DynamicLayer.lazy_initialization(self, key_states, value_states)


class CrossAttentionLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """A cache layer for cross attention: its keys and values are inputs of the program."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys, self.values, self.is_initialized = keys, values, True


class CaptureCache(Cache):
    """The cache that is passed to a model during capture, with which the model creates the same mask operators for any
    number of tokens. ``start`` is the position of the first token."""

    is_compileable = False  # else transformers calls torch.compile

    def __init__(self, layers: Sequence[Layer], start: torch.Tensor) -> None:
        super().__init__(layers=list(layers))
        self.start = start

    @property
    def has_keys_and_values(self) -> bool:
        """Return whether any layer of the cache stores keys and values."""
        return any(isinstance(layer, CacheLayerMixin) for layer in self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> Pretrained:
        """Return the number of cached positions: a tensor, or the int 0 for a layer that caches nothing."""
        if not self.has_keys_and_values:
            return self.start
        layer = self.layers[layer_idx]
        return 0 if isinstance(layer, RecurrentStates) and not layer.own else super().get_seq_length(layer_idx)


def create_cache_layer(
    buffers: Mapping[str, torch.Tensor], start: torch.Tensor, row_count: int, mask: torch.Tensor | None
) -> BufferLayer | RecurrentStates:
    """Create a cache layer from its buffers by name: keys, values and (for sparse attention) indexer keys, or recurrent
    states, or both. ``mask`` [rows, length] is False for padding tokens, which must not update recurrent states."""

    def first_rows(x: torch.Tensor) -> torch.Tensor:
        return x if x.shape[0] == 1 else x[:row_count]

    states = {name: first_rows(x) for name, x in buffers.items() if name not in CACHED_TENSORS}
    if "key" not in buffers:
        return RecurrentStates(states, start, mask, max(len(states), 1))
    keys, values, *indexer = (first_rows(buffers[name]) for name in CACHED_TENSORS if name in buffers)
    if states:
        return BufferStates(keys, values, states, start, mask)
    return IndexedLayer(keys, values, indexer[0], start) if indexer else BufferLayer(keys, values, start)


@define(eq=False)
class LatestCache:
    """A reference to the `FilledCache` whose tokens are in a program's buffers: the last one that began a sequence."""

    filled: weakref.ref[FilledCache] | None = None


class FilledCache(Cache):
    """The cache object that ``generate`` passes to the model: it counts, in Python, the filled positions of a program's
    cache.

    ``cross`` has the keys and values of cross attention, after the encoder ran. ``mask`` [batch, max_cache_len] is True
    for positions that attention reads. ``runner`` holds the program's cache buffers, and ``latest`` refers to the
    `FilledCache` whose tokens are in these buffers.
    """

    is_compileable = False  # the program is already compiled
    is_initialized = True  # the program's cache buffers always exist

    def __init__(self, max_cache_len: int, runner: CompiledModule, latest: LatestCache) -> None:
        Cache.__init__(self, layers=[])  # that of an EncoderDecoderCache takes two caches
        self.positions, self.length, self.runner, self.latest = max_cache_len, 0, runner, latest
        self.mask: torch.Tensor | None = None
        self.cross: tuple[torch.Tensor, ...] = ()
        self._encoder_cross: tuple[torch.Tensor, ...] | None = None
        self.is_updated: dict[int, bool] = {}

    def claim_buffers(self) -> None:
        """Make this cache the owner of the program's buffers; raise an error if another sequence overwrote them."""
        self._check_not_overwritten_by_other_sequence()
        if self.length == 0:
            self.latest.filled = weakref.ref(self)

    def _check_not_overwritten_by_other_sequence(self) -> None:
        """Raise `ExecutionError` if a later sequence has overwritten this one in the program's cache buffers."""
        if self.length and (self.latest.filled is None or self.latest.filled() is not self):
            raise ExecutionError(
                "this cache was overwritten by another sequence", "use model.new_state() for each sequence"
            )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.positions

    @property
    def self_attention_cache(self) -> DynamicCache:
        """Return the program's cached keys and values [batch, heads, length, width], without empty positions. They are
        views, which later calls change."""
        self._check_not_overwritten_by_other_sequence()
        state, rows = self.runner.state_dict(), 0 if self.mask is None else self.mask.shape[0]
        layers = sorted(int(name.rpartition("_")[2]) for name in state if name.startswith("key_cache_"))
        names = (f"{kind}_cache_{layer}" for layer in layers for kind in ("key", "value"))
        return _as_dynamic_cache([state[name][:rows, :, : self.length] for name in names])

    @property
    def cross_attention_cache(self) -> DynamicCache:
        """Return the stored keys and values of cross attention [batch, heads, encoded, width] as a cache."""
        return _as_dynamic_cache(self.cross)

    @property
    def is_croppable(self) -> bool:
        return can_crop(self.runner)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace row ``i`` of the cache by row ``beam_idx[i]`` [batch], in place. Both rows are beams of the same
        prompt, so their keys and values of cross attention are equal."""
        if self.mask is None:
            return
        self._check_not_overwritten_by_other_sequence()
        for tensor, positions in _cache_buffers(self.runner):
            own = tensor[: self.mask.shape[0]]
            own = own if positions is None else own.narrow(positions, 0, self.length)
            own.copy_(own.index_select(0, beam_idx.to(own.device)))
        self.mask.copy_(self.mask.index_select(0, beam_idx.to(self.mask.device)))

    def crop(self, max_length: int) -> None:
        """Remove the last tokens from the cache: ``-max_length`` of them or, if ``max_length`` is above 0, all but the
        first ``max_length``. Raise a `ValueError` for recurrent states, which cannot be reverted."""
        length = min(max_length, self.length) if max_length > 0 else max(self.length + max_length, 0)
        if length != self.length and not self.is_croppable:
            raise ValueError("recurrent states cannot be cropped to fewer tokens: generate without assistant_model")
        if self.mask is not None:
            self.mask[:, length:] = False
        self.length = length

    def repeat_cross(self, cross: tuple[torch.Tensor, ...] | None, row_count: int) -> tuple[torch.Tensor, ...]:
        """Store ``cross``, keys and values from the encoder with a row for each prompt, repeated to ``row_count`` rows
        (a prompt's beams or samples). Return the stored ones, also if ``cross`` is None."""
        if cross is not None and cross is not self._encoder_cross:
            each = row_count // cross[0].shape[0]
            self._encoder_cross = cross
            self.cross = cross if each == 1 else tuple(tensor.repeat_interleave(each, 0) for tensor in cross)
        return self.cross


def has_tokens(cache: Cache) -> bool:
    """Return whether a transformers cache has keys, values or states; False for a new cache: its tensors are empty."""
    layers = getattr(cache, "self_attention_cache", cache).layers
    tensors = (x for layer in layers for x in tree_leaves(vars(layer)) if isinstance(x, torch.Tensor))
    return any(x.dim() > 1 and x.numel() for x in tensors)


def can_crop(runner: CompiledModule) -> bool:
    """Return whether the last tokens can be removed from a program's cache; False if the cache has recurrent states."""
    return all(positions is not None for _, positions in _cache_buffers(runner))


def _cache_buffers(runner: CompiledModule) -> Iterator[tuple[torch.Tensor, int | None]]:
    """Yield a program's cache buffers [max_batch, …], each with its dim of positions (None for a recurrent state)."""
    for name, tensor in runner.state_dict().items():
        kind, found, _ = name.rpartition("_cache_")
        if found:
            yield tensor, tensor.dim() - 2 if kind in CACHED_TENSORS else None


class FilledCrossCache(FilledCache, EncoderDecoderCache):  # type: ignore[override]
    """A `FilledCache` for encoder-decoder models, some of which require an instance of `EncoderDecoderCache`."""

    cross_attention_cache = FilledCache.cross_attention_cache.setter(lambda self, cache: None)  # type: ignore[attr-defined]
    """The same as in `FilledCache`; an assigned cache is ignored: T5Gemma assigns an empty one before generation."""


def _as_dynamic_cache(tensors: Sequence[torch.Tensor]) -> DynamicCache:
    """Return a transformers cache with these tensors, which are alternately keys and values of the layers."""
    made = DynamicCache()
    for layer, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        made.update(keys, values, layer)
    return made


def find_cached_tensors(model: Pretrained, inputs: dict[str, Any]) -> list[dict[str, CachedTensor]]:
    """Call a model with one token of one row, and return the tensors that each of its layers caches, by name: ``key``,
    ``value`` and, in some models, ``indexer``, ``conv_0``, ``recurrent_0``."""
    check_call_is_safe(model)
    cache: Cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    start = torch.zeros((), dtype=torch.int64, device=model.device)
    cache.layers = [_as_shape_recorder(layer, start, type(model).__name__) for layer in cache.layers]
    cache = EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache
    name = cache_argument(model)
    try:
        with torch.no_grad(), restore_distribution_checks(), replace_recurrences(model):
            cache_after = getattr(model(**inputs, **{name: cache}, use_cache=True), name, None)
    except PipelineError:
        raise
    except Exception as error:
        why = f"{type(model).__name__}.forward fails with an empty cache of transformers"
        raise CaptureError(why, f"the call raised: {error}") from error
    if cache_after is None:
        why = f"{type(model).__name__}.forward returns no cache of keys and values"
        raise CaptureError(why, "pass a decoder; for a model such as BERT, set is_decoder=True in its config")
    own = cache_after.self_attention_cache if model.config.is_encoder_decoder else cache_after
    return [_describe_cached_tensors(model, layer) for layer in own.layers]


def _as_shape_recorder(layer: Layer, start: torch.Tensor, model_name: str) -> Layer:
    """Replace a cache layer for recurrent states by one that gets its buffers in the first call, from which
    `find_cached_tensors` reads shapes; return any other layer unchanged. ``start``: the first token's position."""
    if not isinstance(layer, WithStates):
        return layer
    count = getattr(layer, "number_of_states", 1)
    if isinstance(layer, CacheLayerMixin):
        return StateShapeRecorder(start, count, model_name)
    return RecurrentStates(None, start, None, count, model_name)


def _describe_cached_tensors(model: Pretrained, layer: object) -> dict[str, CachedTensor]:
    candidates = ((kind, getattr(layer, name, None)) for kind, name in CACHED_TENSORS.items())
    named = {kind: tensor for kind, tensor in candidates if tensor is not None and tensor.dim() > 1}
    states = dict(layer.own) if isinstance(layer, RecurrentStates) else {}
    known = {*map(id, named.values()), *map(id, states.values()), id(getattr(layer, "joined", None))}
    others = [t for t in tree_leaves(vars(layer)) if isinstance(t, torch.Tensor) and t.dim() > 1 and id(t) not in known]
    if others or (named and ("key" not in named or named["key"].dim() != 4)):
        raise CaptureError(
            f"{type(model).__name__} caches tensors other than keys, values and recurrent states",
            "compile it with pipeline.compile, without generate",
        )
    tensors = {kind: CachedTensor(tuple(x.shape), x.dtype, x.dim() - 2) for kind, x in named.items()}
    return {**tensors, **{name: CachedTensor(tuple(x.shape), x.dtype) for name, x in states.items()}}


def has_parameter(model: torch.nn.Module, name: str) -> bool:
    """Return whether a model's ``forward`` has a parameter of this name."""
    return name in inspect.signature(model.forward).parameters


def cache_argument(model: Pretrained) -> str:
    """Return the name of the cache argument of a model's ``forward``, which is also the name of the returned cache."""
    return "cache_params" if has_parameter(model, "cache_params") else "past_key_values"
