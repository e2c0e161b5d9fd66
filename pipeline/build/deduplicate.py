"""Find networks of a program that differ only in names, so that the same engine can serve all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from attrs import evolve

from pipeline.aten.tensor_type import raw_bytes
from pipeline.build.serialized_plans import Order
from pipeline.network.canonical import Canonical, canonical, match_names
from pipeline.network.engine import Engine


def built_once(
    orders: Sequence[Order],
    weights: Sequence[Mapping[str, torch.Tensor]],
    build: Callable[[Sequence[int]], Iterable[Engine]],
) -> Iterable[Engine]:
    """Return the engines of a program's networks; ``build`` builds the engines of the networks at some indices."""
    if len(orders) == 1:
        return build([0])
    forms = [canonical(order.network, order.sizes) for order in orders]
    first = first_equal(orders, forms, weights)
    due = sorted({*first})
    built = dict(zip(due, build(due), strict=True))
    return [
        built[i] if i == source else serving(built[source], forms[source], orders[i].name, forms[i])
        for i, source in enumerate(first)
    ]


def first_equal(
    orders: Sequence[Order], forms: Sequence[Canonical], weights: Sequence[Mapping[str, torch.Tensor]]
) -> list[int]:
    """Return, for each network, the index of the first network that equals it, weights included (its own index if no
    earlier network does). Weights that are inputs of the engine are not compared."""

    def is_equal(i: int, j: int) -> bool:
        if forms[i].text != forms[j].text or orders[i].refit_flags != orders[j].refit_flags:
            return False
        names = list(zip(forms[i].weights, forms[j].weights, strict=True))
        if any(orders[i].replaceable(a) != orders[j].replaceable(b) for a, b in names):
            return False
        return all(_same_bytes(weights[i][a], weights[j][b]) for a, b in names)

    found: list[int] = []
    for place in range(len(forms)):
        found.append(next((i for i in sorted({*found}) if is_equal(i, place)), place))
    return found


def serving(engine: Engine, form: Canonical, name: str, other: Canonical) -> Engine:
    """Return a network's engine for another network of the same structure, with the other network's names."""
    return evolve(
        engine,
        name=name,
        bindings=match_names(other.bindings, (engine.bindings.get(each, each) for each in form.bindings)),
        weights=match_names(other.weights, (engine.weights.get(each, each) for each in form.weights)),
    )


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(raw_bytes(one), raw_bytes(other))
