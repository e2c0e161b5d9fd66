"""fuse_attention: every way to spell it becomes one operator with the same values; what is something else stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pipeline
from tests.improvements.programs import agree, decomposed, improved, targets

SDPA = "scaled_dot_product_attention.default"
B, H, S, D = 2, 4, 6, 16
Form = Callable[..., torch.Tensor]


class Formed(nn.Module):
    """A function of query, key and value as a module."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """[B, H, S, D] three times -> [B, H, S, D]"""
        return self.form(q, k, v)


def plain(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores, -1) @ v


def blocked() -> torch.Tensor:
    """What comes later, as a constant that no parameter has a part in."""
    return torch.ones(S, S).triu(1).bool()


ADDED = torch.randn(B, 1, S, S, generator=torch.Generator().manual_seed(0)).half()
BIAS = torch.randn(1, H, S, S, generator=torch.Generator().manual_seed(1)).half()
LOWEST = torch.finfo(torch.float16).min

FORMS: dict[str, Form] = {
    "no scale": lambda q, k, v: plain(q @ k.transpose(-1, -2), v),
    "scores times scale": lambda q, k, v: plain(q @ k.transpose(2, 3) * 0.25, v),
    "scale times scores": lambda q, k, v: plain(0.25 * (q @ k.mT), v),
    "scores by root": lambda q, k, v: plain(q @ k.permute(0, 1, 3, 2) / D**0.5, v),
    "scale of query": lambda q, k, v: plain((q * 0.25) @ k.transpose(-1, -2), v),
    "scale of key": lambda q, k, v: plain(q @ (k * 0.25).transpose(-1, -2), v),
    "scale of both": lambda q, k, v: plain((q * 0.5) @ (k * 0.5).transpose(-1, -2), v),
    "two scales": lambda q, k, v: plain(q @ k.transpose(-1, -2) * 0.5 / 2, v),
    "transposed copy": lambda q, k, v: plain(q @ k.transpose(-1, -2).contiguous() * 0.25, v.contiguous()),
    "softmax in float32": lambda q, k, v: torch.softmax(q @ k.mT * 0.25, -1, dtype=torch.float32).to(v.dtype) @ v,
    "scores in float32": lambda q, k, v: torch.softmax((q @ k.mT).float() * 0.25 + ADDED, -1).half() @ v,
    "added": lambda q, k, v: plain(q @ k.mT * 0.25 + ADDED, v),
    "added first": lambda q, k, v: plain(ADDED + q @ k.mT * 0.25, v),
    "added twice": lambda q, k, v: plain(q @ k.mT + BIAS + ADDED, v),
    "added in float32": lambda q, k, v: torch.softmax(q @ k.mT * 0.25 + ADDED.float(), -1).half() @ v,
    "filled": lambda q, k, v: plain((q @ k.mT * 0.25).masked_fill(blocked(), -torch.inf), v),
    "filled with the least": lambda q, k, v: plain((q @ k.mT * 0.25).masked_fill(blocked(), LOWEST), v),
    "selected": lambda q, k, v: plain(torch.where(~blocked(), q @ k.mT * 0.25, -torch.inf), v),
    "selected otherwise": lambda q, k, v: plain(torch.where(blocked(), -torch.inf, q @ k.mT * 0.25), v),
    "selected and added": lambda q, k, v: plain(torch.where(~blocked(), q @ k.mT * 0.25, LOWEST) + BIAS, v),
    "added and filled": lambda q, k, v: plain((q @ k.mT + BIAS).masked_fill(blocked(), -torch.inf), v),
    "added twice and filled twice": lambda q, k, v: plain(
        (q @ k.mT + BIAS + ADDED).masked_fill(blocked(), -torch.inf).masked_fill(blocked().roll(1, 0), -1e4), v
    ),
    "key transposed elsewhere": lambda q, k, v: plain(q @ k.reshape(B, H, D, S) * 0.25, v),
}


def inputs(dtype: torch.dtype = torch.float16, heads: int = H, size: int = D) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    shapes = [(B, H, S, size), (B, heads, S, size), (B, heads, S, size)]
    return tuple((torch.randn(shape, generator=generator) / 2).to(dtype) for shape in shapes)


@pytest.mark.parametrize("name", FORMS)
def test_forms_become_attention(name: str) -> None:
    given = inputs()
    program = decomposed(Formed(FORMS[name]), *given)
    after = improved(program, "fuse_attention")
    assert targets(after).count(SDPA) == 1
    assert not {"matmul.default", "softmax.int"} & set(targets(after))
    agree(program, after, *given, rtol=2e-3, atol=2e-3)


def test_in_bfloat16_and_through_products_of_three_dims() -> None:
    def form(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.reshape(B * H, S, D) for x in (q, k, v))
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.25, 2), v)

    given = inputs(torch.bfloat16)
    program = decomposed(Formed(form), *given)
    after = improved(program, "fuse_attention")
    assert targets(after).count(SDPA) == 1
    agree(program, after, *given, rtol=2e-2, atol=2e-2)


def _and_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


OTHERS: dict[str, tuple[Form, dict[str, Any]]] = {
    "in float32": (FORMS["scores times scale"], {"dtype": torch.float32}),
    "weights are read": (_and_scores, {}),
    "softmax over queries": (lambda q, k, v: torch.softmax(q @ k.mT, -2) @ v, {}),
    "scaled after the mask": (lambda q, k, v: plain((q @ k.mT + ADDED) * 0.25, v), {}),
    "filled with a score that counts": (lambda q, k, v: plain((q @ k.mT).masked_fill(blocked(), 1.0), v), {}),
    "filled with the least, perhaps whole rows": (
        lambda q, k, v: plain((q @ k.mT).masked_fill(v[..., :1].mT > 0, LOWEST), v),
        {},
    ),
    "filled with the least, whole rows": (
        lambda q, k, v: plain((q @ k.mT).masked_fill(torch.ones(S, S).triu(0).bool(), LOWEST), v),
        {},
    ),
    "a head dim without kernels": (FORMS["scores times scale"], {"size": 300}),
    "scores of another form": (lambda q, k, v: plain((q @ k.mT).tanh(), v), {}),
    "products in float32": (lambda q, k, v: plain(q.float() @ k.float().mT, v.float()).half(), {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name: str) -> None:
    form, options = OTHERS[name]
    program = decomposed(Formed(form), *inputs(**options))
    assert str(improved(program, "fuse_attention")) == str(program)


def test_settings_that_spell_attention_out_are_kept() -> None:
    program = pipeline.default(decompose_attention=True).until("decompose")(Formed(FORMS["no scale"]), args=inputs())
    program = improved(program, "fuse_attention")
    assert SDPA not in targets(program)


REPEATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda x: x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(B, H, S, D),
    "by name": lambda x: x.repeat_interleave(2, dim=1),
    "by name, from the last": lambda x: x.repeat_interleave(2, dim=-3),
}


@pytest.mark.parametrize("name", REPEATS)
def test_keys_that_serve_groups_of_queries(name: str) -> None:
    repeat = REPEATS[name]
    given = inputs(heads=2)
    program = decomposed(Formed(lambda q, k, v: plain(q @ repeat(k).mT * 0.25, repeat(v))), *given)
    after = improved(program, "fuse_attention")
    assert targets(after).count(SDPA) == 1 and "softmax.int" not in targets(after)
    agree(program, after, *given, rtol=2e-3, atol=2e-3)


SHAPES: list[tuple[int, ...]] = [(), (1,), (S,), (1, S), (S, 1), (S, S), (H, S, S), (1, 1, 1, S), (B, 1, S, S)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["added", "filled"])
def test_a_mask_has_any_shape_that_scores_broadcast_with(shape: tuple[int, ...], kind: str) -> None:
    class Masked(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """[B, H, S, D] three times, and what broadcasts to [B, H, S, S] -> [B, H, S, D]"""
            scores = q @ k.mT * 0.25
            return plain(scores + mask if kind == "added" else scores.masked_fill(mask, -torch.inf), v)

    mask = torch.zeros(shape, dtype=torch.float16 if kind == "added" else torch.bool)
    mask.view(-1)[mask.numel() // 2 :: 7] = 1 if (len(shape) > 0 and shape[-1] == S) or kind == "added" else 0
    given = (*inputs(), mask)
    program = decomposed(Masked(), *given)
    after = improved(program, "fuse_attention")
    assert targets(after).count(SDPA) == 1
    agree(program, after, *given, rtol=2e-3, atol=2e-3)
