"""Sample inputs for verification: the user's, or generated inputs of the smallest, optimal and largest sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import torch
from attrs import evolve, field, frozen
from torch.utils._pytree import tree_unflatten

from pipeline.aten.op_predicates import moves_elements
from pipeline.aten.types import Argument, Leaf
from pipeline.frozen import FrozenDict
from pipeline.inputs import unwrap_constant
from pipeline.program import Port, Program
from pipeline.records.wording import kind_of
from pipeline.runtime.inputs import bind_symbols, flatten_inputs
from pipeline.shapes.environment import Range, evaluate_size

Arguments: TypeAlias = tuple[tuple[Leaf, ...], dict[str, Leaf]]
UserInputs: TypeAlias = Callable[[Mapping[str, int]], Leaf] | Sequence[Leaf] | None
End: TypeAlias = Literal["smallest", "optimal", "largest"]

ENDS: Final[Mapping[End, Callable[[Range], int]]] = {
    "smallest": lambda r: r.min,
    "optimal": lambda r: r.opt,
    "largest": lambda r: r.max,
}
"""For each sample, the function that chooses its size from a range: the minimum, the optimum or the maximum."""

MAX_TRIED_SIZES = 64
"""The number of sizes next to the end of a range that are tried if the end itself violates a relation between sizes."""

aten = torch.ops.aten


@frozen
class Sample:
    """The inputs of one call, in the program's order. ``others``: alternative inputs if eager rejects these."""

    name: str
    sizes: FrozenDict[str, int]
    leaves: tuple[Leaf, ...] = field(eq=False, repr=False)
    others: tuple[Leaf, ...] | None = field(default=None, eq=False, repr=False)

    def arguments(self, program: Program, device: torch.device) -> Arguments:
        """Return new positional and keyword arguments with the sample's values, on a device."""
        leaves = [v.to(device, copy=True) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        args, kwargs = tree_unflatten(leaves, program.in_spec)
        return tuple(args), dict(kwargs)


def create_samples(program: Program, source: Program, inputs: UserInputs = None) -> tuple[Sample, ...]:
    """Create sample inputs for a program: the user's, or generated ones that suit ``source``, the captured program.

    inputs: None to generate inputs: from the example's values if the program was captured with tensors, else random
        with a fixed seed. Otherwise a sequence of calls, or a function that returns a call, given the sizes (by input:
        ``x.shape[0]``). A call is a tuple of positional inputs, a dict of keyword inputs, or both as ``(tuple, dict)``.
    """
    if inputs is not None and not callable(inputs):
        return tuple(_user_sample(program, f"inputs[{i}]", call) for i, call in enumerate(inputs))
    if inputs is not None:
        return tuple(_user_sample(program, n, inputs(sizes_by_location(program, s))) for n, s in sizes_to_try(program))
    return tuple(create_sample(program, sizes, name, source) for name, sizes in sizes_to_try(program))


def create_sample(
    program: Program, sizes: Mapping[str, int], name: str = "given", source: Program | None = None
) -> Sample:
    """Generate the inputs of a call with these sizes (by symbol), as `create_samples` does: indices suit the tables in
    ``source``, the captured program (None: ``program``)."""
    limits = index_limits(source or program)
    values = [_input_and_alternative(program, i, port, sizes, limits) for i, port in enumerate(program.inputs)]
    first, second = zip(*values, strict=True) if values else ((), ())
    return Sample(name, FrozenDict(sizes_by_location(program, sizes)), tuple(first), tuple(second))


def _user_sample(program: Program, name: str, call: object) -> Sample:
    """Create a sample from a call as users pass it: a tuple, a dict, or both (see `create_samples`)."""
    leaves = flatten_inputs(program, *split_call_inputs(call))
    return Sample(name, FrozenDict(sizes_by_location(program, bind_symbols(program, leaves))), tuple(leaves))


def split_call_inputs(call: object) -> Arguments:
    """Split the inputs of a call, as the user passed them, into positional and keyword inputs."""
    if isinstance(call, Mapping):
        return (), dict(call)
    if not isinstance(call, tuple | list):
        raise TypeError(f"inputs: each call must be a tuple of inputs, a dict, or (tuple, dict), got {kind_of(call)}")
    if len(call) == 2 and isinstance(call[0], tuple) and isinstance(call[1], dict):
        return call[0], call[1]
    return tuple(call), {}


def sizes_by_location(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes under the names that users see, input and dim: ``x.shape[0]``."""
    symbols = program.shapes.symbols
    locations = {n: symbols[n].places[0] if n in symbols and symbols[n].places else n for n in sizes}
    return {location: sizes[name] for name, location in locations.items()}


def sizes_to_try(program: Program) -> list[tuple[End, dict[str, int]]]:
    """Return the smallest, optimal and largest sizes that a call may have, without duplicates."""
    found: dict[tuple[int, ...], tuple[End, dict[str, int]]] = {}
    order: tuple[End, ...] = ("optimal", "smallest", "largest")
    for name in order:
        sizes = _feasible_sizes(program, ENDS[name])
        found.setdefault(tuple(sizes.values()), (name, sizes))
    return sorted(found.values(), key=lambda row: list(ENDS).index(row[0]))


def tuned_sizes(program: Program, profile: int | None = None) -> list[dict[str, int]]:
    """Return the sizes at which a program's speed is measured, each a dict by symbol: the optimal ones, for which
    engines are tuned. For a profile (its index), also return smaller ones if its range ends at the optimum: there, a
    symbol has a quarter of its optimal size."""
    narrowed = {} if profile is None else program.profiles[profile]
    symbols = program.shapes.symbols
    own = {name: evolve(symbol, range=narrowed.get(name, symbol.range)) for name, symbol in symbols.items()}
    program = evolve(program, shapes=evolve(program.shapes, symbols=FrozenDict(own)))
    smaller = _feasible_sizes(program, lambda r: max(r.min, r.opt // 4) if r.opt == r.max else r.opt)
    optimal = _feasible_sizes(program, ENDS["optimal"])
    return [optimal] if smaller == optimal or profile is None else [optimal, smaller]


def _feasible_sizes(program: Program, choose: Callable[[Range], int]) -> dict[str, int]:
    """Return, by symbol, the size that ``choose`` picks from its range (``lambda r: r.max``); if these sizes violate a
    relation between sizes, such as ``n <= m``, return the nearest ones that do not."""
    read = {s.name for p in program.inputs for d in _size_exprs(p) if not isinstance(d, int) for s in d.free_symbols}
    ranges = {name: program.shapes[name] for name in program.shapes if name in read}
    sizes = {name: choose(r) for name, r in ranges.items()}
    if _satisfies_relations(program, sizes):
        return sizes
    sizes = {name: r.opt for name, r in ranges.items()}
    for name, r in ranges.items():
        nearest = range(choose(r), r.opt, 1 if choose(r) < r.opt else -1)[:MAX_TRIED_SIZES]
        sizes[name] = next((v for v in nearest if _satisfies_relations(program, {**sizes, name: v})), r.opt)
    return sizes


def _size_exprs(port: Port) -> Sequence[Leaf]:
    """Return the size expressions of an input: a tensor's sizes, an int's value, or nothing."""
    return port.shape if port.kind == "tensor" else (port.value,) if port.kind == "symint" else ()


def _satisfies_relations(program: Program, sizes: Mapping[str, int]) -> bool:
    """Return whether these sizes satisfy the relations between the program's sizes."""
    if not all(r.holds(sizes) for r in program.shapes.relations if r.symbols <= sizes.keys()):
        return False
    rows = ((d, r) for p in program.inputs for d, r in zip(_size_exprs(p), p.ranges, strict=False))
    return all(r.min <= evaluate_size(d, sizes) <= r.max for d, r in rows)


def _input_and_alternative(
    program: Program, index: int, port: Port, sizes: Mapping[str, int], limits: Mapping[str, int]
) -> tuple[Any, Any]:
    """Generate the value of one input, and an alternative value for the case that eager rejects the first. ``limits``:
    for inputs that index a table, by name, the table's length."""
    if port.kind != "tensor":
        value = unwrap_constant(port.value) if port.kind == "constant" else evaluate_size(port.value, sizes)
        return value, value
    shape = [evaluate_size(d, sizes) for d in port.shape]
    example = program.examples.get(port.name)
    if example is None or example.dtype != port.dtype or example.dim() != len(shape):
        drawn = _random_tensor(port, shape, limits.get(port.name), index)
        return drawn, drawn
    example = example.detach()
    if list(example.shape) == shape or not example.numel():
        value = example.clone() if list(example.shape) == shape else example.new_zeros(shape)
        return value, value
    return _resample(example, shape, index), _crop_or_repeat(example, shape)


def _resample(example: torch.Tensor, shape: Sequence[int], seed: int) -> torch.Tensor:
    """Return random elements of the example in a new shape, so that token ids stay valid and masks stay masks."""
    generator = torch.Generator().manual_seed(seed)
    flat = example.flatten()
    indices = torch.randint(0, flat.numel(), tuple(shape), generator=generator)
    return flat[indices.to(flat.device)]


def _crop_or_repeat(example: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return the example, cropped or periodically repeated to a new shape; cropped values stay in order (positions)."""
    for dim, size in enumerate(shape):
        indices = torch.arange(size, device=example.device) % max(example.shape[dim], 1)
        example = example.index_select(dim, indices)
    return example.clone()


def _random_tensor(port: Port, shape: Sequence[int], limit: int | None, seed: int) -> torch.Tensor:
    """Return a random tensor for an input: normal floats, bools, indices below ``limit``, or integers 0 and 1."""
    assert port.dtype is not None
    generator = torch.Generator().manual_seed(seed)
    if port.dtype.is_complex:
        return torch.view_as_complex(torch.randn(*shape, 2, generator=generator, dtype=torch.float64)).to(port.dtype)
    if port.dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=generator).to(port.dtype)
    most = 2 if port.dtype == torch.bool else min(limit or 2, torch.iinfo(port.dtype).max)
    return torch.randint(0, most, tuple(shape), generator=generator).to(port.dtype)


def index_limits(program: Program) -> dict[str, int]:
    """Return, for each input that is used as an index, the length of the smallest table that it indexes."""
    limits: dict[str, int] = {}
    for node in program.graph.nodes:
        for index, entries in _table_lookups(node):
            name = source_before_moves(index).name
            limits[name] = min(entries, limits.get(name, entries))
    return {port.name: limits[port.name] for port in program.inputs if port.name in limits}


def _table_lookups(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int]]:
    """Yield the index tensors that a node reads, each with the length of the indexed table, if that is static."""
    args: Argument = node.args
    if node.target in (aten.embedding.default, aten._embedding_bag.default, aten.embedding_bag.padding_idx):
        read = [(0, args[1])]
    elif node.target in (aten.index_select.default, aten.gather.default):
        read = [(args[1], args[2])]
    else:
        read = list(enumerate(args[1])) if node.target is aten.index.Tensor else []
    shape = args[0].meta["val"].shape if read and isinstance(args[0], torch.fx.Node) else ()
    for dim, index in read if shape else ():
        if isinstance(index, torch.fx.Node) and isinstance(shape[dim], int):
            yield index, shape[dim]


def source_before_moves(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that computes the elements which ``node`` only moves or casts (views, copies, casts)."""
    while moves_elements(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node
