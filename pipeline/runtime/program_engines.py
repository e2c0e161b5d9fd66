"""Load a program's engines: for calls, or to detect engines that do not load on the current GPU."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import torch
from attrs import field, frozen

from pipeline.aten.collectives import process_groups
from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network
from pipeline.recipes import narrow_float64
from pipeline.records.kernels import NO_KERNELS, Kernels
from pipeline.runtime.engine_cache import RuntimeCache, machine_key
from pipeline.runtime.engine_load import LoadedEngine, UnloadableError, collect_errors, is_for_this_gpu
from pipeline.runtime.engine_refit import supply_weights
from pipeline.runtime.opened_file import FileWeights
from pipeline.runtime.snapshot import Snapshot, stored_value
from pipeline.settings import CompilationSettings
from pipeline.trt import has_gpu, trt

log = logging.getLogger(__name__)

MEMORY: Final = ("out of memory", "outofmemory", "memoryallocation", "gpu memory")
"""Texts in TensorRT's error messages, in lower case, that mean that the GPU has too little memory for an engine."""
THREADS: Final = min(4, max(1, (os.cpu_count() or 1) // 2))
"""The number of engines that load at a time: TensorRT-RTX compiles an engine's kernels on 2 to 3 processors."""


@frozen
class LoadResults:
    """The result of `try_loading_engines`. ``refused``: TensorRT's message for each engine that does not load, by name.
    ``kernels``: those that TensorRT-RTX compiled meanwhile, unless a cache file has them."""

    refused: FrozenDict[str, str] = field(factory=FrozenDict)
    kernels: Kernels = NO_KERNELS


def try_loading_engines(compiled: Compiled, *, keep: bool) -> LoadResults | None:
    """Test whether each engine loads on the current GPU: load it with an execution context, and free it again.

    Args:
        compiled: the program; its settings say how its engines are loaded.
        keep: save the compiled kernels to the cache that the program's modules read.

    Returns:
        None if loading cannot be tried: without a GPU, for a program compiled for other GPUs, or if the GPU has too
        little memory.

    Raises:
        ExecutionError: another library or version built an engine, or TensorRT refuses its weights or their budget.
    """
    settings = compiled.settings
    if not has_gpu() or not is_for_this_gpu(settings.compute_capabilities):
        return None
    cache = RuntimeCache.open(compiled.networks, settings.runtime_cache if keep else False)
    failures = _load_failures(compiled, cache)
    for name, message in failures.items():
        if any(each in message.lower() for each in MEMORY):
            log.info("%s was not loaded for a trial, for lack of GPU memory: %s", name, message)
            return None
    if cache is None or failures:
        return LoadResults(FrozenDict(failures))
    cache.save()
    return LoadResults() if cache.path else LoadResults(kernels=Kernels(machine_key(), cache.serialize()))


def compile_kernels(engines: Iterable[object], cache: RuntimeCache | None) -> None:
    """Let TensorRT-RTX compile the kernels of several engines concurrently, if the cache has no kernels. Contexts
    created later find these kernels. If this fails for an engine, the error is raised when its context is created."""
    found = list({id(each.cuda_engine): each for each in engines if isinstance(each, LoadedEngine)}.values())
    if cache is None or not cache.started_empty or len(found) < 2:
        return
    device = torch.cuda.current_device()

    def compile_one(loaded: LoadedEngine) -> None:
        with torch.cuda.device(device), suppress(UnloadableError), collect_errors() as messages:
            context, config = loaded.new_context(messages)
            del context, config  # in this order

    with ThreadPoolExecutor(THREADS, "pipeline-load") as pool:
        list(pool.map(compile_one, found))


def compiled_kernels(compiled: Compiled) -> Kernels:
    """Return the kernels that TensorRT-RTX compiled for a program's engines, to be saved with it: those in the program,
    or else those in the cache file for the current GPU; empty if there are none."""
    if compiled.kernels or not compiled.engines or not has_gpu() or compiled.settings.runtime_cache is False:
        return compiled.kernels
    cache = RuntimeCache.open(compiled.networks, compiled.settings.runtime_cache)
    stored = None if cache is None else cache.stored_kernels()
    return compiled.kernels if stored is None else Kernels(machine_key(), stored)


def copy_cached_kernels(from_program: Compiled, to_program: Compiled) -> None:
    """Copy the kernels in the cache file of ``from_program`` to that of ``to_program``, which has some of its engines,
    so that they are not compiled again."""
    folder = from_program.settings.runtime_cache
    source, target = (RuntimeCache.open(each.networks, folder) for each in (from_program, to_program))
    if source is not None and target is not None and to_program.engines:
        target.copy_kernels_from(source)


def _load_failures(compiled: Compiled, cache: RuntimeCache | None) -> dict[str, str]:
    """Return TensorRT's message for each engine that does not load, by name. Engines with equal plans load once.

    Several engines load concurrently, since TensorRT-RTX compiles their kernels. An engine that fails is loaded again
    alone, since the messages may be another engine's, and other engines may have used the memory.
    """
    alike: dict[str, list[int]] = {}
    for index, engine in enumerate(compiled.engines):
        alike.setdefault(engine.name if engine.stripped or not engine.digest else engine.digest, []).append(index)
    parameters, device = Snapshot(compiled.program), torch.cuda.current_device()

    def refusal(index: int) -> str:
        try:
            with torch.cuda.device(device), collect_errors() as messages:
                loaded = load_engine(compiled, index, compiled.settings, cache, parameters)
                context, config = loaded.new_context(messages)
                del context, config  # in this order
        except UnloadableError as error:
            return error.message
        return ""

    first = [indices[0] for indices in alike.values()]
    with ThreadPoolExecutor(1 if any(e.stripped for e in compiled.engines) else THREADS, "pipeline-load") as pool:
        messages = list(pool.map(refusal, first))
    found = {index: refusal(index) for index, message in zip(first, messages, strict=True) if message}
    failed = {indices[0]: indices for indices in alike.values() if found.get(indices[0])}
    return {compiled.engines[i].name: found[index] for index, indices in failed.items() for i in indices}


def load_engine(
    compiled: Compiled,
    engine_index: int,
    settings: CompilationSettings,
    cache: RuntimeCache | None,
    parameters: Mapping[str, torch.Tensor],
) -> LoadedEngine:
    """Load an engine of a program; its kernels are in ``cache``, its weights in ``parameters`` if the plan has none.

    Raises:
        ExecutionError: as `LoadedEngine.load`.
    """
    engine, network = compiled.engines[engine_index], compiled.networks[engine_index]

    def prepare(loaded: trt.ICudaEngine) -> None:
        if engine.stripped:
            supply_weights(engine, loaded, network_weights(compiled, network, parameters))
        if settings.weight_streaming_budget is not None:
            set_weight_streaming_budget(engine.name, loaded, settings.weight_streaming_budget)

    return LoadedEngine.load(
        engine,
        network,
        prepare,
        specialization=settings.kernel_specialization,
        cache=cache,
        targets=settings.compute_capabilities,
        group=process_group_of(compiled, engine_index),
    )


def set_weight_streaming_budget(engine_name: str, loaded: trt.ICudaEngine, budget: int) -> None:
    """Limit the GPU memory for an engine's weights, before contexts exist; each call streams the rest from the host.

    Raises:
        ExecutionError: TensorRT refuses the budget.
    """
    size = int(loaded.streamable_weights_size)
    if not size:
        log.warning("weight_streaming_budget has no effect: no weights of %s can be streamed", engine_name)
        return
    wanted = min(budget, size)
    loaded.weight_streaming_budget_v2 = wanted
    if loaded.weight_streaming_budget_v2 != wanted:
        streamable = f"{engine_name} has {size} bytes of weights that can be streamed"
        raise ExecutionError(f"TensorRT refused weight_streaming_budget={budget}: {streamable}", "set a larger budget")


def process_group_of(compiled: Compiled, index: int) -> str:
    """Return the name of the process group that an engine's collectives join; empty if it has no collectives.

    The name comes from the program's graph, whose operators are checked at loading; an engine's plan cannot be checked.
    """
    if compiled.program.sharding is None:
        return ""
    inside = {name for segment in compiled.partitioned.engine_segments[index : index + 1] for name in segment.nodes}
    return next(iter(process_groups(node for node in compiled.program.graph.nodes if node.name in inside)), "")


def network_weights(
    compiled: Compiled, network: Network, parameters: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the weights of an engine's network, by name: computed from ``parameters``, or literals of the program."""
    mapped, found = isinstance(compiled.literals, FileWeights), dict[str, torch.Tensor]()
    for name in (weight.name for weight in network.weights):
        if name in compiled.refit_map:
            found[name] = narrow_float64(compiled.refit_map[name].evaluate(parameters))
        else:
            literal = stored_value(compiled.literals, name)
            found[name] = literal.clone() if mapped else literal
    return found
