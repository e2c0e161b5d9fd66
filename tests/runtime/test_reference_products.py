"""Matrix products, einsum, attention, rotary embedding, caches: beside the same in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.trt import CAPABILITIES, trt
from tests.runtime.reference_networks import Net, computed

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def product(a: torch.Tensor, b: torch.Tensor, op0: str = "NONE", op1: str = "NONE") -> torch.Tensor:
    first, second = trt.MatrixOperation.__members__[op0], trt.MatrixOperation.__members__[op1]
    return computed(lambda n, x, y: n.net.add_matrix_multiply(x, first, y, second), a, b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op0", ["NONE", "TRANSPOSE"])
@pytest.mark.parametrize("op1", ["NONE", "TRANSPOSE"])
def test_matrices(op0: str, op1: str, dtype: torch.dtype) -> None:
    a, b = torch.randn(1, 3, 64).to(dtype), torch.randn(2, 64, 5).to(dtype)
    left = a.transpose(-1, -2).contiguous() if op0 == "TRANSPOSE" else a
    right = b.transpose(-1, -2).contiguous() if op1 == "TRANSPOSE" else b
    expected = (a.double() @ b.double()).to(dtype)
    torch.testing.assert_close(product(left, right, op0, op1), expected)


def test_vectors() -> None:
    a, b, vector = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 4)
    torch.testing.assert_close(product(a, vector, op1="VECTOR"), torch.einsum("bij,bj->bi", a, vector))
    torch.testing.assert_close(product(vector, b, op0="VECTOR"), torch.einsum("bj,bjk->bk", vector, b))
    torch.testing.assert_close(product(vector, vector, "VECTOR", "VECTOR"), (vector * vector).sum(-1))


def test_products_over_nothing_are_zero() -> None:
    assert product(torch.ones(3, 0), torch.ones(0, 2)).tolist() == [[0, 0]] * 3


@given(st.sampled_from(["bij,bjk->bik", "ij,kj->ik", "bhqd,bhkd->bhqk", "i,i->", "ij->ji"]))
def test_einsum(equation: str) -> None:
    terms = equation.split("->")[0].split(",")
    values = [torch.randn([2 + "bhijkqd".index(letter) for letter in term]) for term in terms]
    result = computed(lambda n, *sources: n.net.add_einsum(list(sources), equation), *values)
    torch.testing.assert_close(result, torch.einsum(equation, *values))


attention_only = pytest.mark.skipif(CAPABILITIES.attention == "none", reason="this TensorRT has none")
later_only = pytest.mark.skipif(CAPABILITIES.attention != "v2", reason="since RTX 1.5 and 11.0")


def attended(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False, norm: str = "SOFTMAX") -> Any:
    def add(net: Net, *tensors: Any) -> Any:
        operation = trt.AttentionNormalizationOp.__members__[norm]
        layer = net.net.add_attention(*tensors[:3], operation, causal)
        layer.decomposable = True
        if mask is not None:
            layer.mask = tensors[3]
        return layer

    return computed(add, query, key, value, *([] if mask is None else [mask]))


def heads(*lengths: int, dtype: torch.dtype = torch.float32, number: int = 4) -> list[torch.Tensor]:
    return [torch.randn(2, number, length, 8).to(dtype) for length in lengths]


def expected_attention(query: Any, key: Any, value: Any, mask: Any = None, causal: bool = False) -> torch.Tensor:
    doubles = (tensor.double() for tensor in (query, key, value))
    mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(*doubles, mask, is_causal=causal, scale=1.0, enable_gqa=True).to(query.dtype)


@attention_only
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, dtype: torch.dtype) -> None:
    query, key, value = heads(5, 6, 6, dtype=dtype)
    torch.testing.assert_close(
        attended(query, key, value, causal=causal), expected_attention(query, key, value, causal=causal)
    )


@attention_only
@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 1, 5, 6), (2, 1, 5, 6)], ids=str)
@pytest.mark.parametrize("boolean", [False, True])
def test_attention_masks(shape: tuple[int, ...], boolean: bool) -> None:
    query, key, value = heads(5, 6, 6)
    mask = torch.rand(shape) > 0.3 if boolean else torch.randn(shape)
    if boolean:
        mask[..., 0] = True
    torch.testing.assert_close(attended(query, key, value, mask), expected_attention(query, key, value, mask))


@attention_only
def test_attention_with_fewer_key_heads() -> None:
    (query,), (key, value) = heads(5), heads(6, 6, number=2)
    torch.testing.assert_close(attended(query, key, value), expected_attention(query, key, value))


@attention_only
def test_attention_without_softmax() -> None:
    query, key, value = heads(5, 6, 6)
    expected = query @ key.transpose(-1, -2) @ value
    torch.testing.assert_close(attended(query, key, value, norm="NONE"), expected, rtol=1e-4, atol=1e-4)


rotary_only = pytest.mark.skipif(not CAPABILITIES.rotary_embedding, reason="this TensorRT has none")


def turned(x: torch.Tensor, angle: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """As multiplication of complex numbers."""
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    spun = torch.view_as_complex(pairs.double().contiguous()) * torch.polar(torch.ones_like(angle), angle)[:, None]
    result = torch.view_as_real(spun)
    return (result if interleaved else result.transpose(-1, -2)).flatten(-2)


@rotary_only
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize("by_position", [False, True])
def test_rotary_embedding(interleaved: bool, size: int, by_position: bool) -> None:
    x, table = torch.randn(2, 3, 5, 8), torch.randn(9, (size or 8) // 2, dtype=torch.float64)
    positions = torch.randint(0, 9, (2, 5))
    angle = table[positions]
    tables = [f(table if by_position else angle).float() for f in (torch.cos, torch.sin)]

    def add(net: Net, *tensors: Any) -> Any:
        layer = net.net.add_rotary_embedding(*tensors[:3], interleaved, size)
        if by_position:
            layer.set_input(3, tensors[3])
        return layer

    result = computed(add, x, *tables, *([positions] if by_position else []))
    expected = torch.cat([turned(x[..., : size or 8], angle, interleaved).float(), x[..., size or 8 :]], -1)
    torch.testing.assert_close(result, expected)


@pytest.mark.skipif(not CAPABILITIES.kv_cache_update, reason="this TensorRT has none")
def test_cache_update_drops_what_lies_outside() -> None:
    cache, update = torch.zeros(2, 1, 4, 1), torch.tensor([1.0, 2.0] * 2).reshape(2, 1, 2, 1)
    start = torch.tensor([1, 3], dtype=torch.int32)
    result = computed(lambda n, *t: n.net.add_kv_cache_update(*t, trt.KVCacheMode.LINEAR), cache, update, start)
    assert result.flatten(1).tolist() == [[0, 1, 2, 0], [0, 0, 0, 1]]
    assert not cache.any()


def attended_later(query: Any, key: Any, value: Any, kind: str = "NONE", lengths: Any = None) -> torch.Tensor:
    def add(net: Net, *tensors: Any) -> Any:
        causal = trt.CausalMaskKind.__members__[kind]
        layer = net.net.add_attention_v2(*tensors[:3], trt.AttentionNormalizationOp.SOFTMAX, causal)
        if lengths is not None:
            layer.key_value_lengths = tensors[3]
        return layer

    return computed(add, query, key, value, *([] if lengths is None else [lengths]))


@later_only
@pytest.mark.parametrize("kind", ["NONE", "UPPER_LEFT", "LOWER_RIGHT"])
def test_attention_aligns_its_causal_mask(kind: str) -> None:
    query, key, value = heads(3, 6, 6)
    shift = {"NONE": 6, "UPPER_LEFT": 0, "LOWER_RIGHT": 3}[kind]
    mask = torch.ones(3, 6, dtype=torch.bool).tril(shift)
    torch.testing.assert_close(attended_later(query, key, value, kind), expected_attention(query, key, value, mask))


@later_only
def test_attention_to_the_first_keys_only() -> None:
    query, key, value = heads(3, 6, 6)
    lengths = torch.tensor([2, 5], dtype=torch.int32)
    mask = torch.arange(6) < lengths.reshape(2, 1, 1, 1)
    result = attended_later(query, key, value, lengths=lengths)
    torch.testing.assert_close(result, expected_attention(query, key, value, mask))
