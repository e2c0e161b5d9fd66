"""Random functions that decide by their data: branches in branches, loops and returns; one a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from attrs import define, field

NAMES = ("t", "u", "v")


@define
class Writer:
    """A function under construction: its lines, and how far they are indented.

    Attributes:
        counts: whether functions also decide by how many rows data leaves.
        loops: how many loops are around the line, and ``open`` whether data has decided since the innermost.
    """

    seed: int
    counts: bool = False
    draw: random.Random = field(init=False)
    lines: list[str] = field(factory=list)
    depth: int = 1
    loops: int = 0
    open: bool = False
    names: int = 0

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def say(self, line: str) -> None:
        """One more line."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def inside(self, line: str, loop: bool = False, data: bool = False) -> Iterator[None]:
        """A block under this line."""
        self.say(line)
        before = self.loops, self.open
        self.depth, self.loops, self.open = self.depth + 1, self.loops + loop, (self.open or data) and not loop
        yield
        self.depth, (self.loops, self.open) = self.depth - 1, before

    def value(self, deep: int = 0) -> str:
        """A tensor."""
        a, b = self.draw.choice(NAMES), self.draw.choice(NAMES)
        forms = [f"{a} + {b}", f"{a} * 0.5", f"{a}.tanh()", f"m.linear({a})", f"{a} - {b}.mean()", f"-{a}"]
        forms += [f"{a} / 2 + k", f"{a} * 0.5 + w", f"w - {a}"]
        if deep < 2 and self.draw.random() < 0.3:
            condition, _ = self.condition()
            return f"({self.value(deep + 1)} if {condition} else {self.value(deep + 1)})"
        return self.draw.choice(forms)

    def condition(self, deep: int = 0) -> tuple[str, bool]:
        """A test, and whether data has its truth."""
        a, b = self.draw.choice(NAMES), self.draw.choice(NAMES)
        low, high = self.draw.randint(0, 1), self.draw.randint(0, 4)
        data = [f"{a}.sum() > {b}.mean()", f"({a} > 1).any()", f"{a}.amax() < {low}", f"{a}.argmax()"]
        data += [f"bool(({a} > {b}).all())", f"{a}.mean().item() > 0"]
        data += [f"float({a}.mean()) > 0", f"int(({a} > 1).sum()) > {high}"]
        plain = [f"k % 2 == {low}", "t.shape[1] == 4", f"k > {high}", "t is not None"]
        if deep < 2 and self.draw.random() < 0.35:
            (one, is_one), (other, is_other) = self.condition(deep + 1), self.condition(deep + 1)
            form = self.draw.choice(["({} and {})", "({} or {})", "not ({} and not {})"])
            return form.format(one, other), is_one or is_other
        is_data = self.draw.random() < 0.7
        return self.draw.choice(data if is_data else plain), is_data


def assign(w: Writer) -> None:
    a = w.draw.choice(NAMES)
    w.say(w.draw.choice([f"{a} = {w.value()}", f"{a} = {w.value()}", "t, u = u, t", f"v = t if k else {w.value()}"]))


def write(w: Writer) -> None:
    a = w.draw.choice(NAMES)
    w.say(f"{a} = {a}.clone()")
    w.say(w.draw.choice([f"{a} += 1", f"{a}.mul_(0.5)", f"{a}[:, 1:].clamp_(-1, 1)"]))


def write_in_place(w: Writer) -> None:
    """A write to a tensor that is never chosen, in whatever branch it stands."""
    a, column = w.draw.choice(NAMES), w.draw.randint(0, 2)
    w.say(
        w.draw.choice(
            [
                f"w += {a} * 0.1",
                f"w[:, {column}:] *= 0.5",
                f"w[w > 1] = {column}",
                f"w[:, {column}] = {a}[:, {column + 1}]",
                "w.clamp_(-2, 2)",
                f"w[:, {column}].sub_(1)",
            ]
        )
    )


def branch(w: Writer) -> None:
    condition, is_data = w.condition()
    with w.inside(f"if {condition}:", data=is_data):
        body(w)
    while w.draw.random() < 0.3:
        condition, is_more = w.condition()
        is_data = is_data or is_more
        with w.inside(f"elif {condition}:", data=is_data):
            body(w)
    if w.draw.random() < 0.6:
        with w.inside("else:", data=is_data):
            body(w)


def loop(w: Writer) -> None:
    w.names += 1
    name = f"i{w.names}"
    if w.draw.random() < 0.4:
        turns(w, name)
        return
    with w.inside(f"for {name} in range({w.draw.randint(1, 3)}):", loop=True):
        body(w)
        if w.draw.random() < 0.3:
            condition, is_data = w.condition()
            with w.inside(f"if {condition}:", data=is_data):
                body(w)
                w.say(w.draw.choice(["continue", "break"]))
            body(w)
        if w.draw.random() < 0.4:
            w.say(f"if {name} == 1:")
            w.say(f"    {w.draw.choice(['break', 'continue'])}")
            body(w)
        w.say(f"t = t + {name}")


def turns(w: Writer, name: str) -> None:
    """A loop over some of four columns, which data chooses."""
    a, b = w.draw.choice(NAMES), w.draw.choice(NAMES)
    found = f"({a}.sum(0) > {b}.mean())"
    values = w.draw.choice(["{}.nonzero()", "{}.nonzero().squeeze(-1)", "torch.where({})[0]", "{}.nonzero().tolist()"])
    with w.inside(f"for {name} in {values.format(found)}:", loop=True, data=True):
        if not values.startswith("torch") and "squeeze" not in values:
            w.say(f"{name} = {name}[0]")
        if w.draw.random() < 0.5:
            condition, _ = w.condition()
            with w.inside(f"if {condition}:"):
                body(w)
                w.say(w.draw.choice(["continue", "break"]))
        body(w)
        w.say(w.draw.choice([f"t = t + {name}", f"u = u - v[:, {name}:][:, :1]", f"w[:, {name}] += 0.5"]))


def count(w: Writer) -> None:
    """A branch where there are enough rows for what is in it, and often one that leaves other rows."""
    a, column = w.draw.choice(NAMES), w.draw.randint(0, 3)
    w.say(f"r = {a}[{a}[:, {column}] > {w.draw.choice([-0.5, 0.2, 1])}]")
    uses = [(1, "r[0]"), (1, "r[-1, :1]"), (1, "r.max()"), (1, "r.amin(0)"), (2, "r[1]"), (2, "r.topk(2, 0)[0][1:]")]
    uses += [(1, "r.max(0)[0]"), (1, "r[:, 1].min()"), (1, "r[r[:, 0].argmax()]"), (1, "r[r.shape[0] - 1 :].mean(0)")]
    least, use = w.draw.choice(uses)
    enough = w.draw.choice([f"len(r) >= {least}", f"r.shape[0] > {least - 1}", f"not r.numel() < {4 * least}"])
    if w.draw.random() < 0.3:
        w.say(f"t = t + ({use}.mean() if {enough} else u.sum())")
    else:
        if w.draw.random() < 0.3:
            enough = f"{enough} and {use}.mean() > 0"
        with w.inside(f"if {enough}:", data=True):
            w.say(f"u = u * 0.5 + {use}")
            body(w)
    if w.draw.random() < 0.5:
        condition, is_data = w.condition()
        with w.inside(f"if {condition}:", data=is_data):
            w.say(f"r = {w.draw.choice(['r[:1]', 'r[1:]', 'torch.cat([r, t])', 'r[r[:, 0] > 0]', 'u', 'r * 2'])}")
        w.say("t = t * 0.5 + r.sum() * 0.1")


def leave(w: Writer) -> None:
    """A return, where all that follows is the other branch."""
    condition, is_data = w.condition()
    with w.inside(f"if {condition}:", data=is_data):
        body(w)
        w.say(f"return {w.value()}, t, w")


def body(w: Writer) -> None:
    """A few statements; fewer the deeper they are."""
    for _ in range(w.draw.randint(1, max(1, 5 - 2 * w.depth))):
        kinds = {assign: 4, write: 1, write_in_place: 2, **({branch: 4, loop: 1} if w.depth < 4 else {})}
        kinds |= {count: 3} if w.counts and w.depth < 3 else {}
        w.draw.choices(list(kinds), list(kinds.values()))[0](w)


def source(seed: int, *, counts: bool = False) -> str:
    """The text of a function of a module with a ``linear``, a tensor of shape [N, 4] and a number; ``counts``: it may
    decide by how many rows data leaves."""
    w = Writer(seed, counts)
    for _ in range(3):
        body(w)
        if w.draw.random() < 0.5:
            leave(w)
    first = f"import torch\n\n\ndef decides_{seed}(m, x, k):\n    t, u, v, w = x, x * 2, m.linear(x), x + 0.5\n"
    return first + "\n".join(w.lines) + "\n    return u - v, t, w\n"
