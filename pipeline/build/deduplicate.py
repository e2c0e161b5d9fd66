"""Find networks of a program that are equal except for names, so that one engine can serve all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from attrs import evolve

from pipeline.aten.tensor_type import raw_bytes
from pipeline.build.serialized_plans import BuildOrder
from pipeline.network.canonical import Canonical, canonical, map_differing_names
from pipeline.network.engine import Engine


def build_without_duplicates(
    orders: Sequence[BuildOrder],
    weights: Sequence[Mapping[str, torch.Tensor]],
    build: Callable[[Sequence[int]], Iterable[Engine]],
) -> Iterable[Engine]:
    """Return an engine for each network, in order; equal networks share one. ``build`` takes the indices of the
    networks to build, and returns their engines."""
    if len(orders) == 1:
        return build([0])
    forms = [canonical(order.network, order.sizes) for order in orders]
    first = find_first_equal(orders, forms, weights)
    due = sorted({*first})
    built = dict(zip(due, build(due), strict=True))
    return [
        built[i] if i == source else engine_for_network(built[source], forms[source], orders[i].name, forms[i])
        for i, source in enumerate(first)
    ]


def find_first_equal(
    orders: Sequence[BuildOrder], canonical_networks: Sequence[Canonical], weights: Sequence[Mapping[str, torch.Tensor]]
) -> list[int]:
    """Return, for each network, the index of the first network that is equal, including the weights (its own index if
    no earlier network is). Weights that are inputs of the engine are not compared."""

    def is_equal(i: int, j: int) -> bool:
        if canonical_networks[i].text != canonical_networks[j].text or orders[i].refit_flags != orders[j].refit_flags:
            return False
        names = list(zip(canonical_networks[i].weights, canonical_networks[j].weights, strict=True))
        if any(orders[i].is_refittable_weight(a) != orders[j].is_refittable_weight(b) for a, b in names):
            return False
        return all(_same_bytes(weights[i][a], weights[j][b]) for a, b in names)

    found: list[int] = []
    for place in range(len(canonical_networks)):
        found.append(next((i for i in sorted({*found}) if is_equal(i, place)), place))
    return found


def engine_for_network(engine: Engine, built: Canonical, new_name: str, new_network: Canonical) -> Engine:
    """Return an engine, built from the network ``built``, renamed for ``new_network``, which has the same structure."""
    return evolve(
        engine,
        name=new_name,
        bindings=map_differing_names(
            new_network.bindings, (engine.bindings.get(each, each) for each in built.bindings)
        ),
        weights=map_differing_names(new_network.weights, (engine.weights.get(each, each) for each in built.weights)),
    )


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(raw_bytes(one), raw_bytes(other))
