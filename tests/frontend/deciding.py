"""Models that decide by their data in Python."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

Forward: TypeAlias = Callable[["Deciding", Tensor], Any]


class Deciding(nn.Module):
    """Decides by what it is given."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.linear, self.other = function, nn.Linear(4, 4), nn.Linear(4, 4)
        self.table, self.drop = nn.Embedding(4, 4), nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(2))
        self.count = 0

    def forward(self, x: Tensor) -> Any:
        """[N, 4] -> what the function returns"""
        return self.function(self, x)


class Decorated(nn.Module):
    """Decides in a decorated method."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """[N, 4] -> [N, 4]"""
        if x.sum() > 0:
            x = x + 1
        return x * 2


def one_way(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    if y.sum() > 0:
        y = torch.relu(y)
    return y + 1


def two_ways(m: Deciding, x: Tensor) -> Tensor:
    if x.mean() > 0.5:
        scale = x * 2
        y = m.linear(scale)
    else:
        y = m.other(x)
        y = y - x
    return y


def clamped(m: Deciding, x: Tensor) -> Tensor:
    """As BART does in float16."""
    y = m.linear(x) * 30
    if y.dtype == torch.float32 and not (y.abs() < 20).all():
        limit = torch.finfo(torch.float16).max / 4000
        y = torch.clamp(y, min=-limit, max=limit)
    return y


def many_ways(m: Deciding, x: Tensor) -> Tensor:
    total = x.sum()
    if total > 8:
        y = m.linear(x)
    elif total > 0:
        y = m.other(x)
    elif x.shape[1] == 5:
        y = x.reshape(1, 2, 3)
    else:
        y = -x
    return y


def nested(m: Deciding, x: Tensor) -> Tensor:
    y, z = x, x * 2
    if x.sum() > 0:
        z = z + 1
        if x.amax() > 1:
            y, z = z, y
        else:
            z = m.linear(z)
        y = y * z
    return y - z


def returns(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return m.linear(x)
    return x.cos()


def returns_soon(m: Deciding, x: Tensor) -> Any:
    y = m.linear(x)
    if x.dim() == 3:
        return None
    if y.sum() > 1:
        y = y * 2
        return {"value": y, "ways": 1, "both": (x.sum(), y)}
    elif y.amin() < -1:
        z = m.other(y)
        return {"value": z, "ways": 1, "both": (y.mean(), -y)}
    y = y - 1
    if x.mean() > 0:
        y = y.abs()
    return {"value": y, "ways": 1, "both": (y.amax(), y)}


def returns_where_python_decides(m: Deciding, x: Tensor) -> Any:
    if x.sum() > 0:
        x = x + 1
    if x.shape[1] == 4:
        m.count += 0
        return m.linear(x), 3
    m.count += 1
    return x


def in_a_loop(m: Deciding, x: Tensor) -> Tensor:
    total = x
    for i in range(5):
        if i == 3:
            continue
        if total.sum() > i:
            change = m.linear(x)
            total = total - change
        else:
            total = total + i
        if i == 4:
            break
    return total


def loops_inside(m: Deciding, x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        for k in range(3):
            if k == 1:
                continue
            y = y * 0.5 + k
    return y


def before_its_turn(m: Deciding, x: Tensor) -> Tensor:
    """Each turn reads what the one before it chose."""
    last = x * 0
    for i in range(3):
        y = x * i + last
        if y.sum() > 1:
            last = torch.tanh(y)
    return last


def in_an_expression(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x) if x.sum() > 0 else m.other(x) if x.amax() > 0 else x
    return y + (y if y.mean() > 0 else -y)


def with_numbers(m: Deciding, x: Tensor) -> Tensor:
    y = x
    if bool(x.any()) and x.sum().item() > 0 and x.shape[0] < 100:
        y = m.linear(x)
    if x.shape[0] > 100 or (x > 1).any() or (x < -1).any():
        y = y + 1
    if not (x == 0).all().item():
        y = y * 2
    return y


def of_one_element(m: Deciding, x: Tensor) -> Tensor:
    flag = (x.sum() > 0).reshape(1, 1)
    if flag:
        x = m.linear(x)
    if x.argmax():
        x = x + 1
    return x


def of_numbers(m: Deciding, x: Tensor) -> Tensor:
    """What is not 0 is true, also what is not a number."""
    if x[0, 0]:
        x = x + 1
    return x.nan_to_num()


def of_numbers_read_before(m: Deciding, x: Tensor) -> Tensor:
    count, mean = (x > 0).sum().item(), float(x.mean())
    place, some = int(x.argmax()), int((x > 1).any())
    if count > 3:
        x = m.linear(x)
        if float(x.amax()) > 1 and int((x > 0).sum()) < 9:
            x = x * 2
    if mean > 0.25:
        x = x + 1
    elif place:
        x = x - 1
    return x if some else -x


def in_a_function(m: Deciding, x: Tensor) -> Tensor:
    return two_ways(m, clamped(m, x)) + m.drop(one_way(m, x))


def ends_with_nothing(m: Deciding, x: Tensor) -> Any:
    found = []
    for i in range(2):
        if x.shape[1] == i:
            return x
        found.append(m.linear(x) if x.sum() > i else x)
    parts = {str(i): part for i, part in enumerate(found)}
    if x.amax() > 1:
        best = max(part.shape[1] for part in parts.values())
        x = x * best
    return [part + x for part in parts.values()]


def in_a_closure(m: Deciding, x: Tensor) -> Tensor:
    return CLOSED(x) + m.linear(x)


def _closed(by: float) -> Callable[[Tensor], Tensor]:
    def moved(t: Tensor) -> Tensor:
        if t.sum() > by:
            return t - by
        return t + by

    return moved


CLOSED = _closed(0.5)


def writes_to_its_own(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * 2
        y += 1
        y[:, 0].fill_(0.5 if x.dim() == 2 else 1)
        y = torch.nn.functional.relu(y - 1, inplace=True)
    else:
        y = x.clone()
        y.mul_(3)
    return y


def keeps_what_is_not_finite(m: Deciding, x: Tensor) -> Tensor:
    y = x * torch.inf
    if x.amin() > 0:
        y = x.log() / x.sqrt()
    return y


def checks(m: Deciding, x: Tensor) -> Tensor:
    if x.isnan().any():
        raise ValueError("not a number")
    if x.sum() > 0:
        assert (x > -1000).all()
        x = m.linear(x)
    return x


def collects(m: Deciding, x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        parts = [x, x + 1]
        y = torch.stack([part * 2 for part in parts]).sum(0)
    return y


def collects_garbage(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        gc.collect()
        x = x + 1
    return x


class Doubled(Deciding):
    """Calls what it inherits."""

    def forward(self, x: Tensor) -> Any:
        """[N, 4] -> [N, 4]"""
        y = super().forward(x)
        if y.sum() > 0:
            y = y * 2
        return y


def writes_to_what_decides(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    first = y[0, 0]
    if first > 0:
        y.sub_(9)
    else:
        y += 3
    return y * 2


def writes_to_its_input(m: Deciding, x: Tensor) -> Tensor:
    """As pictures are brought to numbers of 0 to 1."""
    if x.amax() > 1:
        x /= 255.0
    return m.linear(x)


def assigns_elements(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    row = y[0]
    if x.sum() > 0:
        y[:, 1] = 0.5
        y[y < 0] = 2
        row += 1
        if x.amax() > 1:
            y[:, 2] *= x[:, 0]
            row[3] = y.amax()
    else:
        row[:2] = y[0, 2:]
    return y + row


def writes_within(m: Deciding, x: Tensor) -> Tensor:
    """Where the outer branch is not taken, what the inner one writes is as it was."""
    w = x + 0.5
    if x.amax() < 1:
        if x.sum() > -20:
            w.clamp_(-0.5, 0.5)
        if x.amin() < 0:
            w -= 1
    return m.linear(w)


def counts_calls(m: Deciding, x: Tensor) -> Tensor:
    if x.sum() > 0:
        m.calls += 1
        m.calls[1].add_(x.amax())
    return m.linear(x) + m.calls.sum()


def writes_elsewhere(m: Deciding, x: Tensor) -> Tensor:
    y = m.linear(x)
    if x.sum() > 0:
        y += 1
    return y


RIGHT: Final = (
    *(one_way, two_ways, clamped, many_ways, nested, returns, returns_soon, returns_where_python_decides, in_a_loop),
    *(of_numbers_read_before,),
    *(loops_inside, before_its_turn, in_an_expression, ends_with_nothing, with_numbers, of_one_element, of_numbers),
    *(writes_elsewhere, writes_to_what_decides, writes_to_its_input, assigns_elements, writes_within),
    *(in_a_function, in_a_closure, writes_to_its_own, keeps_what_is_not_finite, checks, collects),
)
