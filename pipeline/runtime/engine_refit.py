"""Refit a serialized engine: return a new serialized engine with other weights."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import torch
from attrs import evolve

from pipeline.errors import RefitError
from pipeline.network.engine import Engine
from pipeline.recipes import narrow_float64
from pipeline.runtime.engine_buffers import describe_tensor
from pipeline.runtime.engine_load import LOG, collect_errors, load
from pipeline.trt import as_weights, dtype_name, trt


def refit(engine: Engine, weights: Mapping[str, torch.Tensor], changed: Collection[str] | None = None) -> Engine:
    """Return a copy of a serialized engine with these weights; the copy can be refitted, too.

    Args:
        engine: a refittable engine.
        weights: all weights of the engine, by name.
        changed: the names of weights that differ from the engine's; None for all. If TensorRT has folded a weight away,
            this is an error only for a changed weight.

    Raises:
        RefitError: some weights cannot be refitted; the message names each, with the reason.
        ExecutionError: there is no GPU, or the engine does not load.
    """
    names = engine.weights
    weights = {names.get(name, name): value for name, value in weights.items()}
    due = frozenset(weights if changed is None else (names.get(name, name) for name in changed))
    if not engine.refittable:
        raise RefitError(dict.fromkeys(sorted(due), f"{engine.name} was built with immutable_weights=True"))
    with collect_errors() as messages:
        loaded = load(engine)
        refitter = trt.Refitter(loaded, LOG)
        given = {name: narrow_float64(value.detach().cpu().contiguous()) for name, value in weights.items()}
        if not _set_weights(refitter, given, due):
            return engine
        if not refitter.refit_cuda_engine():
            raise RefitError(dict.fromkeys(sorted(due), f"TensorRT refused to refit {engine.name} ({messages()})"))
        plan = _serialize_refitted(loaded)
        if plan is None:
            reason = f"the refitted {engine.name} could not be serialized ({messages()})"
            raise RefitError(dict.fromkeys(sorted(due), reason))
    return evolve(engine, plan=plan, stripped=False, digest=hashlib.sha256(memoryview(plan)).hexdigest())


def supply_weights(engine: Engine, loaded: trt.ICudaEngine, weights: Mapping[str, torch.Tensor]) -> None:
    """Pass the network's weights, by name, to an engine that was loaded from a plan without weights.

    Raises:
        RefitError: TensorRT refuses some weights, or some weights are missing; the message names them.
    """
    named = {engine.weights.get(name, name): value for name, value in weights.items()}
    with collect_errors() as messages:
        refitter = trt.Refitter(loaded, LOG)
        given = {name: narrow_float64(value.detach().cpu().contiguous()) for name, value in named.items()}
        due = frozenset(refitter.get_all_weights())
        if _set_weights(refitter, given, due) and not refitter.refit_cuda_engine():
            reason = f"TensorRT refused the weights of {engine.name} ({messages()})"
            raise RefitError(dict.fromkeys(sorted(due), reason))


def _set_weights(refitter: trt.Refitter, weights: Mapping[str, torch.Tensor], changed: Collection[str]) -> bool:
    """Pass ``weights`` to TensorRT, and return whether it accepted at least one. Raise a RefitError if it refuses a
    weight that is in ``changed``, or needs a weight that is not in ``weights``."""
    known = frozenset(refitter.get_all_weights())
    refused = {name: _set_weight_or_explain(refitter, name, value, known) for name, value in weights.items()}
    reasons = {name: reason for name, reason in refused.items() if reason and name in changed}
    reasons |= {name: "the engine's network has no such weight" for name in sorted(changed) if name not in weights}
    if not reasons:
        missing = (name or "a weight without a name" for name in refitter.get_missing_weights())
        reasons = dict.fromkeys(missing, "TensorRT has combined it with others and needs its value as well")
    if reasons:
        raise RefitError(reasons)
    return not all(refused.values())


def _set_weight_or_explain(refitter: trt.Refitter, name: str, value: torch.Tensor, refittable: Collection[str]) -> str:
    """Pass a weight to TensorRT; return why it was refused, or "". ``refittable``: the weights that can be replaced."""
    if name not in refittable:
        return "TensorRT folded it into the engine or dropped it, so it cannot be replaced"
    given, wanted = as_weights(value), refitter.get_weights_prototype(name)  # RTX 1.4 accepts another dtype silently
    if (given.size, given.dtype) == (wanted.size, wanted.dtype) and refitter.set_named_weights(name, given):
        return ""
    holds = f"the engine holds {wanted.size} x {dtype_name(wanted.dtype)}"
    return f"TensorRT refused {describe_tensor(value.dtype, tuple(value.shape))}; {holds}"


def _serialize_refitted(loaded: trt.ICudaEngine) -> trt.IHostMemory:
    """Return the plan of a refitted engine, with its weights and still refittable."""
    config = loaded.create_serialization_config()
    flags = trt.SerializationFlag.__members__
    config.clear_flag(flags["EXCLUDE_WEIGHTS"])
    if "INCLUDE_REFIT" in flags:
        config.set_flag(flags["INCLUDE_REFIT"])
    return loaded.serialize_with_config(config)
