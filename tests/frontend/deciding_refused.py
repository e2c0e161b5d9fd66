"""Models that decide by their data in Python, whose branches would leave something behind."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from tests.frontend.deciding import Deciding, Forward


def draws(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + torch.rand(4)
    return x


def resizes(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    if x.sum() > 0:
        y.unsqueeze_(0)
    return y


def assigns_an_item(m: Deciding, x: Tensor) -> Tensor:
    found = {"x": x}
    if x.sum() > 0:
        found["x"] = x * 2
    return found["x"]


def counts_in_a_number(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        m.count += 1
    return m.linear(x)


def assigns_an_item_elsewhere(m: Deciding, x: Tensor) -> Tensor:
    found = [x]
    if x.sum() > 0:
        found[0], y = x * 2, x
        x = y + 1
    return found[0]


def looks_up(m: Deciding, x: Tensor) -> Tensor:
    if (x < 4).all() and (x >= 0).all():
        return m.table(x[0].long())
    return x[:1].expand(4, 4)


def appends(m: Deciding, x: Tensor) -> Tensor:
    parts = [x]
    if x.sum() > 0:
        parts = parts.copy()
        parts.append(x)
    return torch.stack(parts).sum(0)


def extends(m: Deciding, x: Tensor) -> Tensor:
    parts = [x]
    if x.sum() > 0:
        parts += [x * 2]
    return torch.stack(parts).sum(0)


def refused_and_caught(m: Deciding, x: Tensor) -> Tensor:
    try:
        return draws(m, x)
    except RuntimeError:
        return x


def caught(m: Deciding, x: Tensor) -> Tensor:
    try:
        while x.sum() > 0:
            x = x - 1
    except RuntimeError:
        return x * 2
    return x


def counts(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = counted(m, x)
    return x


def counted(m: Deciding, x: Tensor) -> Tensor:
    m.count += 1
    return x + 1


def of_two_sizes(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x[:1, :2]
    return x


def of_two_kinds(m: Deciding, x: Tensor) -> Tensor:
    mask = None
    if x.sum() > 0:
        mask = x > 0
    return x if mask is None else x * mask


def of_two_numbers(m: Deciding, x: Tensor) -> Tensor:
    n = 2 if x.sum() > 0 else 3
    return x.repeat(1, n)


def not_always_set(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x
    return y if x.dim() == 2 else x


def written_later(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    z = y
    if x.sum() > 0:
        z = y * 2
    z += 1
    return y + z


def its_source_written_later(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    z = y if x.sum() > 0 else y * 2
    y.add_(1)
    return y + z


def reads(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * x.argmax().item()
    return x


def asks_later(m: Deciding, x: Tensor) -> Tensor:
    if x.dim() == 2 and x.sum() > 0 and m.table(x[0].long()).sum() > 0:
        x = x + 1
    return x


REFUSED: Final[dict[Forward, str]] = {
    draws: "draws random numbers",
    resizes: r"has an effect",
    assigns_an_item: "changes a dict",
    counts_in_a_number: "changes a int",
    looks_up: "reads or writes at positions",
    appends: r"list\.append \(deciding_refused\.py:\d+\) changes what Python has",
    extends: "changes a list",
    counts: r"counted \(deciding_refused\.py:\d+\) may change what Python has",
    of_two_sizes: r"after which x is float32\[1, 2\] or float32\[\d, 4\]",
    of_two_kinds: r"after which mask is bool\[\d, 4\] or None",
    of_two_numbers: "after which the value is 2 or 3",
    not_always_set: r"after which y is .* or not set",
    written_later: "writes in place to what the if at",
    its_source_written_later: "writes in place to what the if at",
    reads: "reads data",
    asks_later: "asked only if one before it leaves it open",
}
