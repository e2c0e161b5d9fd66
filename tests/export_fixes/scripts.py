# ruff: noqa: UP006, UP032, UP035, UP045, B905, T201 - what the parser of TorchScript knows
"""Modules as people script them, each with something of the language in it."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn


class Boxes(NamedTuple):
    """Two tensors by name."""

    low: Tensor
    high: Tensor


@torch.jit.script
class Counter:
    """A class of a script's own."""

    def __init__(self, start: int) -> None:
        self.count = start

    def up(self, by: int) -> int:
        """One more each time."""
        self.count += by
        return self.count


class Branches(nn.Module):
    """Branches on constants, shapes, None, types, dtypes, devices and the mode."""

    def __init__(self, twice: bool = True) -> None:
        super().__init__()
        self.twice = twice
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: Optional[Tensor] = None, power: int = 2) -> Tensor:
        """The script."""
        if scale is not None:
            x = x * scale
        if self.twice:
            x = x + x
        elif x.dim() > 7:
            raise ValueError("never")
        if x.dtype == torch.float32 and x.device == torch.device("cpu") and not x.is_cuda:
            x = x.to(torch.float16).to(x.dtype)
        assert x.shape[1] == 4, f"four columns, not {x.shape[1]}"
        for _ in range(power):
            x = self.dropout(self.norm(x))
        if self.training:
            x = x.neg()
        return x


class Loops(nn.Module):
    """Loops over ranges, lists, modules and while a number grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.widths = [1, 2, 3]

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        for i, layer in enumerate(self.layers):
            x = layer(x) * i if i != 1 else layer(x).relu()
        total = 0
        while total < 9:
            total += 2
            if total == 6:
                continue
            for width in self.widths:
                if width == 3:
                    break
                x = x + width * total
        for a, b in zip([1.5, 2.5], [3, 4]):
            x = x + a / b + a // 1 + 7 % b + 2**b
        return x / float(total)


class Containers(nn.Module):
    """Lists, dicts, tuples, named tuples and strings."""

    def forward(self, x: Tensor, more: List[Tensor]) -> Tuple[Dict[str, Tensor], List[Tensor], Boxes]:
        """The script."""
        parts: List[Tensor] = []
        for part in x.split(1, 1):
            parts.append(part * 2)
        parts.extend([x, x + 1])
        parts[0] = parts[-1]
        last = parts.pop()
        parts.insert(1, last)
        more.append(x)
        named: Dict[str, Tensor] = {"first": parts[0], "sum": torch.stack(more).sum(0)}
        for name in ["a", "b"]:
            named["x_{}".format(name).upper()] = parts[len(name)]
        if "first" in named and "none" not in named:
            named["keys"] = x * len(named.keys())
        sizes = [3, 1, 2]
        sizes.sort()
        a, (b, c) = parts[0], (sizes[0], sizes[-1])
        first = x.unbind(0)[0]
        return named, [a * b, first, x[:, b:c], x[..., -1]], Boxes(low=a - c, high=a.max(1)[0])


class Writes(nn.Module):
    """Operators in place, slices that are assigned, an updated buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.offset = torch.full((4,), 0.5)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """The script."""
        y = x.clone()
        y[:, 1:3] = 0
        y[0] += 1
        y.mul_(2).add_(self.offset)
        y[:, -1] = torch.tensor([1.0, 2.0])
        view = y.view(-1)
        view[0] = 7
        self.seen += 1
        self.seen = self.seen * 2
        return y, torch.nn.functional.relu_(y) + self.seen


class Objects(nn.Module):
    """An object, a function beside, a region without gradients, calls of other methods, annotations."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @torch.jit.export
    def head(self, x: Tensor) -> Tensor:
        """Another method."""
        return self.linear(x) + 1

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        counter = Counter(2)
        later = torch.jit.fork(torch.relu, x)
        with torch.no_grad():
            y = self.head(x)
        any_: Any = counter.up(3)
        if isinstance(any_, int):
            y = y * any_
        empty = torch.jit.annotate(List[int], [])
        empty.append(counter.up(1))
        return y + torch.jit.wait(later) + empty[0]


class Sizes(nn.Module):
    """What is made of sizes, which may vary."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        rows, columns = x.shape[0], x.size(-1)
        y = x.reshape(rows * columns).view(rows, 2, columns // 2)
        z = torch.zeros([rows, y.size(1)], dtype=x.dtype, device=x.device) + len(x)
        weights = torch.arange(columns, device=x.device).to(x.dtype) / max(columns, 2)
        return (y.flatten(1) * weights).sum(1, keepdim=True) + z * min(int(columns), 3) + x.numel() / rows


class OnData(nn.Module):
    """Branches on the data, in all forms that have both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def one(self, x: Tensor, low: float) -> Tensor:
        """A function that returns soon."""
        if bool(x.sum() > low):
            return self.layer(x)
        if bool(x.mean() < -1) or bool((x > 1).any()):
            x = x * 2
        elif not bool(x[0, 0] > 0) and x.size(0) > 0:
            x = x - 1
        return x + 1

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """The script."""
        is_large = bool(x.sum() > 0)
        a, b = x, x
        if is_large and x.size(1) == 4:
            a = self.one(x, -1.0)
        if not is_large:
            b = self.one(x, 2.0)
        for i in range(3):
            if a.sum() > i:
                a = a - b
            else:
                a = a * 0.5
                a.add_(1)
        return a, b


class OnNumber(nn.Module):
    """Branches on a number of the data's."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        if x.sum().item() > 0:
            x = x + 1
        return x


class OnDataKeeps(nn.Module):
    """Leaves something behind in a branch on the data."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        parts = [x]
        if bool(x.sum() > 0):
            parts.append(x + 1)
        return torch.stack(parts).sum(0)


class WhileData(nn.Module):
    """Loops as long as the data says."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        while bool(x.sum() < 10):
            x = x + 1
        return x


class Rows(nn.Module):
    """Loops over the batch."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        y = x[0]
        for i in range(x.shape[0]):
            y = y + x[i]
        return y


class Forever(nn.Module):
    """Never ends."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        while True:
            x = x + 1
        return x


class Raises(nn.Module):
    """Refuses what it is called with."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        if x.dim() == 2:
            raise ValueError("no matrices")
        return x


@torch.jit.ignore
def python(x: Tensor, by: int) -> Tensor:
    """Not scripted."""
    return x * by


class Logged(nn.Module):
    """Asks Python."""

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        print(x.shape)
        return python(x, 3)


class Asks(nn.Module):
    """Asks a method of Python's."""

    @torch.jit.ignore
    def python(self, x: Tensor) -> Tensor:
        """Not scripted."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """The script."""
        return self.python(x)
