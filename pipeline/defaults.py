"""``pipeline.default``: the stages, joined."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from pipeline.compose.pipelines import Pipeline
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry
from pipeline.settings import CompilationSettings
from pipeline.stages import Build, Decompose, Improve, Validate, convert, partition, refit_map
from pipeline.trt import CAPABILITIES, LIBRARY


def default(
    settings: CompilationSettings | None = None,
    *,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    decompositions: DecompositionTable = DECOMPOSITIONS,
    executor: Executor | None = None,
    **fields: Any,
) -> Pipeline:
    """decompose → improve → validate → partition → convert → build → refit_map, as a ``Pipeline``.

    Args:
        settings: the settings; default ones if None.
        registry: the converters.
        decompositions: our own decompositions, which are asked before converters.
        executor: builds the engines of one program at the same time: any ``concurrent.futures.Executor``, which stays
            the caller's (see ``pipeline.stages.Build``). None: one after the other, in this process.
        fields: fields of ``CompilationSettings`` that differ from ``settings``.

    Raises:
        TypeError: a field that ``CompilationSettings`` does not have, or a value of a wrong type.
        ValueError: a value out of range, or ``compute_capabilities`` that this TensorRT does not build for.
    """
    _check(settings, registry, decompositions)
    settings = (settings or CompilationSettings()).evolve(**fields)
    _check_targets(settings.compute_capabilities)
    front = (Decompose(registry, decompositions), Improve(registry), Validate(registry))
    return Pipeline((*front, partition, convert, Build(executor), refit_map), settings)


def _check(settings: Any, registry: Any, decompositions: Any) -> None:
    if not isinstance(settings, CompilationSettings | None):
        raise TypeError(f"settings are CompilationSettings or None, not {settings!r}; fields are given by name")
    if not isinstance(registry, ConverterRegistry):
        adopted = "; ConverterRegistry.from_legacy adopts a dict of functions" if isinstance(registry, dict) else ""
        raise TypeError(f"registry is a {type(registry).__name__}, a ConverterRegistry is due{adopted}")
    if not isinstance(decompositions, DecompositionTable):
        raise TypeError(f"decompositions is a {type(decompositions).__name__}, a DecompositionTable is due")


def _check_targets(capabilities: tuple[str, ...]) -> None:
    """Before anything is captured: the build, which would say so too, comes last."""
    if unknown := [c for c in capabilities if c not in CAPABILITIES.compute_capabilities]:
        known = ", ".join(CAPABILITIES.compute_capabilities)
        builds = f"builds for {known}" if known else "builds for the GPU at hand only: leave them empty"
        raise ValueError(f"compute_capabilities: {LIBRARY} does not know {unknown[0]}; it {builds}")
