"""``flex_attention`` in a model is in the engine: scores and masks of all forms, as eager computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import LlamaConfig, LlamaForCausalLM

import pipeline
from pipeline.stages.unbuilt import unbuilt

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is deprecated")

FULL = pipeline.default(require_full_compilation=True, min_block_size=1)
COMPILED: Any = torch.compile(flex_attention)

Form = Callable[["Attends", torch.Tensor, torch.Tensor], Any]


class Attends(nn.Module):
    """Attends from q [1, 4, n, 8] to k [1, 2 or 4, n, 8], which are the values as well."""

    bias: torch.Tensor
    documents: torch.Tensor

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("bias", torch.randn(4, 24, 24))
        self.register_buffer("documents", torch.arange(24) // 5)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        return self.form(self, q, k)


def masked(q: torch.Tensor, k: torch.Tensor, sees: Any) -> BlockMask:
    return create_block_mask(sees, None, None, q.shape[2], k.shape[2], device=str(q.device))


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def biased(m: Attends, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + m.bias[h, i, j])


def nested(m: Attends, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return flex_attention(q, k, k, score_mod=lambda score, b, h, i, j: score + m.bias[h][i][j])


def of_documents(m: Attends, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    mask = masked(q, k, lambda b, h, i, j: (m.documents[i] == m.documents[j]) & (i >= j))
    return flex_attention(q, k, k, block_mask=mask)


def of_heads(m: Attends, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j + h, 1, 4, q.shape[2], k.shape[2], device=str(q.device))
    return flex_attention(q, k, k, block_mask=mask)


FORMS: dict[str, Form] = {
    "plain": lambda m, q, k: flex_attention(q, k, k),
    "a scale": lambda m, q, k: flex_attention(q, k, k, scale=0.5),
    "causal": lambda m, q, k: flex_attention(q, k, k, block_mask=masked(q, k, causal)),
    "a window": lambda m, q, k: flex_attention(q, k, k, block_mask=masked(q, k, lambda b, h, i, j: (i - j).abs() < 3)),
    "documents": of_documents,
    "heads, rows that see nothing": of_heads,
    "heads that blocks do not tell": lambda m, q, k: flex_attention(
        q, k, k, block_mask=masked(q, k, lambda b, h, i, j: i >= j + h)
    ),
    "a bias": biased,
    "a bias, index by index": nested,
    "alibi": lambda m, q, k: flex_attention(q, k, k, lambda score, b, h, i, j: score + (j - i) * (h + 1) / 8),
    "a cap": lambda m, q, k: flex_attention(q, k, k, lambda s, *_: 5 * torch.tanh(s / 5), masked(q, k, causal)),
    "causal, compiled": lambda m, q, k: COMPILED(q, k, k, block_mask=masked(q, k, causal)),
    "with sums": lambda m, q, k: flex_attention(q, k, k, block_mask=masked(q, k, causal), return_lse=True),
    "groups": lambda m, q, k: flex_attention(q, k[:, :2], k[:, 2:], enable_gqa=True),
    "groups, a bias": lambda m, q, k: flex_attention(
        q, k[:, :2], k[:, 2:], lambda score, b, h, i, j: score + m.bias[h, i, j], enable_gqa=True
    ),
}


def given(length: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 4, length, 8).to(dtype), torch.randn(1, 4, length, 8).to(dtype)


LENGTH = torch.export.Dim("length", min=2, max=24)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_one_engine(name: str) -> None:
    model = Attends(FORMS[name]).eval()
    compiled = FULL(model, given(16), dynamic_shapes=({2: LENGTH}, {2: LENGTH}))
    assert len(compiled.engines) == 1
    eager = Attends(FORMS[name.removesuffix(", compiled")])  # Inductor's own kernel for CPUs is wrong at times
    eager.load_state_dict(model.state_dict())
    for length in (2, 24):
        args = given(length)
        torch.testing.assert_close(compiled(*args), eager(*args))


@pytest.mark.parametrize("name", ["causal", "a bias"])
def test_halves(name: str) -> None:
    model, args = Attends(FORMS[name]).eval().half(), given(16, torch.float16)
    torch.testing.assert_close(FULL(model, args)(*args), model(*args), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("name", ["plain", "documents", "a cap", "groups"])
def test_as_on_a_gpu(name: str) -> None:
    """Below autograd torch writes a kernel's call; there is no kernel for groups in float32."""
    model, args = Attends(FORMS[name]), given(16)
    program = pipeline.capture(model.eval(), args, None, ({2: LENGTH}, {2: LENGTH}), device="cuda")
    compiled: pipeline.Compiled = FULL.replace("build", unbuilt)(program)
    torch.testing.assert_close(compiled.module("reference")(*args), model(*args))


@pytest.mark.parametrize("name", ["plain", "documents", "a cap"])
def test_in_torch_compile(name: str) -> None:
    model, args = Attends(FORMS[name]).eval(), given(16)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=pipeline.backend(FULL))(*args), model(*args))


def test_a_decoder_of_transformers() -> None:
    small = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 30}
    config = LlamaConfig(**small, **heads, attn_implementation="flex_attention", use_cache=False)
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(0, 30, (1, 12))
    compiled = FULL(model, (), {"input_ids": ids})
    with torch.no_grad():
        torch.testing.assert_close(compiled(input_ids=ids)["logits"], model(input_ids=ids).logits)
