"""Models that check their data. (pytest writes the asserts of test modules anew, so they are here.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, distributions, nn

Forward: TypeAlias = Callable[["Checking", Tensor], Any]


class Checking(nn.Module):
    """Checks what it is given."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.bad = 0

    def forward(self, x: Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        return self.function(self, x)


def asserts(m: Checking, x: Tensor) -> Tensor:
    assert (x > -100).all()
    return m.linear(x)


def asserts_in_words(m: Checking, x: Tensor) -> Tensor:
    y = m.linear(x)
    assert (y.isfinite()).all(), f"{m.bad} of {tuple(y.shape)} are not finite: {y.shape[0] * 2}"
    return y * 2


def asserts_two(m: Checking, x: Tensor) -> Tensor:
    assert (x > -100).all() and (x < 100).all()
    return m.linear(x)


def asserts_in_torch(m: Checking, x: Tensor) -> Tensor:
    torch._assert((x > -100).all(), "too small")
    return m.linear(x)


def raises(m: Checking, x: Tensor) -> Tensor:
    if x.isnan().any():
        text = "not a number"
        raise ValueError(text)
    return m.linear(x)


def raises_or(m: Checking, x: Tensor) -> Tensor:
    if (x > 100).any() or not torch.isfinite(x).all():
        raise ValueError("too large")
    return m.linear(x)


def raises_otherwise(m: Checking, x: Tensor) -> Tensor:
    if (x < 100).all():
        y = m.linear(x)
    else:
        raise RuntimeError("too large")
    return y + 1


def in_a_context(m: Checking, x: Tensor) -> Tensor:
    with torch.no_grad():
        assert x.abs().amax() < 100
        return m.linear(x)


def in_a_function(m: Checking, x: Tensor) -> Tensor:
    def positive(t: Tensor) -> Tensor:
        assert (t > 0).all()
        return t.log()

    try:
        size = int("4")
    except ValueError:
        size = 3
    return m.linear(positive(x * x + 1)) * size


def beside_other_errors(m: Checking, x: Tensor) -> Tensor:
    try:
        y = asserts(m, x)
    except TypeError:
        return x
    except KeyError as error:
        raise ValueError("not a tensor") from error
    finally:
        m.linear.eval()
    return y


def caught(m: Checking, x: Tensor) -> Tensor:
    try:
        assert (x > 0).all()
    except AssertionError:
        return m.linear(x) * 2
    return m.linear(x)


def caught_by_the_caller(m: Checking, x: Tensor) -> Tensor:
    try:
        return asserts(m, x)
    except AssertionError:
        return m.linear(x) * 2


def caught_whatever_it_is(m: Checking, x: Tensor) -> Tensor:
    try:
        return raises(m, x)
    except:  # noqa: E722
        return x


def counts(m: Checking, x: Tensor) -> Tensor:
    if (x < 0).any():
        m.bad = 1
        raise ValueError("negative")
    return m.linear(x)


def either(m: Checking, x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("negative")
    else:
        raise TypeError("positive")


def categorical(m: Checking, x: Tensor) -> Tensor:
    chosen = distributions.Categorical(logits=m.linear(x), validate_args=True)
    return chosen.probs + chosen.entropy()[:, None] + chosen.log_prob(x.argmax(-1))[:, None]


def normal(m: Checking, x: Tensor) -> Tensor:
    """As variational autoencoders and policies have it, which torch.distributions checks."""
    found = distributions.Independent(distributions.Normal(m.linear(x), x.exp(), validate_args=True), 1)
    return found.log_prob(x + 1)[:, None] + found.mean


def divergence(m: Checking, x: Tensor) -> Tensor:
    one = distributions.Normal(x, x.exp(), validate_args=True)
    return distributions.kl_divergence(one, distributions.Normal(torch.zeros_like(x), 1.0))


def squashed(m: Checking, x: Tensor) -> Tensor:
    normal = distributions.Normal(x, 1.0, validate_args=True)
    found = distributions.TransformedDistribution(normal, [distributions.TanhTransform()])
    return found.log_prob(x.tanh() / 2)


def likelihood(m: Checking, x: Tensor) -> Tensor:
    """torch.nn.functional raises an error where a variance is negative."""
    return nn.functional.gaussian_nll_loss(m.linear(x), x, x.abs() + 0.1, reduction="none")


HOLD: Final = (
    *(asserts, asserts_in_words, asserts_two, asserts_in_torch, raises, raises_or, raises_otherwise),
    *(in_a_context, in_a_function, beside_other_errors, categorical, normal, divergence, squashed, likelihood),
)
DECIDE: Final = (caught, caught_by_the_caller, caught_whatever_it_is, counts, either)
