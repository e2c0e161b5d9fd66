"""Random programs of elementwise operators, views and reductions over small sizes: what TensorRT fuses into kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

import torch
from attrs import frozen
from torch.nn import functional

Sizes: TypeAlias = tuple[int, ...]
Made: TypeAlias = tuple[str, Sizes] | None
"""An expression and its sizes; None where an operator does not fit."""

SIZES: Final = (1, 2, 3, 3, 4, 5, 7, 8, 16, 20)
LARGEST: Final = 6000
"""Elements of a tensor."""

UNARY: Final = (
    *("{}.tanh()", "{}.sigmoid()", "{}.abs()", "{}.sin()", "torch.relu({})", "{}.exp().clamp(max=20)", "-{}"),
    *("{} * 0.5", "{} + 1.5", "{0} * {0}"),
    *("torch.where({0} > 0, {0}, 0.0)", "torch.where({0} > 0, {0}, {0} * 2)"),
)
BINARY: Final = (
    *("{} + {}", "{} - {}", "{} * {}", "{} / ({}.abs() + 1)"),
    *("torch.maximum({}, {})", "torch.minimum({}, {})"),
)
REDUCTIONS: Final = (
    *("{}.sum({}, keepdim={})", "{}.mean({}, keepdim={})", "{}.amax({}, keepdim={})", "{}.amin({}, keepdim={})"),
    *("{}.logsumexp({}, keepdim={})", "torch.linalg.vector_norm({}, dim={}, keepdim={})"),
    "{}.var({}, unbiased=False, keepdim={})",
)
PAIRS: Final = (
    *("{0}.unsqueeze(-1) - {0}.unsqueeze(-2)", "{0}.unsqueeze(-2) * {0}.unsqueeze(-1)"),
    "torch.maximum({0}.unsqueeze(-1), {0}.unsqueeze(-2))",
)


@frozen
class Program:
    """A function of its inputs as Python text, and their sizes."""

    text: str
    sizes: tuple[Sizes, ...]

    @property
    def function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function."""
        names: dict[str, Any] = {"torch": torch, "functional": functional}
        exec(self.text, names)
        return names["program"]  # type: ignore[no-any-return]


def program(seed: int) -> Program:
    """The program of a seed: the same in every process."""
    return _Drawing(Random(seed)).program()


class _Drawing:
    """A program on its way."""

    def __init__(self, random: Random) -> None:
        self.random = random
        whole = tuple(random.choice(SIZES) for _ in range(random.choice((2, 3, 3))))
        others = (whole, whole[-1:], (1,) * (len(whole) - 1) + whole[-1:])
        self.inputs = [whole] + [random.choice(others)] * (random.random() < 0.6)
        self.values: dict[str, Sizes] = {f"x{i}": sizes for i, sizes in enumerate(self.inputs)}
        self.lines: list[str] = []
        self.read: set[str] = set()

    def program(self) -> Program:
        """Draw operators, and return what no other reads, with one more value."""
        draws = (
            *(self.unary, self.unary, self.binary, self.binary, self.binary, self.reduction, self.reduction),
            *(self.view, self.view, self.pairs, self.normalized, self.joined, self.part, self.product),
            *(self.chosen, self.windows),
        )
        count = self.random.randint(4, 10)
        for _ in range(80):
            self.put(self.random.choice(draws)())
            if len(self.lines) == count:
                break
        made = [name for name in self.values if name not in self.read and name.startswith("v")]
        made += [self.random.choice([*self.values][len(self.inputs) :])] * (self.random.random() < 0.3)
        body = "".join(f"    {line}\n" for line in self.lines)
        given = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        text = f"def program({given}):\n{body}    return ({', '.join(dict.fromkeys(made))},)\n"
        return Program(text, tuple(self.inputs))

    def put(self, made: Made) -> None:
        """Add a line, unless the operator does not fit or its result is large."""
        if made is not None and math.prod(made[1]) <= LARGEST and len(made[1]) <= 4:
            name = f"v{len(self.lines)}"
            self.lines.append(f"{name} = {made[0]}")
            self.read |= {value for value in self.values if f"{value}" in _words(made[0])}
            self.values[name] = tuple(made[1])

    def value(self) -> tuple[str, Sizes]:
        """A value, most often a late one."""
        values = list(self.values.items())
        return self.random.choice(values[-4:] if self.random.random() < 0.7 else values)

    def unary(self) -> Made:
        name, sizes = self.value()
        return self.random.choice(UNARY).format(name), sizes

    def binary(self) -> Made:
        (a, first), (b, second) = self.value(), self.value()
        try:
            return self.random.choice(BINARY).format(a, b), tuple(torch.broadcast_shapes(first, second))
        except RuntimeError:
            return None

    def reduction(self) -> Made:
        name, sizes = self.value()
        if not sizes:
            return None
        dims = self.random.sample(range(len(sizes)), min(len(sizes), self.random.choice((1, 1, 1, 2))))
        kept = self.random.random() < 0.5
        left = tuple(1 if i in dims else size for i, size in enumerate(sizes) if kept or i not in dims)
        return self.random.choice(REDUCTIONS).format(name, sorted(dims), kept), left

    def normalized(self) -> Made:
        name, sizes = self.value()
        if not sizes:
            return None
        dim = self.random.randrange(len(sizes))
        forms = [f"{name}.softmax({dim})", f"{name}.cumsum({dim})"]
        forms += [f"functional.layer_norm({name}, ({sizes[-1]},))"] * (sizes[-1] > 1)
        return self.random.choice(forms), sizes

    def view(self) -> Made:
        name, sizes = self.value()
        if not sizes:
            return None
        dim, other = self.random.randrange(len(sizes)), self.random.randrange(len(sizes))
        turned = list(sizes)
        turned[dim], turned[other] = sizes[other], sizes[dim]
        wider = tuple(self.random.choice((3, 5)) if size == 1 else size for size in sizes)
        return self.random.choice(
            [
                (f"{name}.transpose({dim}, {other})", tuple(turned)),
                (f"{name}.unsqueeze({dim})", (*sizes[:dim], 1, *sizes[dim:])),
                (f"{name}.reshape({sizes[0]}, {math.prod(sizes[1:])})", (sizes[0], math.prod(sizes[1:]))),
                (f"{name}.flip({dim})", sizes),
                (f"{name}.roll(1, {dim})", sizes),
                (f"{name}.expand({wider})", wider),
            ]
        )

    def pairs(self) -> Made:
        name, sizes = self.value()
        return (self.random.choice(PAIRS).format(name), (*sizes, sizes[-1])) if sizes else None

    def joined(self) -> Made:
        (a, first), (b, second) = self.value(), self.value()
        dims = [d for d in range(len(first)) if (*first[:d], *first[d + 1 :]) == (*second[:d], *second[d + 1 :])]
        if len(first) != len(second) or not dims:
            return None
        dim = self.random.choice(dims)
        return f"torch.cat([{a}, {b}], {dim})", (*first[:dim], first[dim] + second[dim], *first[dim + 1 :])

    def part(self) -> Made:
        name, sizes = self.value()
        dim = self.random.randrange(len(sizes)) if sizes else 0
        if not sizes or sizes[dim] < 2:
            return None
        left = (*sizes[:dim], sizes[dim] - 1, *sizes[dim + 1 :])
        return f"{name}.narrow({dim}, {self.random.choice((0, 1))}, {sizes[dim] - 1})", left

    def chosen(self) -> Made:
        """Elements at given places, or the largest."""
        name, sizes = self.value()
        if not sizes:
            return None
        dim = self.random.randrange(len(sizes))
        places = [self.random.randrange(sizes[dim]) for _ in range(self.random.choice((1, 3, 4)))]
        left = (*sizes[:dim], len(places), *sizes[dim + 1 :])
        most = self.random.randint(1, min(3, sizes[dim]))
        forms: list[tuple[str, Sizes]] = [
            (f"{name}.index_select({dim}, torch.tensor({places}, device={name}.device))", left),
            (f"{name}[{':, ' * dim}{places}]", left),
            (f"{name}.topk({most}, {dim}).values", (*sizes[:dim], most, *sizes[dim + 1 :])),
            (f"{name}.prod({dim})", (*sizes[:dim], *sizes[dim + 1 :])),
        ]
        return self.random.choice(forms)

    def windows(self) -> Made:
        """Of the last dim."""
        name, sizes = self.value()
        if len(sizes) not in (2, 3) or sizes[-1] < 3:
            return None
        forms: list[tuple[str, Sizes]] = [
            (f"{name}.unfold(-1, 3, 1).mean(-1)", (*sizes[:-1], sizes[-1] - 2)),
            (f"{name}.unfold(-1, 3, 1).amax(-1)", (*sizes[:-1], sizes[-1] - 2)),
            (f"functional.pad({name}, (1, 2))", (*sizes[:-1], sizes[-1] + 3)),
            (f"{name}.unfold(-1, 3, 1)", (*sizes[:-1], sizes[-1] - 2, 3)),
        ]
        return self.random.choice(forms)

    def product(self) -> Made:
        name, sizes = self.value()
        return (f"{name} @ {name}.mT", (*sizes[:-1], sizes[-2])) if len(sizes) > 1 and sizes[-1] <= 4 else None


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text).split())
