"""Random programs for the keys of the engine cache: drawn, changed in one place, or given other names.

    python -m tests.artifact.key_programs 100000

compares so many pairs that differ in one place, and a tenth as many that differ in names alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_flatten

from pipeline.artifact.engine_cache_stage import engine_requests
from pipeline.compose.pipelines import Pipeline
from pipeline.converters import DYNAMO_CONVERTERS
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Program, make_port
from pipeline.recipes import parameter_recipe
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import ShapeEnvironment
from pipeline.stages import Validate, avoid_faults, convert, partition

aten = torch.ops.aten
UNARY = tuple(getattr(aten, name).default for name in ("relu", "sigmoid", "tanh", "exp", "sin", "cos", "abs", "neg"))
BINARY = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default)
ORDERS = ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
FORMS: tuple[tuple[tuple[Any, ...], int, Sequence[tuple[Any, ...]]], ...] = (
    (UNARY, 1, ((),)),
    (BINARY, 2, ((),)),
    ((aten.add.Tensor, aten.sub.Tensor), 2, tuple(({"alpha": a},) for a in (2, 3, 0.5))),
    ((aten._softmax.default,), 1, tuple((dim, False) for dim in range(3))),
    ((aten.permute.default,), 1, tuple((order,) for order in ORDERS)),
    ((aten.cumsum.default,), 1, tuple((dim,) for dim in range(3))),
    ((aten.flip.default,), 1, tuple((dims,) for dims in ((0,), (1,), (0, 2)))),
    ((aten.leaky_relu.default, aten.elu.default), 1, tuple((slope,) for slope in (0.1, 0.2, 0.5))),
    ((aten.clamp.default,), 1, ((-1, 1), (-1, 2), (-3, 1))),
)
"""Kinds of statements: their operators, how many tensors they take, and the further arguments that they may have."""
EDGES, DTYPES = (3, 4, 5), (torch.float32, torch.float16)
STAGES = Pipeline((Validate(DYNAMO_CONVERTERS), partition, avoid_faults, convert))


@frozen
class Statement:
    """A call: one of the forms, which of its operators and arguments, and of which values."""

    form: int
    operator: int
    rest: int
    values: tuple[int, ...]


@frozen
class Drawn:
    """A program over cubes: inputs, then weights, then what the statements give. What nobody reads is returned; an
    input that nobody reads is rounded up first, so that an engine takes it."""

    edge: int
    dtype: torch.dtype
    inputs: int
    seeds: tuple[int, ...]
    statements: tuple[Statement, ...]
    prefix: str = ""

    @property
    def given(self) -> int:
        """How many values are there before the first statement."""
        return self.inputs + len(self.seeds)

    def program(self) -> Program:
        """The program, as decompositions would leave it."""
        return _program(self)

    def key(self, settings: CompilationSettings | None = None) -> str:
        """The key of its engine, which is one."""
        program = self.program()
        made = STAGES(evolve(program, settings=settings) if settings else program)
        (wanted,) = engine_requests(made)
        return wanted.key


def drawn(chance: random.Random) -> Drawn:
    """A program of 2 to 7 statements."""
    inputs, weights = chance.randint(1, 3), chance.randint(0, 2)
    made = Drawn(chance.choice(EDGES), chance.choice(DTYPES), inputs, tuple(range(weights)), ())
    for _ in range(chance.randint(2, 7)):
        made = evolve(made, statements=(*made.statements, _statement(chance, made.given + len(made.statements))))
    return made


def _statement(chance: random.Random, values: int) -> Statement:
    form = chance.randrange(len(FORMS))
    operators, arity, rest = FORMS[form]
    operands = tuple(chance.randrange(values) for _ in range(arity))
    return Statement(form, chance.randrange(len(operators)), chance.randrange(len(rest)), operands)


def _other(chance: random.Random, value: int, count: int) -> int:
    return (value + chance.randrange(1, count)) % count


def _operator(chance: random.Random, made: Drawn) -> Drawn | None:
    """Another operator of the same kind."""
    return _changed(chance, made, "operator", lambda s, at: len(FORMS[s.form][0]))


def _argument(chance: random.Random, made: Drawn) -> Drawn | None:
    """Another argument."""
    return _changed(chance, made, "rest", lambda s, at: len(FORMS[s.form][2]))


def _changed(chance: random.Random, made: Drawn, name: str, count: Callable[[Statement, int], int]) -> Drawn | None:
    places = [i for i, s in enumerate(made.statements) if count(s, i) > 1]
    if not places:
        return None
    at = chance.choice(places)
    old = made.statements[at]
    return _with(made, at, evolve(old, **{name: _other(chance, getattr(old, name), count(old, at))}))


def _with(made: Drawn, at: int, statement: Statement) -> Drawn:
    return evolve(made, statements=(*made.statements[:at], statement, *made.statements[at + 1 :]))


def _wiring(chance: random.Random, made: Drawn) -> Drawn | None:
    """Another operand."""
    at = chance.randrange(len(made.statements))
    old, count = made.statements[at], made.given + at
    if count < 2:
        return None
    place = chance.randrange(len(old.values))
    values = tuple(_other(chance, v, count) if i == place else v for i, v in enumerate(old.values))
    return _with(made, at, evolve(old, values=values))


def _swapped(chance: random.Random, made: Drawn) -> Drawn | None:
    """The operands the other way round: ``x - y`` and ``y - x``."""
    places = [i for i, s in enumerate(made.statements) if len({*s.values}) == 2]
    if not places:
        return None
    at = chance.choice(places)
    return _with(made, at, evolve(made.statements[at], values=made.statements[at].values[::-1]))


def _weight(chance: random.Random, made: Drawn) -> Drawn | None:
    """Another value of a weight that is read."""
    read = {value for s in made.statements for value in s.values}
    places = [i for i in range(len(made.seeds)) if made.inputs + i in read]
    if not places:
        return None
    at = chance.choice(places)
    return evolve(made, seeds=tuple(100 + seed if i == at else seed for i, seed in enumerate(made.seeds)))


def _more(chance: random.Random, made: Drawn) -> Drawn:
    """One statement more."""
    return evolve(made, statements=(*made.statements, _statement(chance, made.given + len(made.statements))))


CHANGES: tuple[Callable[[random.Random, Drawn], Drawn | None], ...] = (
    *(_operator, _argument, _wiring, _swapped, _weight, _more),
    lambda chance, made: evolve(made, edge=EDGES[_other(chance, EDGES.index(made.edge), len(EDGES))]),
    lambda chance, made: evolve(made, dtype=DTYPES[1 - DTYPES.index(made.dtype)]),
)


def changed(chance: random.Random, made: Drawn) -> Drawn:
    """The program with one thing changed."""
    while True:
        other = chance.choice(CHANGES)(chance, made)
        if other is not None and other != made:
            return other


def renamed(made: Drawn) -> Drawn:
    """The program with other names for inputs, weights and nodes."""
    return evolve(made, prefix=f"other{made.prefix}_")


def _program(made: Drawn) -> Program:
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    shape = (made.edge,) * 3
    names = [f"{made.prefix}x{i}" for i in range(made.inputs)]
    weights = {f"{made.prefix}w{i}": _values(seed, shape, made.dtype) for i, seed in enumerate(made.seeds)}
    nodes = [graph.placeholder(name) for name in (*weights, *names)]
    with mode:
        for node in nodes:
            node.meta["val"] = torch.empty(shape, dtype=made.dtype)
    values = [*nodes[len(weights) :], *nodes[: len(weights)]]
    for statement in made.statements:
        values.append(_called(graph, mode, statement, values, f"{made.prefix}v{len(values)}"))
    for i, node in enumerate(values[: made.inputs]):
        if not node.users:
            values.append(_node(graph, mode, aten.ceil.default, (node,), {}, f"{made.prefix}n{i}"))
    results = [node for node in values[made.given :] if not node.users]
    graph.output(tuple(results))
    inputs = tuple(make_port(node.name, node.meta["val"], {}) for node in values[: made.inputs])
    return Program(
        graph_module=torch.fx.GraphModule(torch.nn.Module(), graph),
        inputs=inputs,
        outputs=tuple(Output(node.name, name=f"{made.prefix}out{i}") for i, node in enumerate(results)),
        constants=FrozenDict({name: parameter_recipe(name) for name in weights}),
        buffers=FrozenDict(),
        parameters=FrozenDict(weights),
        shapes=ShapeEnvironment.from_ranges({}),
        in_spec=tree_flatten((tuple(0 for _ in inputs), {}))[1],
        out_spec=tree_flatten([0 for _ in results])[1],
        settings=CompilationSettings(min_block_size=1),
    )


def _values(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _called(
    graph: torch.fx.Graph, mode: FakeTensorMode, statement: Statement, values: Sequence[torch.fx.Node], name: str
) -> torch.fx.Node:
    operators, _, forms = FORMS[statement.form]
    rest = forms[statement.rest]
    kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
    args = (*(values[i] for i in statement.values), *(() if kwargs else rest))
    return _node(graph, mode, operators[statement.operator], args, kwargs, name)


def _node(
    graph: torch.fx.Graph, mode: FakeTensorMode, target: Any, args: tuple[Any, ...], kwargs: Any, name: str
) -> torch.fx.Node:
    node = graph.create_node("call_function", target, args, kwargs, name)
    with mode:
        node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]), **kwargs)
    return node


def compare(count: int, seed: int = 0) -> Iterator[int]:
    """Compares pairs, each program with the one before it; gives how many are done.

    An `AssertionError` shows the two.
    """
    chance = random.Random(seed)
    one = drawn(chance)
    key = one.key()
    for done in range(1, count + 1):
        other = changed(chance, one)
        again = other.key()
        assert key != again, (one, other)
        if done % 10 == 0:
            assert again == renamed(other).key(), other
        one, key = other, again
        if len(one.statements) > 8 or done % 20 == 0:
            one = drawn(chance)
            key = one.key()
        yield done


def main(count: int) -> None:
    """Compares so many pairs, and tells how far it is."""
    start = time.perf_counter()
    for done in compare(count):
        if done % max(1, count // 20) == 0:
            sys.stdout.write(f"{done} pairs, {time.perf_counter() - start:.0f} s\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
