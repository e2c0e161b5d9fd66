"""Compute TensorRT layers for matmul, einsum, attention and related operations, in PyTorch."""

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference.common import LayerError, Maybe, widen
from pipeline.runtime.reference.quantized import round_to_dtype


def matrix_multiply(layer: Layer, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply matrices: leading dims broadcast; a VECTOR operand uses only its last dim."""
    op0, op1 = layer.attribute("op0"), layer.attribute("op1")
    left = _to_matrix(widen(a), op0, -2)
    result = left @ _to_matrix(widen(b), op1, -1)
    result = result.squeeze(-1) if op1 == "VECTOR" else result
    return (result.squeeze(-1 if op1 == "VECTOR" else -2) if op0 == "VECTOR" else result).to(a.dtype)


def _to_matrix(x: torch.Tensor, operation: str, vector_axis: int) -> torch.Tensor:
    """Return a matmul operand as a matrix: unchanged (operation NONE), transposed (TRANSPOSE), or a vector (VECTOR)
    with a new dim of size 1 at ``vector_axis``."""
    if operation not in ("NONE", "TRANSPOSE", "VECTOR"):
        raise LayerError(f"{operation!r} is not a matrix operation")
    if operation == "VECTOR":
        return x.unsqueeze(vector_axis)
    return x.transpose(-1, -2) if operation == "TRANSPOSE" else x


def einsum(layer: Layer, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return torch.einsum(layer.attribute("equation"), *map(widen, (first, *others))).to(first.dtype)


def _attention_scores(layer: Layer, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return attention scores without a scale, since TensorRT leaves scaling to the caller."""
    scores = query @ key.transpose(-1, -2)
    kind = layer.attribute("causal_kind", "UPPER_LEFT" if layer.attribute("causal") else "NONE")
    if kind != "NONE":
        shift = 0 if kind == "UPPER_LEFT" else key.shape[-2] - query.shape[-2]
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(shift)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + widen(mask)


def _check_padded(layer: Layer, *form_attributes: str) -> None:
    """Raise an error if one of these attributes, each the layout of an input, is not ``PADDED_BHND``: [batch, heads,
    length, head size], with sequences padded to equal lengths."""
    for form in form_attributes:
        if layer.attribute(form, "PADDED_BHND") != "PADDED_BHND":
            raise LayerError(f"the CPU executor supports only {form}=PADDED_BHND, got {layer.attribute(form)}")


def attention_input(
    layer: Layer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Maybe = None,
    scale: Maybe = None,
    query_lengths: Maybe = None,
    key_lengths: Maybe = None,
) -> torch.Tensor:
    """Compute the whole attention of a pair of layers; `attention_output` passes its result on. ``mask``: boolean or
    additive. ``scale``: quantizes the softmax's result. ``query_lengths`` is ignored: padding is computed, too."""
    _check_padded(layer, "query_form", "key_value_form")
    repeats = query.shape[1] // max(key.shape[1], 1)
    keys, values = (widen(x).repeat_interleave(repeats, 1) for x in (key, value))
    weight = _attention_scores(layer, widen(query), keys, mask)
    if key_lengths is not None:
        outside = torch.arange(key.shape[2]) >= key_lengths.reshape(-1, 1, 1, 1)
        weight = weight.masked_fill(outside, float("-inf") if layer.attribute("norm_op") == "SOFTMAX" else 0)
    if layer.attribute("norm_op") == "SOFTMAX":
        weight = torch.softmax(weight, -1)
    if scale is not None:
        target = str(layer.attribute("normalization_quantize_to_type"))
        weight = round_to_dtype(weight / widen(scale), target).float() * widen(scale)
    return (weight @ values).to(query.dtype)


def attention_output(layer: Layer, result: torch.Tensor) -> torch.Tensor:
    """Return ``result``: TensorRT has two layers for attention, and `attention_input` computes all at the first."""
    return result


def rotary_embedding(
    layer: Layer, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, positions: Maybe = None
) -> torch.Tensor:
    """Rotate pairs of elements, adjacent (interleaved) or from the two halves; elements beyond `rotary_embedding_dim`
    are unchanged. Cosines and sines are [batch, sequence, half], or tables of all positions."""
    if positions is not None:
        cosines, sines = cosines[positions], sines[positions]
    cosines, sines = (widen(table).unsqueeze(1) for table in (cosines, sines))
    size = layer.attribute("rotary_embedding_dim") or x.shape[-1]
    turning, rest = widen(x[..., :size]), x[..., size:]
    interleaved = layer.attribute("interleaved")
    pairs = turning.unflatten(-1, (-1, 2) if interleaved else (2, -1))
    axis = -1 if interleaved else -2
    first, second = pairs.unbind(axis)
    turned = torch.stack([first * cosines - second * sines, first * sines + second * cosines], axis)
    return torch.cat([turned.flatten(-2).to(x.dtype), rest], -1)


def kv_cache_update(layer: Layer, cache: torch.Tensor, update: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return a copy of the KV cache with `update` at each sequence's start index; writes beyond the end are dropped."""
    _check_padded(layer, "update_form")
    if layer.attribute("cache_mode") != "LINEAR":
        raise LayerError(f"the CPU executor does not support the cache mode {layer.attribute('cache_mode')}")
    place = starts.to(torch.int64)[:, None] + torch.arange(update.shape[2])
    sequence, step = ((place >= 0) & (place < cache.shape[2])).nonzero(as_tuple=True)
    result = cache.clone()
    result[sequence, :, place[sequence, step]] = update[sequence, :, step]
    return result
