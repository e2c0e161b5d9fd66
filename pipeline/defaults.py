"""``pipeline.default``: the stages, joined."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from pipeline.compose import Pipeline
from pipeline.converters import DECOMPOSITIONS, DYNAMO_CONVERTERS
from pipeline.converters.decompositions import DecompositionTable
from pipeline.converters.registry import ConverterRegistry
from pipeline.settings import CompilationSettings
from pipeline.stages import Build, Decompose, Improve, Validate, convert, partition, refit_map


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
    """
    settings = (settings or CompilationSettings()).evolve(**fields)
    front = (Decompose(registry, decompositions), Improve(registry), Validate(registry))
    return Pipeline((*front, partition, convert, Build(executor), refit_map), settings)
