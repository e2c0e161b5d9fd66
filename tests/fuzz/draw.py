"""Draw a random program: inputs and buffers, statements, results, and settings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

import torch
from attrs import evolve
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_map

from pipeline.aten.types import Argument, Leaf
from pipeline.frozen import FrozenDict
from pipeline.testing.calls import TensorSpec
from pipeline.testing.compare import LARGEST_PLAIN_INPUT
from tests.fuzz.kinds import KINDS, Kind, ranges
from tests.fuzz.scope import Choose, Scope, Value
from tests.fuzz.settings import options
from tests.fuzz.snippet import Snippet

State = FrozenDict[str, Leaf]


def draw(choose: Choose, kinds: tuple[Kind, ...] = KINDS) -> Snippet:
    """Draw a program of one of these kinds. ``choose`` picks one of a sequence; the first is the simplest."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _draw(choose, choose(kinds))


def _draw(choose: Choose, kind: Kind) -> Snippet:
    args, keywords = _arguments(choose, kind)
    sizes = _sizes(choose, {**args, **keywords})
    scope = Scope(choose, [_world({**args, **keywords}, at) for at in _worlds(sizes)])
    _inputs(scope, {**args, **keywords})
    _state(scope)
    count = choose(kind.counts)
    for _ in range(3 * count):
        if len(scope.body) < count:
            choose(kind.statements)(scope)
    _tame(scope, {**args, **keywords}, sizes)
    form = choose(("dict", "tuple", "dict", "list", "tuple", "dict", "single"))
    results = _results(scope, choose((2, 3, 1, 4)))
    parts = (tuple(scope.setup), tuple(scope.body), results, form)
    return Snippet(*parts, FrozenDict(args), FrozenDict(keywords), sizes, options(scope))


def _arguments(choose: Choose, kind: Kind) -> tuple[dict[str, Leaf], dict[str, Leaf]]:
    """Parameters of ``forward``: by position and by keyword, in containers, and Python values among them."""
    seeds = itertools.count()

    def spec() -> TensorSpec:
        dtype = choose(kind.dtypes)
        shape = choose(kind.shapes if dtype == torch.float32 else kind.others)
        if dtype == torch.float32 and choose((False,) * (kind.half - 1) + (True,)):
            dtype = choose((torch.float16, torch.bfloat16))
        return TensorSpec(shape, dtype, "small" if dtype == torch.int64 else "normal", seed=next(seeds))

    args: dict[str, Argument] = {name: spec() for name in "abc"[: choose((1, 2, 2, 3))]}
    more: dict[str, Leaf] = {
        "pack": lambda: {"p": spec(), "q": [spec(), spec()]},
        "pair": lambda: (spec(), None),
        "flag": lambda: choose((True, False)),
        "k": lambda: choose((2, 3)),
        "none": lambda: None,
    }
    for name in more:
        if choose((False,) * 5 + (True,)):
            args[name] = more[name]()
    keywords = {}
    if choose((False,) * 3 + (True,)):
        name = choose([*args][1:] or ["d"])
        keywords[name] = args.pop(name) if name in args else spec()
    return args, keywords


def _sizes(choose: Choose, arguments: Mapping[str, object]) -> FrozenDict[str, tuple[int, int, int]]:
    specs = [leaf for leaf in tree_flatten(dict(arguments))[0] if isinstance(leaf, TensorSpec)]
    names = dict.fromkeys(name for spec in specs for name in spec.size_names)
    return FrozenDict({name: choose(ranges(name)) for name in names})


def _worlds(sizes: Mapping[str, tuple[int, int, int]]) -> Iterator[dict[str, int]]:
    """The sizes that statements are tried at: opt, min, max, and others between that tell the names apart."""
    yield {name: opt for name, (_, opt, _) in sizes.items()}
    yield {name: low for name, (low, _, _) in sizes.items()}
    yield {name: high for name, (_, _, high) in sizes.items()}
    yield {name: low + (high - low) * (i + 1) // (len(sizes) + 1) for i, (name, (low, _, high)) in _numbered(sizes)}


def _numbered(sizes: Mapping[str, tuple[int, int, int]]) -> Iterator[tuple[int, tuple[str, tuple[int, int, int]]]]:
    return iter(enumerate(sizes.items()))


def _world(arguments: Mapping[str, object], sizes: Mapping[str, int]) -> dict[str, Leaf]:
    world: dict[str, object] = tree_map(
        lambda leaf: leaf.create_tensor(sizes) if isinstance(leaf, TensorSpec) else leaf, dict(arguments)
    )
    return world


def _inputs(scope: Scope, arguments: Mapping[str, object]) -> None:
    """The inputs are values; statements write to a third of them, which then are not exact at the second call."""
    for path, leaf in tree_flatten_with_path(dict(arguments))[0]:
        if isinstance(leaf, TensorSpec):
            text = keystr(path[:1])[2:-2] + keystr(path[1:])
            written = scope.maybe(3)
            scope.values.append(Value(text, exact=not written, fixed=not written))


def _state(scope: Scope) -> None:
    """Buffers that statements write to, and others that they only read."""
    kinds = {
        "count": "torch.zeros((), dtype=torch.int64)",
        "state": scope.choose(("torch.zeros(4)", "torch.ones(3, 4)", "torch.zeros(())")),
        "cache": "torch.zeros(10, 4)",
        "steps": "torch.arange(3)",
        "fixed": scope.choose(("torch.randn(4)", "torch.randn(3, 1)", "torch.arange(4)")),
    }
    for name, made in kinds.items():
        if scope.maybe(4):
            scope.add_setup(f"self.register_buffer({name!r}, {made})")
            still = name == "fixed"
            scope.values.append(Value(f"self.{name}", exact=still, fixed=still, moving=not still))
    if scope.maybe(4):
        scope.add_setup("self.plain = torch.tensor([0.5, 1.0, -1.0, 2.0])")
        scope.values.append(Value("self.plain", exact=True, fixed=True, moving=False))


def _tame(scope: Scope, arguments: Mapping[str, object], sizes: Mapping[str, tuple[int, int, int]]) -> None:
    """Statements that keep in bounds what would grow from call to call, where it may be written to in the end."""
    state = [v for v in scope.values if v.text in scope.written and not re.fullmatch(r"v\d+", v.text)]
    worlds = [_world(arguments, at) for at in _worlds(sizes)]
    for value in state:
        text = value.text
        if any(_grows(scope.body, evolve(scope, worlds=[world], body=[]), text) for world in worlds):
            how = "clamp_(-4, 4)" if scope.tensor(value).is_floating_point() else "remainder_(9)"
            scope.write(value, f"{text}.{how}", exact=False)


def _grows(lines: list[str], again: Scope, text: str) -> bool:
    """Whether a value is too large after some calls."""
    if not all(again.execute(line) for line in lines * 3):
        return True
    tensor = again.at(0, text)
    return tensor.dtype != torch.bool and bool((tensor.abs() > LARGEST_PLAIN_INPUT).any())


def _results(scope: Scope, count: int) -> FrozenDict[str, str]:
    """What is returned: values that nothing else reads, and others: inputs, constants, numbers, containers of these."""
    unread = [v.text for v in scope.values if v.text not in scope.read and v.text.startswith("v") and v.moving]
    chosen = [*scope.kept[-2:], *unread[::-1][: 2 + 2 * count], *(_result(scope) for _ in range(count))]
    return FrozenDict({f"o{i}": text for i, text in enumerate(chosen)})


def _result(scope: Scope) -> str:
    values = [v.text for v in scope.values]
    some, other = scope.choose(values[::-1]), scope.choose(values)
    forms = (
        *(some, some, some, other, f"({some}, [{other}, None])", f"{{'p': {some}, 'q': ({other}, {some})}}"),
        *(scope.choose((*scope.ints, "3")), scope.choose(("None", "True", "2.5", "'text'")), f"[{some}, {some}]"),
        f"{some}.view(-1)" if scope.tensor_at(some).is_contiguous() else some,
    )
    return str(scope.choose(forms))
