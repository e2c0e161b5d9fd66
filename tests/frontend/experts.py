"""Mixtures of experts as people write them: loops over experts that data chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Forward: TypeAlias = Callable[["Mixture", Tensor, Tensor, Tensor], Any]
COUNT: Final = 4


class Mixture(nn.Module):
    """Sends each row to two of four experts."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.gate = function, nn.Linear(8, COUNT)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(COUNT))
        self.named = nn.ModuleDict({f"expert_{i}": expert for i, expert in enumerate(self.experts)})
        self.weights = nn.Parameter(torch.randn(COUNT, 8, 8))
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        """[N, 8] -> what the function returns"""
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        return self.function(self, x, weights, chosen)


def hit(chosen: Tensor, classes: int = COUNT) -> tuple[Tensor, Tensor]:
    """[experts, 2, N], 1 where an expert is chosen, and which are"""
    mask = functional.one_hot(chosen, classes).permute(2, 1, 0)
    return mask, mask.sum((-1, -2)) > 0


def as_mixtral(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    with torch.no_grad():
        mask, found = hit(chosen)
        found = found.nonzero()
    for expert in found:
        expert = expert[0]
        if expert == COUNT:
            continue
        place, row = torch.where(mask[expert])
        state = functional.linear(x[row], m.weights[expert]).relu() * weights[row, place, None]
        out.index_add_(0, row, state)
    return out


def by_name(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    mask, found = hit(chosen)
    for expert in found.nonzero():
        place, row = torch.where(mask[expert].squeeze(0))
        state = m.named[f"expert_{expert[0]}"](x[None, row].reshape(-1, x.shape[-1]))
        out.index_add_(0, row, state * weights[row, place, None])
    return out


def one_class_more(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """There is no such expert: a turn that can only fail."""
    out = torch.zeros_like(x)
    mask, found = hit(chosen, COUNT + 1)
    for expert in found.nonzero(as_tuple=True)[0]:
        place, row = torch.where(mask[expert])
        out[row] += m.experts[expert](x[row]) * weights[row, place, None]
    return out


def numbers(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out, total = torch.zeros_like(x), x[:, :1] * 0
    mask, found = hit(chosen)
    for expert_tensor in found.nonzero(as_tuple=False):
        expert = int(expert_tensor.item())
        place, row = torch.where(mask[expert].squeeze(0))
        if row.numel() == 0:
            continue
        state = x[row] if expert >= COUNT - 1 else m.experts[expert](x[row])
        out.index_add_(0, row, (state * weights[row, place, None]).to(x.dtype))
        total = total + expert
    return out + total


def listed(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = x
    for expert in torch.unique(chosen).tolist():
        here = (chosen == expert).any(-1)
        out = torch.where(here[:, None], m.experts[expert](x) + out * 0.5, out)
    for (expert,) in hit(chosen)[1].nonzero().tolist():
        out = out + expert
    return out


def of_unique(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Each turn reads what the one before it made."""
    last = x
    for expert in torch.unique(chosen):
        last = m.experts[expert](last).tanh() + expert
    return last


def none_is_skipped(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    mask, _ = hit(chosen)
    for i in range(COUNT):
        place, row = torch.where(mask[i])
        if row.shape[0] == 0:
            continue
        out.index_add_(0, row, m.experts[i](x[row]) * weights[row, place, None])
    return out


def by_masks(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i, expert in enumerate(m.experts):
        here = chosen[:, 0] == i
        if here.sum() == 0:
            continue
        out[here] = expert(x[here]) * weights[here, :1]
    return out


def in_ifs(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    out = x * 2
    for i, expert in enumerate(m.experts):
        (row,) = torch.where((chosen == i).any(-1))
        if len(row) > 0 and i < 3:
            out = out.index_add(0, row, expert(x[row]))
        elif not row.numel():
            out = out + 1
        if row.numel():
            out = out.index_fill(0, row[:1], 3)
    return out


def skips(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Turns that data, Python or both leave early."""
    total, last = x * 0, x
    for i in range(5):
        last = last * 0.5
        if i == 2:
            continue
        if last.sum() > i:
            total = total + 1
            continue
        elif x.mean() > 0.1 * i:
            total = total * 2
            if i == 3:
                continue
            last = last + m.experts[1](x)
            continue
        for k in range(3):
            if k == 1:
                continue
            if last.amax() > k:
                continue
            total = total + k
        last = last + m.experts[0](x)
    return total + last


def before_it_is_written(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """A number is what it was when it was read."""
    y = x * 2
    first, rows = y[0, 0].item(), len(x[x[:, 0] > 0])
    y += 1
    if first > 0:
        y = y * 2
    return y - 1 if rows == 0 or rows > 3 else y


def another_place(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Positions that sorting, the best and a range give."""
    if x.sum() > 0:
        x = x[x.sort(stable=True, dim=0)[1][0], torch.arange(8, device=x.device)]
        return m.weights[weights.argmax(-1)].sum((0, 1)) + x.gather(0, x.topk(3).indices).sum()
    return x[0] * 1


def stops_at_one(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for expert in hit(chosen)[1].nonzero():
        x = m.experts[expert](x)
        if expert == 1:
            break
    return x


def until_small(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Iterates until little changes."""
    for _ in range(6):
        before = x
        x = m.experts[0](x).tanh() * 0.5
        if (x - before).abs().amax() < 0.3:
            break
    return x


def ends_in_many_ways(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    total = x
    for i, expert in enumerate(m.experts):
        if total.sum() > 20:
            total = total * 0.5
            continue
        if i == 3:
            total = total + 100
            break
        for k in range(4):
            total = total + expert(x) * k
            if total.mean() > 1 or k == 2:
                break
            total = total - 0.25
        if total.amin() < -2:
            total = total - i
            break
        elif x.mean() > 0:
            continue
        total = total + 1
    return total


def ends_where_python_says(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """What an iterator has left is as it was."""
    numbers = iter(range(10))
    for i in numbers:
        if x.sum() > 0:
            x = x + i
        if i == 2:
            break
    return x * next(numbers)


RIGHT: Final = (
    *(stops_at_one, until_small, ends_in_many_ways, ends_where_python_says),
    *(as_mixtral, by_name, one_class_more, numbers, listed, of_unique, none_is_skipped, by_masks, in_ifs, skips),
    *(another_place, before_it_is_written),
)


def some(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for expert in hit(chosen)[1].nonzero()[1:]:
        x = m.experts[expert](x)
    return x


def two_columns(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for row, place in (chosen == 1).nonzero():
        x = x + row * place
    return x


def returns(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for expert in hit(chosen)[1].nonzero():
        x = m.experts[expert](x)
        if expert == 1:
            return x
    return x


def too_long(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for _ in range(1000):
        x = x * 0.5
        if x.sum() < 0.1:
            break
    return x


def none_there_is(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for expert in hit(chosen)[1].nonzero():
        x = m.experts[expert[0] + 7](x)
    return x


def gathers(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    parts = [x]
    for expert in hit(chosen)[1].nonzero():
        parts.append(m.experts[expert](x))
    return torch.stack(parts).sum(0)


def of_other_numbers(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """What was written is no position any more."""
    _, row = torch.where(hit(chosen)[0][0])
    row += 1
    if x.sum() > 0:
        x = x.index_add(0, row, x[row - 1])
    return x


def along_another(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x[x.sort(stable=True, dim=1)[1][0]]
    return x[:1]


def downwards(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x + x[torch.arange(5, 0, -1, device=x.device)].sum()
    return x


def read_after(m: Mixture, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    for expert in hit(chosen)[1].nonzero():
        y = m.experts[expert](x)
    return y


KNOWN: Final = r"turns are known that go over"
REFUSED: Final[dict[Forward, str]] = {
    some: rf"the loop at experts\.py:\d+ has as many turns as data says, it is not known for which rows: {KNOWN}",
    two_columns: KNOWN,
    returns: r"the loop at experts\.py:\d+ has as many turns as data says, and does more than set names",
    too_long: r"the loop at experts\.py:\d+ has more than 20 turns, any of which data may end",
    none_there_is: "index 7 is out of range",
    gathers: r"in a turn of the loop at experts\.py:\d+, which data decides, list\.append .* changes what Python has",
    of_other_numbers: "positions that may be valid only there",
    along_another: "positions that may be valid only there",
    downwards: "positions that may be valid only there",
    read_after: r"data decides the loop at .*, after which y is .* or not set",
}
