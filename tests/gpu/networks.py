"""Engines of the little networks that the reference's tests make, and both run side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from pipeline.network.description import Network, Profile
from pipeline.network.engine import Engine
from pipeline.runtime.engine_load import LIBRARY
from pipeline.trt import trt
from tests.runtime.engine_runner import EngineRunner
from tests.runtime.reference_networks import BUILDER, LOG, Net

Sizes = tuple[int, ...]
Ranges = Mapping[str, tuple[Sizes, Sizes, Sizes]]


def engine_of(net: Net, ranges: Ranges | None = None, **flags: bool) -> tuple[Engine, Network]:
    """The engine of a finished network, for these ranges of its inputs (default: for what they hold alone)."""
    network = net.described()
    config = BUILDER.create_builder_config()
    for flag, wanted in flags.items():
        if wanted:
            config.set_flag(trt.BuilderFlag.__members__[flag])
    profile = _profile(net, ranges or {}, config)
    mark = LOG.position()
    plan = BUILDER.build_serialized_network(net.net, config)
    assert plan is not None, f"no engine for\n{network}\nTensorRT says {LOG.errors_since(mark)}"
    digest = hashlib.sha256(memoryview(plan)).hexdigest()
    return Engine("engine", plan, LIBRARY, flags.get("REFIT", False), digest), attrs.evolve(network, profile=profile)


def _profile(net: Net, ranges: Ranges, config: Any) -> Profile:
    profile = BUILDER.create_optimization_profile()
    rows = []
    for index in range(net.net.num_inputs):
        tensor = net.net.get_input(index)
        value = net.inputs[tensor.name]
        if tensor.is_shape_tensor:
            held = tuple(int(v) for v in value.reshape(-1).tolist())
            low, opt, high = ranges.get(tensor.name, (held,) * 3)
            profile.set_shape_input(tensor.name, low, opt, high)
        elif -1 in tuple(tensor.shape):
            low, opt, high = ranges.get(tensor.name, (tuple(value.shape),) * 3)
            profile.set_shape(tensor.name, low, opt, high)
        else:
            continue
        rows.append((tensor.name, low, opt, high))
    if rows:
        assert config.add_optimization_profile(profile) >= 0, f"TensorRT refused the profile {rows}"
    return Profile(tuple(rows))


def runner_of(net: Net, ranges: Ranges | None = None) -> EngineRunner:
    """The engine of a finished network, loaded."""
    return EngineRunner(*engine_of(net, ranges))


def on_gpu(net: Net, inputs: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """What the engine of a network gives, on the CPU."""
    given = list(net.inputs.values()) if inputs is None else inputs
    return [result.cpu() for result in runner_of(net)(given)]
