"""Random TorchScript programs: control flow on constants, lists, dicts, numbers and writes in place; one a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from attrs import define, field
from torch import Tensor, nn

SHAPE = (3, 4)
HEADER = """
def mix(self, a: Tensor, b: Tensor, k: int) -> Tensor:
    if k % 2 == 0:
        return torch.tanh(a - b)
    return a * self.weight + b * float(k)

def forward(self, x: Tensor, y: Tensor) -> Tuple[Tensor, List[Tensor], Dict[str, Tensor], Tensor]:
    parts: List[Tensor] = [x, y]
    named: Dict[str, Tensor] = {"x": x}
    numbers = [3, 1, 2]
    n = 2
    t = x.clone()
    u = torch.relu(y) + self.offset
"""
FOOTER = """
    total = torch.zeros_like(x)
    for part in parts:
        total = total + torch.tanh(part)
    return t, parts, named, total + u * float(n % 7)
"""


@define
class Writer:
    """A program under construction: its lines, and how far they are indented."""

    seed: int
    draw: random.Random = field(init=False)
    lines: list[str] = field(factory=list)
    depth: int = 1
    names: int = 0

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def say(self, line: str) -> None:
        """One more line."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def inside(self, line: str) -> Iterator[None]:
        """A block under this line."""
        self.say(line)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self) -> str:
        """A name that is not in use."""
        self.names += 1
        return f"v{self.names}"

    def tensor(self) -> str:
        """A tensor of the shape of all."""
        known = "t u x y t u parts[0] parts[-1] named['x'] torch.stack(parts).sum(0) self.weight.expand_as(x)"
        return self.draw.choice([*known.split()[:9], "torch.stack(parts).sum(0)", "self.weight.expand_as(x)"])

    def number(self) -> str:
        """A whole number."""
        known = "n len(parts) numbers[0] numbers[-1] x.size(0) x.shape[1] len(named) x.dim() max(n, 3) min(n, 4) abs(n)"
        return self.draw.choice(
            [*(f"{part}" for part in known.replace(", ", ",").split()), str(self.draw.randint(-3, 6))]
        )

    def condition(self) -> str:
        """What is known when the program is captured."""
        a, b = self.number(), self.number()
        simple = [
            f"{a} {self.draw.choice(['<', '>=', '==', '!='])} {b}",
            f"{a} % 3 == {self.draw.randint(0, 2)}",
            "self.training",
            "x.dtype == torch.float32",
            f"'k{self.draw.randint(0, 2)}' in named",
            f"{self.draw.randint(0, 4)} in numbers",
        ]
        first, second = self.draw.choice(simple), self.draw.choice(simple)
        return self.draw.choice([first, f"not ({first})", f"{first} and {second}", f"{first} or {second}"])


def compute(w: Writer) -> None:
    a, b, k = w.tensor(), w.tensor(), w.number()
    forms = [
        f"torch.tanh({a} + {b})",
        f"torch.sigmoid({a}) * {b}",
        f"torch.where({a} > {b}, {a}, {b} * 0.5)",
        f"torch.clamp({a}, -1.0, float(abs({k}) + 1))",
        f"self.mix({a}, {b}, {k})",
        f"torch.matmul({a}, self.square) - {b}",
        f"torch.cat([{a}, {b}], 0)[1:4]",
        f"({a}).t().reshape(-1).view(x.size(0), -1) / 2",
        f"({a} - ({b}).mean(1, keepdim=True)) * ({k})",
    ]
    w.say(f"{w.draw.choice('tu')} = {w.draw.choice(forms)}")


def write(w: Writer) -> None:
    b, row, low = w.tensor(), w.draw.randint(0, 2), w.draw.randint(0, 2)
    forms = [
        f"t[:, {low}:{low + 2}] = {w.draw.randint(-2, 2)}",
        f"t[{row}] += ({b})[{2 - row}]",
        f"t.mul_(0.5).add_({b})",
        f"t[..., {low}] = ({b})[..., {low + 1}]",
        f"t[{row}:, ::2] *= 2",
        f"t.view(-1)[{low}:{low + 5}].fill_(0.25)",
        "t.clamp_(-3.0, 3.0)",
        f"t[:, {low}].copy_(torch.tensor([1.0, 2.0, 3.0]))",
        f"t -= {b}",
    ]
    w.say("t = t.clone()")
    w.say(w.draw.choice(forms))


def lists(w: Writer) -> None:
    a, k = w.tensor(), w.number()
    forms = [
        f"parts.append({a})",
        f"parts.insert({w.draw.randint(0, 1)}, {a} * 2)",
        f"parts.extend([{a}, t])",
        "parts = [torch.relu(p) for p in parts]",
        "parts.reverse()",
        f"parts[0] = {a}",
        "parts = parts[:3]",
        f"numbers.append({k})",
        "numbers.sort()",
        "numbers = numbers[::-1]",
        "numbers += [n, 5]",
        f"named['k{w.draw.randint(0, 2)}'] = {a}",
        f"t, u = u, {a} + t",
        f"n = ({k} * 3 + {w.number()}) // 2",
        f"n = int(float({k}) / 2 + 0.5) + {w.number()} % 4",
    ]
    w.say(w.draw.choice(forms))


def shrink(w: Writer) -> None:
    with w.inside("if len(parts) > 2:"):
        w.say(f"{w.draw.choice('tu')} = parts.pop() + {w.tensor()}")


def branch(w: Writer) -> None:
    with w.inside(f"if {w.condition()}:"):
        body(w)
    if w.draw.random() < 0.3:
        with w.inside(f"elif {w.condition()}:"):
            body(w)
    if w.draw.random() < 0.6:
        with w.inside("else:"):
            body(w)


def loop(w: Writer) -> None:
    i = w.name()
    if w.draw.random() < 0.3:
        w.say(f"{i} = {w.draw.randint(0, 3)}")
        with w.inside(f"while {i} < {w.draw.randint(2, 5)}:"):
            w.say(f"{i} += {w.draw.randint(1, 2)}")
            escape(w, i)
            body(w)
        return
    ranges = [f"range({w.draw.randint(0, 3)})", "range(x.size(0))", "range(1, 6, 2)", "[2, 0, 1]"]
    with w.inside(f"for {i} in {w.draw.choice(ranges)}:"):
        escape(w, i)
        body(w)
        w.say(f"n = n + {i}")


def escape(w: Writer, i: str) -> None:
    if w.draw.random() < 0.4:
        with w.inside(f"if {i} == {w.draw.randint(0, 4)}:"):
            w.say(w.draw.choice(["break", "continue"]))


def each(w: Writer) -> None:
    key, value = w.name(), w.name()
    with w.inside(f"for {key}, {value} in named.items():"), w.inside(f"if {key} != 'k1':"):
        w.say(f"u = u * 0.5 + {value}")


STATEMENTS: tuple[tuple[Callable[[Writer], None], int], ...] = (
    (compute, 5),
    (write, 4),
    (lists, 5),
    (shrink, 1),
    (branch, 3),
    (loop, 2),
    (each, 1),
)


def body(w: Writer) -> None:
    """A few statements; fewer the deeper they are."""
    for _ in range(w.draw.randint(1, max(1, 6 - 2 * w.depth))):
        kinds = [(s, weight) for s, weight in STATEMENTS if w.depth < 4 or s not in (branch, loop, each)]
        statement = w.draw.choices([s for s, _ in kinds], [weight for _, weight in kinds])[0]
        statement(w)


def source(seed: int) -> str:
    """The text of a program."""
    w = Writer(seed)
    for _ in range(3):
        body(w)
    return HEADER + "\n".join(w.lines) + "\n" + FOOTER


def script(seed: int) -> torch.jit.ScriptModule:
    """A program as a module in eval mode, with a parameter of each kind of its own."""
    generator = torch.Generator().manual_seed(seed)
    plain = type(f"Random{seed}", (nn.Module,), {})()  # torch compiles one program for each class
    plain.weight = nn.Parameter(torch.randn(4, generator=generator))
    plain.square = nn.Parameter(torch.randn(4, 4, generator=generator) / 4)
    plain.register_buffer("offset", torch.randn(3, 1, generator=generator))
    made = torch.jit.script(plain.eval())
    made.define(source(seed))
    return made


def inputs(seed: int) -> tuple[Tensor, Tensor]:
    """Arguments of a program."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randn(SHAPE, generator=generator), torch.randn(SHAPE, generator=generator)
