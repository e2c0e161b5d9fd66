"""Each condition of TensorRT's attention layer, tried both ways: what meets it builds, and what does not is refused by
TensorRT, or is wrong for a reason that is named here."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.export import Dim

import pipeline
from pipeline.impl import attention_limits
from pipeline.impl.attention_limits import CONDITIONS, HEAD_DIMS, AttentionCase, first_unmet_condition
from pipeline.network.kernels import kernels
from pipeline.quirks import is_avoided
from pipeline.trt import CAPABILITIES, Log, new_network, to_trt, trt
from tests.build.attentions import Attend

SHAPE = (2, 4, 16, 32)
PLAIN = AttentionCase(torch.float16, SHAPE, SHAPE, SHAPE)


def of(size: int) -> AttentionCase:
    return AttentionCase(torch.float16, *((2, 4, 16, size),) * 3)


def masked(shape: tuple[int, ...], dtype: torch.dtype) -> AttentionCase:
    return evolve(PLAIN, mask=shape, mask_dtype=dtype)


def builds(case: AttentionCase) -> bool:
    """Whether TensorRT itself makes an engine of the case, without taking the layer apart."""
    log = Log()
    builder = trt.Builder(log)
    network = new_network(builder)
    shapes = {"q": case.query, "k": case.key, "v": case.value}
    inputs = [network.add_input(name, to_trt(case.dtype), shape) for name, shape in shapes.items()]
    layer = network.add_attention(*inputs, trt.AttentionNormalizationOp.SOFTMAX, case.causal)
    if layer is None:
        return False
    if case.mask is not None and case.mask_dtype is not None:
        layer.mask = network.add_input("m", to_trt(case.mask_dtype), case.mask)
    network.mark_output(layer.get_output(0))
    return builder.build_serialized_network(network, builder.create_builder_config()) is not None


TAKEN = {
    "float16": PLAIN,
    "bfloat16": evolve(PLAIN, dtype=torch.bfloat16),
    "the smallest head dim": of(HEAD_DIMS[0]),
    "the largest head dim": of(HEAD_DIMS[-1]),
    "a head dim that is no multiple of 8": of(100),
    "other keys than queries": evolve(PLAIN, key=(2, 4, 24, 32), value=(2, 4, 24, 32)),
    "causal": evolve(PLAIN, causal=True),
    "grouped heads": evolve(PLAIN, key=(2, 2, 16, 32), value=(2, 2, 16, 32), gqa=True),
    "a mask of bools": masked((2, 4, 16, 16), torch.bool),
    "a mask for all heads": masked((2, 1, 16, 16), torch.bool),
    "a mask for all queries": masked((1, 1, 1, 16), torch.bool),
    "a mask that is added": masked((1, 4, 16, 16), torch.float16),
}
REFUSED = {
    "float32": (evolve(PLAIN, dtype=torch.float32), "float16 or bfloat16"),
    "a smaller head dim": (of(HEAD_DIMS[0] - 1), "a head dim of"),
    "a larger head dim": (of(HEAD_DIMS[-1] + 1), "a head dim of"),
    "three dims": (AttentionCase(torch.float16, (4, 16, 32), (4, 16, 32), (4, 16, 32)), "four dims"),
    "values of another size": (evolve(PLAIN, value=(2, 4, 16, 64)), "key and value of one shape"),
    "keys of another batch": (evolve(PLAIN, key=(1, 4, 16, 32), value=(1, 4, 16, 32)), "of one batch"),
    "heads that do not divide": (evolve(PLAIN, key=(2, 3, 16, 32), value=(2, 3, 16, 32), gqa=True), "number of heads"),
    "nothing to attend to": (evolve(PLAIN, key=(2, 4, 0, 32), value=(2, 4, 0, 32)), "something to attend to"),
    "a mask of another dtype": (masked((2, 1, 16, 16), torch.float32), "of the query's dtype"),
    "a mask of five dims": (masked((1, 2, 4, 16, 16), torch.bool), "at most four dims"),
}


@pytest.mark.skipif(CAPABILITIES.attention == "none", reason="this TensorRT has no attention layer")
class TestConditions:
    @pytest.mark.parametrize("case", TAKEN.values(), ids=TAKEN)
    def test_what_is_taken_builds(self, case: AttentionCase) -> None:
        assert first_unmet_condition(case) is None
        assert builds(case)

    @pytest.mark.parametrize(("case", "why"), REFUSED.values(), ids=REFUSED)
    def test_what_is_refused_does_not_build(self, case: AttentionCase, why: str) -> None:
        condition = first_unmet_condition(case)
        assert condition is not None and why in condition.needs
        assert not builds(case)

    def test_a_mask_beside_causal_builds_but_the_documentation_excludes_it(self) -> None:
        condition = first_unmet_condition(evolve(masked((2, 1, 16, 16), torch.bool), causal=True))
        assert condition is not None and "not both" in condition.needs

    def test_every_condition_has_a_case_that_breaks_it(self) -> None:
        broken: set[Any] = {first_unmet_condition(case) for case, _ in REFUSED.values()}
        untried = [c.needs for c in CONDITIONS if c not in broken]
        assert untried == ["a TensorRT that has the layer", "a mask or causal, not both"]


def attended(*inputs: Any, causal: bool = False, by_layer: bool = False) -> None:
    """Products are of halves; that of values is summed in float32 where a mask is given (tests/build/
    test_kernels_sums.py)."""
    compiled = pipeline.default(require_full_compilation=True)(Attend(causal, 0.3).eval(), args=inputs)
    assert ("ATTENTION_INPUT" in compiled.networks[0].kinds()) == by_layer
    dtypes = [t.dtype for row in rows(compiled, "MATRIX_MULTIPLY") for t in row.outputs]
    halves = "float16" if not is_avoided("matmul-sums") else "float32"
    assert dtypes == ([] if by_layer else [halves, "float32" if len(inputs) > 3 else halves])
    result = compiled.module(executor="reference")(*inputs)
    torch.testing.assert_close(result, Attend(causal, 0.3)(*inputs), rtol=2e-3, atol=2e-3)


def rows(compiled: pipeline.Compiled, kind: str) -> list[Any]:
    return [row for row in compiled.networks[0].layers if row.kind == kind]


BY_LAYER = pytest.mark.parametrize(
    "by_layer",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(CAPABILITIES.attention != "v1", reason="1.4 has one that builds")),
    ],
    ids=["fused", "layer"],
)


@BY_LAYER
@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 4), (2, 3, 5, 32)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_small_heads_and_fewer_dims_are_fitted(
    shape: tuple[int, ...], causal: bool, by_layer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_limits, "BY_LAYER", by_layer)
    attended(*(torch.randn(shape).half() for _ in range(3)), causal=causal, by_layer=by_layer)


@BY_LAYER
@pytest.mark.parametrize("dtype", [torch.bool, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("shape", "mask"),
    [((5, 16), (5, 5)), ((3, 5, 16), (5, 5)), ((3, 5, 16), (3, 1, 5)), ((2, 3, 5, 16), (2, 1, 1, 5))],
    ids=str,
)
def test_masks_are_fitted(
    shape: tuple[int, ...], mask: tuple[int, ...], dtype: torch.dtype, by_layer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_limits, "BY_LAYER", by_layer)
    bias = torch.randn(mask).to(dtype) if dtype.is_floating_point else torch.rand(mask) > 0.5  # whole rows may be False
    attended(*(torch.randn(shape).half() for _ in range(3)), bias, by_layer=by_layer)


FORMS: dict[Any, tuple[Any, ...]] = {
    torch.ops.aten._scaled_dot_product_flash_attention.default: (0.0, True),
    torch.ops.aten._scaled_dot_product_efficient_attention.default: (None, True, 0.0, True),
    torch.ops.aten._scaled_dot_product_cudnn_attention.default: (None, True, 0.0, True),
}


@pytest.mark.parametrize("target", FORMS, ids=str)
def test_the_forms_of_devices_come_apart_into_attention(target: Any) -> None:
    """They have no kernel on the CPU: their decomposition is compared with what they compute."""
    query, key, value = (torch.randn(2, 4, 5, 16) for _ in range(3))
    result, lse, *rest = pipeline.DECOMPOSITIONS[target](query, key, value, *FORMS[target], scale=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    torch.testing.assert_close(result, expected)
    scores = (0.3 * query @ key.transpose(-1, -2)).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(lse.flatten(2)[..., :5], scores.logsumexp(-1))  # one has more of them, one a dim more
    assert len(rest) + 2 == len(target._schema.returns)


def test_values_of_fewer_dims_than_have_kernels() -> None:
    """They are padded, and the result is cut to their size (Conditional DETR)."""
    query, value = torch.randn(2, 4, 6, 16).half(), torch.randn(2, 4, 6, 8).half()
    compiled = pipeline.default(min_block_size=1)(Attend(False).eval(), args=(query, query + 1, value))
    assert not compiled.coverage.fallback
    result = compiled.module(executor="reference")(query, query + 1, value)
    expected = torch.nn.functional.scaled_dot_product_attention(query.float(), query.float() + 1, value.float())
    assert result.shape == value.shape
    torch.testing.assert_close(result.float(), expected, atol=5e-3, rtol=5e-3)


class Grouped(torch.nn.Module):
    """Attention of queries that share heads of keys."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None) -> torch.Tensor:
        """[N, heads, L, D]"""
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_one_query_of_many_keys_reads_each_key_once(batch: int, dtype: torch.dtype, mask: str) -> None:
    """Queries that share a head of keys are rows of one product, an even number of them, and no kernel is the whole
    attention, nor adds a row, nor cuts it off."""
    query, key, value = (torch.randn(batch, heads, n, 32).to(dtype) for heads, n in ((6, 1), (2, 1024), (2, 1024)))
    kept = torch.arange(1024) < torch.tensor([700, 64])[:batch, None, None, None]
    inputs = [query, key, value, kept if mask == "bool" else torch.where(kept, 0.0, -1e4).to(dtype)]
    model = Grouped().eval()
    compiled = pipeline.default(require_full_compilation=True)(model, inputs)
    made = [kernel for engine in compiled.engines for kernel in kernels(bytes(engine.plan))]
    assert not any(kernel.role == "attention" or kernel.name.endswith(("MoveConc", "Slic")) for kernel in made)
    shapes = [x.shape for row in compiled.networks[0].layers if row.kind == "MATRIX_MULTIPLY" for x in row.outputs]
    assert [tuple(shape) for shape in shapes] == [(batch, 2, 1024, 4), (batch, 2, 4, 32)]
    exact = model(*(x.double() if x.is_floating_point() else x for x in inputs))
    got = compiled.module("reference")(*inputs)
    assert (got.double() - exact).abs().max() < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize(
    ("least", "dtype", "repeated"),
    [(1, torch.float16, 0), (1, torch.float32, 0), (2, torch.float16, 2), (2, torch.float32, 0)],
)
def test_queries_that_may_be_one_repeat_no_keys(least: int, dtype: torch.dtype, repeated: int, heads: int) -> None:
    """Several halves at least are a whole attention, for which keys and values are repeated."""

    def inputs(length: int) -> list[torch.Tensor]:
        query, key, value = (torch.randn(2, h, n, 16).to(dtype) for h, n in ((6, length), (2, 1024), (2, 1024)))
        return [query, key, value, torch.randn(2, heads, length, 1024).to(dtype)]

    model, length = Grouped().eval(), Dim("length", min=least, max=8)
    shapes = {"query": {2: length}, "key": None, "value": None, "mask": {2: length}}
    compiled = pipeline.default(require_full_compilation=True)(model, inputs(4), dynamic_shapes=shapes)
    made = [x.shape for row in compiled.networks[0].layers if row.kind != "CAST" for x in row.outputs]
    assert made.count((2, 6, 1024, 16)) == repeated
    module = compiled.module("reference")
    for given in map(inputs, {least, 3, 8}):
        exact = model(*(x.double() for x in given))
        assert (module(*given).double() - exact).abs().max() < 8 * max(torch.finfo(dtype).eps, 1e-6)


class Attention(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **self.options)


Shape = tuple[int, ...]
UNEQUAL: tuple[tuple[tuple[Shape, ...], bool], ...] = (
    (((2, 6, 1, 16), (2, 2, 256, 16), (2, 6, 256, 16)), True),
    (((2, 6, 1, 16), (2, 2, 256, 16), (2, 3, 256, 16)), True),
    (((1, 6, 4, 16), (2, 2, 256, 16), (2, 2, 256, 16)), True),
    (((1, 6, 4, 16), (1, 2, 256, 16), (2, 2, 256, 16)), True),
    (((2, 6, 4, 16), (1, 2, 256, 16), (1, 2, 256, 16)), True),
    (((2, 6, 3, 128), (2, 4, 128), (2, 4, 128)), True),
    (((4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), (5, 7)), False),
    (((5, 8), (4, 7, 8), (4, 7, 8), (5, 7)), False),
)


@pytest.mark.parametrize(("shapes", "grouped"), UNEQUAL, ids=str)
def test_batches_heads_and_dims_that_differ(shapes: tuple[Shape, ...], grouped: bool) -> None:
    """Of the query, the keys and the values: eager broadcasts them."""
    model, inputs = Attention(enable_gqa=grouped).eval(), [torch.randn(shape) for shape in shapes]
    compiled = pipeline.default(require_full_compilation=True)(model, inputs)
    torch.testing.assert_close(compiled.module("reference")(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


HEADS, GROUPS = Dim("heads", min=1, max=8), Dim("groups", min=1, max=4)
VARYING: tuple[tuple[int, int, Any, Any], ...] = (
    (4, 1, {1: HEADS}, None),
    (4, 4, {1: HEADS}, {1: HEADS}),
    (6, 3, {1: 2 * GROUPS}, {1: GROUPS}),
)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("heads", "own", "query", "keys"), VARYING)
def test_heads_that_vary(heads: int, own: int, query: Any, keys: Any, batch: int) -> None:
    model, compile = Attention(enable_gqa=True).eval(), pipeline.default(require_full_compilation=True)
    inputs = [torch.randn(batch, count, 5, 16) for count in (heads, own, own)]
    compiled = compile(model, inputs, dynamic_shapes={"query": query, "key": keys, "value": keys})
    module = compiled.module("reference")
    fewer = 1 if keys is None else 2 * own // heads  # for two heads of queries
    for given in (inputs, [inputs[0][:, :2], *(x[:, :fewer] for x in inputs[1:])]):
        torch.testing.assert_close(module(*given), model(*given), rtol=1e-4, atol=1e-5)


def test_a_batch_of_keys_alone_varies() -> None:
    model = Attention(enable_gqa=True).eval()
    inputs = [torch.randn(1, 6, 4, 16), torch.randn(3, 2, 256, 16), torch.randn(3, 2, 256, 16)]
    shapes = {"query": None, "key": {0: Dim("batch", min=2, max=5)}, "value": {0: Dim("batch", min=2, max=5)}}
    compiled = pipeline.default(require_full_compilation=True)(model, inputs, dynamic_shapes=shapes)
    torch.testing.assert_close(compiled.module("reference")(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("most", "whole"), [(64, 0), (2048, 1)])
def test_queries_that_may_be_one_and_very_many_are_one_kernel(most: int, whole: int) -> None:
    """Their scores would take much memory."""
    query, key, mask = torch.randn(1, 32, 8, 64), torch.randn(1, 4, 1024, 64), torch.randn(1, 1, 8, 1024)
    length = Dim("length", min=1, max=most)
    shapes = {"query": {2: length}, "key": None, "value": None, "mask": {2: length}}
    inputs = [x.half() for x in (query, key, key, mask)]
    compiled = pipeline.default(require_full_compilation=True)(Grouped().eval(), inputs, dynamic_shapes=shapes)
    assert [k.role for k in kernels(bytes(compiled.engines[0].plan))].count("attention") == whole


class Scaled(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


class Causal(torch.nn.Module):
    """Attention to earlier positions of one sequence, by a mask of the kind that transformers computes."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        at = torch.arange(q.shape[2], device=q.device)
        sequence = torch.zeros_like(at)
        mask = (at <= at[:, None]) & (sequence[:, None] == sequence)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[None, None])


@pytest.mark.parametrize("dynamic", [False, True])
def test_long_attentions_run_where_they_are_faster(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100 or H200 those of 1,024 queries and keys run in PyTorch, unless the user wants all in TensorRT."""
    table = importlib.import_module("pipeline.quirks.applied")

    def fallbacks(length: int, dtype: torch.dtype = torch.float16, **settings: Any) -> list[str]:
        x = torch.zeros(1, 1, length, 16, dtype=dtype)
        shapes: Any = ({2: Dim("n", min=2, max=2048)},) * 3 if dynamic else None
        validate = pipeline.default(**settings).until("validate")
        check = validate(Scaled().eval(), args=(x, x, x), dynamic_shapes=shapes)
        return [reason.reason for verdict in check.verdicts.values() for reason in verdict.reasons]

    assert not fallbacks(1024)
    monkeypatch.setattr(table, "current_compute_capability", lambda: "9.0")
    assert "PyTorch's attention is faster than TensorRT's on this" in str(fallbacks(1024))
    assert not fallbacks(1024, torch.float32) and not fallbacks(512)
    assert not fallbacks(1024, faster_in_torch=False) and not fallbacks(1024, require_full_compilation=True)


def test_masks_of_attentions_that_run_in_pytorch_are_simplified(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not decomposed into the kernel that torch selects here, and no rows are selected after them."""
    monkeypatch.setattr(importlib.import_module("pipeline.quirks.applied"), "current_compute_capability", lambda: "9.0")
    x = torch.zeros(1, 1, 1024, 16, dtype=torch.float16)
    program = pipeline.default().until("improve")(Causal().eval(), args=(x, x, x))
    [call] = [node for node in program.graph.nodes if node.op == "call_function"]
    assert call.target is torch.ops.aten.scaled_dot_product_attention.default and call.args[3:] == (None, 0.0, True)
