"""Refit a serialized engine with new weights: a new serialized engine."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from attrs import evolve

from pipeline.aten.types import Leaf
from pipeline.errors import RefitError
from pipeline.network.engine import Engine
from pipeline.recipes import held
from pipeline.runtime.engine_buffers import described
from pipeline.runtime.engine_load import LOG, listening, load
from pipeline.trt import dtype_name, trt, weights_of


def refit(engine: Engine, weights: Mapping[str, torch.Tensor], changed: Collection[str] | None = None) -> Engine:
    """Return the engine with these weights, refittable again.

    Args:
        engine: a refittable engine; it is not changed.
        weights: all its weights by name.
        changed: those that differ from the engine's; None for all. TensorRT may have folded weights away: for an
            unchanged one that does not matter, a changed one is an error.

    Raises:
        RefitError: some weights cannot be refitted; the message names each, with the reason.
        ExecutionError: there is no GPU, or the engine does not load.
    """
    names = engine.weights
    weights = {names.get(name, name): value for name, value in weights.items()}
    due = frozenset(weights if changed is None else (names.get(name, name) for name in changed))
    if not engine.refittable:
        raise RefitError(dict.fromkeys(sorted(due), f"{engine.name} was built with immutable_weights=True"))
    with listening() as said:
        loaded = load(engine)
        refitter = trt.Refitter(loaded, LOG)
        kept = {name: _weight(value) for name, value in weights.items()}
        if not _supply(refitter, kept, due):
            return engine
        if not refitter.refit_cuda_engine():
            raise RefitError(dict.fromkeys(sorted(due), f"TensorRT refused to refit {engine.name} ({said()})"))
        plan = _serialized(loaded)
        if plan is None:
            reason = f"the refitted {engine.name} could not be serialized ({said()})"
            raise RefitError(dict.fromkeys(sorted(due), reason))
    return evolve(engine, plan=plan, stripped=False, digest=hashlib.sha256(memoryview(plan)).hexdigest())


def supply(engine: Engine, loaded: trt.ICudaEngine, weights: Mapping[str, torch.Tensor]) -> None:
    """Supply the weights of its network, by name, to an engine that was loaded from a plan without them.

    Raises:
        RefitError: TensorRT refuses or misses weights; the message names them.
    """
    named = {engine.weights.get(name, name): value for name, value in weights.items()}
    with listening() as said:
        refitter = trt.Refitter(loaded, LOG)
        kept = {name: _weight(value) for name, value in named.items()}
        due = frozenset(refitter.get_all_weights())
        if _supply(refitter, kept, due) and not refitter.refit_cuda_engine():
            reason = f"TensorRT refused the weights of {engine.name} ({said()})"
            raise RefitError(dict.fromkeys(sorted(due), reason))


def _weight(value: torch.Tensor) -> torch.Tensor:
    """A weight as networks hold it."""
    return held(value.detach().cpu().contiguous())


def _supply(refitter: trt.Refitter, weights: Mapping[str, torch.Tensor], due: Collection[str]) -> bool:
    """Hand all weights to TensorRT; whether it took any."""
    known = frozenset(refitter.get_all_weights())
    refused = {name: _refusal(refitter, name, value, known) for name, value in weights.items()}
    reasons = {name: reason for name, reason in refused.items() if reason and name in due}
    reasons |= {name: "the engine's network has no such weight" for name in sorted(due) if name not in weights}
    if not reasons:
        missing = (name or "a weight without a name" for name in refitter.get_missing_weights())
        reasons = dict.fromkeys(missing, "TensorRT has combined it with others and needs its value as well")
    if reasons:
        raise RefitError(reasons)
    return not all(refused.values())


def _refusal(refitter: trt.Refitter, name: str, value: torch.Tensor, known: Collection[str]) -> str:
    """Hand a weight to TensorRT; why it was refused, or nothing."""
    if name not in known:
        return "TensorRT folded it into the engine or dropped it, so it cannot be replaced"
    given, held = weights_of(value), refitter.get_weights_prototype(name)  # TensorRT 1.4 takes another dtype silently
    if (given.size, given.dtype) == (held.size, held.dtype) and refitter.set_named_weights(name, given):
        return ""
    holds = f"the engine holds {held.size} x {dtype_name(held.dtype)}"
    return f"TensorRT refused {described(value.dtype, tuple(value.shape))}; {holds}"


def _serialized(loaded: Any) -> Leaf:
    """The plan of a refitted engine: with its weights, and refittable."""
    config = loaded.create_serialization_config()
    flags = trt.SerializationFlag.__members__
    config.clear_flag(flags["EXCLUDE_WEIGHTS"])
    if "INCLUDE_REFIT" in flags:
        config.set_flag(flags["INCLUDE_REFIT"])
    return loaded.serialize_with_config(config)
