"""Rebuild engines of a loaded program from the descriptions of its networks, since files contain no converters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from attrs import evolve

from pipeline.build.deduplicate import build_without_duplicates
from pipeline.build.remote_build import build_with_stored_weights, store
from pipeline.build.serialized_plans import BuildOrder
from pipeline.compiled import Compiled
from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.program import Partitioned
from pipeline.recipes import narrow_float64
from pipeline.runtime.snapshot import stored_value
from pipeline.stages.build import make_engine


def rebuild_engines(compiled: Compiled, partitioned: Partitioned) -> Compiled:
    """Build the engines of a loaded program again, with new weights: the parameters of ``partitioned``."""
    parameters = partitioned.program.parameters
    rows = zip(partitioned.engine_segments, compiled.networks, strict=True)
    orders = [BuildOrder.for_segment(segment, network, compiled.settings) for segment, network in rows]

    def value(name: str) -> torch.Tensor:
        recipe = compiled.refit_map.get(name)
        return stored_value(compiled.literals, name) if recipe is None else narrow_float64(recipe.evaluate(parameters))

    values = [LazyWeights(order.network, value) for order in orders]
    engines = build_without_duplicates(orders, values, lambda due: [_build_engine(orders[i], values[i]) for i in due])
    return evolve(compiled, partitioned=partitioned, engines=tuple(engines), agreement=None)


class LazyWeights(Mapping[str, torch.Tensor]):
    """The weights of a network by name, each computed when it is read."""

    def __init__(self, network: Network, value: Callable[[str], torch.Tensor]) -> None:
        self.names, self.value = [weight.name for weight in network.weights], value

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.value(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _build_engine(order: BuildOrder, weights: Mapping[str, torch.Tensor]) -> Engine:
    with tempfile.TemporaryDirectory(prefix="pipeline-rebuild-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "weights")
        return make_engine(order, *build_with_stored_weights(order, path, store(path, dict(weights))))
