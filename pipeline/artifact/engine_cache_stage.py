"""``cached``: a stage in place of ``build`` that reads engines from a store; it builds and saves missing engines."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve, field, frozen

from pipeline.artifact.engine_entry import CorruptEntryError, EngineEntry, engine_key, pack, tensor_digests, unpack
from pipeline.artifact.engine_store import DiskStore, EngineStore, FsspecStore, StoreInMemory
from pipeline.aten.types import Function
from pipeline.build.deduplicate import engine_for_network
from pipeline.build.serialized_plans import BuildOrder, Plan
from pipeline.compose.pipelines import Pipeline, StageLike, report
from pipeline.errors import ArtifactWarning, warn
from pipeline.frozen import FrozenDict
from pipeline.network.canonical import Canonical, canonical, map_differing_names
from pipeline.network.engine import Engine
from pipeline.network.handle import NetworkHandle
from pipeline.program import Built, Converted, Program, Segment
from pipeline.runtime.engine_refit import refit
from pipeline.settings import CompilationSettings
from pipeline.stages.build import build, make_engine
from pipeline.stages.convert import output_binding_names
from pipeline.stages.unbuilt import unbuilt
from pipeline.trt import has_gpu

log = logging.getLogger(__name__)
Files: TypeAlias = DiskStore | StoreInMemory


@frozen
class EngineRequest:
    """A request for one engine of a program: what to build (``order``), and the key in the engine cache (``key``).
    ``values``: the SHA-256 of each refittable weight by name. The key does not depend on them, so a cached engine may
    have other values, and is then refitted."""

    order: BuildOrder
    handle: NetworkHandle = field(eq=False, repr=False)
    form: Canonical = field(repr=False)
    key: str
    values: Mapping[str, str] = field(repr=False)

    @property
    def key_with_weights(self) -> tuple[str, ...]:
        """A key that is equal for two networks if one engine can serve both without a refit."""
        return (self.key, *self.values.values())

    def cache_entry_of(self, engine: Engine) -> EngineEntry:
        """Return the cache entry that describes an engine built for this request."""
        values = tuple(self.values.get(name, "") for name in self.form.weights)
        bindings = tuple(engine.bindings.get(name, name) for name in self.form.bindings)  # the plan's names
        weights = tuple(engine.weights.get(name, name) for name in self.form.weights)
        return EngineEntry(self.key, engine.library, engine.digest, bindings, weights, values)

    def engine_from_entry(self, entry: EngineEntry, plan: bytes | mmap.mmap) -> Engine | None:
        """Return the engine of a cache entry, refitted if its weights differ; None if it cannot be refitted."""
        found = evolve(
            make_engine(self.order, Plan(entry.digest, entry.library), plan),
            bindings=_map_to_entry_names(self.form.bindings, entry.bindings),
            weights=_map_to_entry_names(self.form.weights, entry.weights),
        )
        held = dict(zip(self.form.weights, entry.values, strict=True))
        changed = {name for name, value in self.values.items() if held[name] != value}
        if not changed or found.stripped:
            return found
        weights = {name: self.handle.weights[name] for name in self.form.weights}
        return refit(found, weights, changed) if has_gpu() else None


@frozen
class Cached:
    """A stage that looks engines up in a store, and calls the stage ``build`` for missing engines. ``reuse``: read
    engines from the store. ``keep``: save built engines."""

    store: EngineStore = field(hash=False)
    build: Function = build
    reuse: bool = True
    keep: bool = True
    name: str = field(default="build", repr=False)

    @store.validator
    def _check_store(self, _: object, store: object) -> None:
        """Raise a `TypeError` if ``store`` is a class or lacks ``load`` or ``save``; attrs calls this validator."""
        if isinstance(store, type) or not isinstance(store, EngineStore):
            raise TypeError(f"store is {store!r}: expected an object with the methods load(key) and save(key, data)")

    def __call__(self, converted: Converted) -> Built:
        """Return the engines of all networks; equal networks share one plan."""
        wanted = list(engine_requests(converted))
        files = self.store if isinstance(self.store, DiskStore) else StoreInMemory(self.store)
        found = {i: self._load_cached_engine(files, each, i, len(wanted)) for i, each in enumerate(wanted)}
        engines = {i: engine for i, engine in found.items() if engine is not None}
        sources = {each.key_with_weights: i for i, each in reversed([*enumerate(wanted)]) if i not in engines}
        if sources:
            with files.lock_builds(key for key, *_ in sources):
                engines |= self._build_missing(files, converted, wanted, sorted(sources.values()))
        for i, each in enumerate(wanted):
            if i not in engines:
                source = sources[each.key_with_weights]
                engines[i] = engine_for_network(engines[source], wanted[source].form, each.order.name, each.form)
        return evolve(unbuilt(converted), engines=tuple(engines[i] for i in range(len(wanted))))

    def _build_missing(
        self, store: Files, converted: Converted, requests: Sequence[EngineRequest], missing: Sequence[int]
    ) -> dict[int, Engine]:
        """Return the engines for the requests whose indices are ``missing``, by index: load those that another process
        has saved in the meantime; build and save the others."""
        found = {i: self._load_cached_engine(store, requests[i], i, len(requests)) for i in missing}
        engines = {i: engine for i, engine in found.items() if engine is not None}
        if due := [i for i in missing if i not in engines]:
            engines |= dict(zip(due, self.build(_select_networks(converted, due)).engines, strict=True))
        for i in due if self.keep else ():
            try:
                store.write(requests[i].key, pack(requests[i].cache_entry_of(engines[i]), engines[i].checked_plan()))
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                warn(f"the engine {engines[i].name} cannot be saved to the engine cache: {why}", ArtifactWarning)
        return engines

    def _load_cached_engine(self, store: Files, request: EngineRequest, done: int, total: int) -> Engine | None:
        """Return the requested engine from the store, or None; warn of errors. Report ``done`` of ``total`` engines."""
        if not self.reuse:
            return None
        try:
            opened = store.open_entry_with_size(request.key)
            if opened is None:
                return None
            with opened[0] as file:
                engine = request.engine_from_entry(*unpack(file, opened[1], request.key))
        except CorruptEntryError as error:
            why = f"the entry {request.key} of the engine cache is deleted, not used: {error}"
            warn(f"{why}; the engine {request.order.name} is built", ArtifactWarning)
            store.delete(request.key)
            return None
        except Exception as error:
            why = f"the engine cache failed ({type(error).__name__}: {error})"
            warn(f"{why}; the engine {request.order.name} is built", ArtifactWarning)
            return None
        if engine is not None:
            report(done, total, f"{request.order.name}: from the cache")
            log.info("%s comes from the engine cache (%s)", request.order.name, request.key)
        return engine


def engine_requests(converted: Converted) -> Iterator[EngineRequest]:
    """Yield the request for each network's engine, in order."""
    program = converted.partitioned.program
    rows = zip(converted.partitioned.engine_segments, converted.networks, converted.handles, strict=True)
    for segment, network, handle in rows:
        order = BuildOrder.for_segment(segment, network, program.settings)
        form = canonical(order.network, order.sizes, _binding_roles(program, segment))
        known = tensor_digests({name: handle.weights[name] for name in form.weights})
        values = {n: digest for n, digest in known.items() if order.is_refittable_weight(n) and n in converted.recipes}
        fixed = {name: digest for name, digest in known.items() if name not in values}
        yield EngineRequest(order, handle, form, engine_key(order, form, fixed), values)


def _binding_roles(program: Program, segment: Segment) -> dict[str, str]:
    """Return, by the name of an engine's input or output, which value of the program it is: ``input 0``, ``size 1``,
    ``output [0]``, or ``inner 2`` (values between segments, in graph order, then sizes that the host computes). Cache
    keys contain these roles, since a network numbers its inputs in order of use: without roles, ``x - y`` and ``y - x``
    would have the same key."""
    order = {node.name: i for i, node in enumerate(program.graph.nodes)}
    given = {name: f"size {i}" for i, name in enumerate(program.shapes)}
    given |= {port.name: f"input {i}" for i, port in enumerate(program.inputs)}
    others = (port.name for port in segment.inputs if port.name not in given)
    inner = sorted(others, key=lambda name: (order.get(name, len(order)), name))
    places = {port.name: given.get(port.name) or f"inner {inner.index(port.name)}" for port in segment.inputs}
    for name, binding in output_binding_names(program.outputs, segment).items():
        uses = [i for i, output in enumerate(program.outputs) if output.value == name and not output.constant]
        places[binding] = f"output {uses}"
    return places


def _select_networks(converted: Converted, indices: Sequence[int]) -> Converted:
    """Return the program with only these engine segments and networks, by index: those whose engines are missing."""
    segments = converted.partitioned.engine_segments
    return evolve(
        converted,
        partitioned=evolve(converted.partitioned, segments=tuple(segments[i] for i in indices)),
        networks=tuple(converted.networks[i] for i in indices),
        handles=tuple(converted.handles[i] for i in indices),
    )


def _map_to_entry_names(network_names: Sequence[str], entry_names: Sequence[str]) -> FrozenDict[str, str]:
    """Return ``{network's name: cached engine's name}`` where they differ; both lists are in the same order."""
    if len(network_names) != len(entry_names):
        raise CorruptEntryError("the entry's engine has another number of inputs, outputs or weights than the network")
    return map_differing_names(network_names, entry_names)


def cached(store: EngineStore, stage: StageLike = build, *, reuse: bool = True, keep: bool = True) -> Cached:
    """Return a stage that looks engines up in a store, and lets another stage build the missing ones:
    ``pipeline.default().replace("build", pipeline.cached(store))``.

    The key of an engine covers everything that the engine depends on: the network's layers and their arguments, shapes
    and ranges, weights, the builder's settings, TensorRT's version and target GPUs; but no names.

    Args:
        store: a `pipeline.DiskStore`, a `pipeline.FsspecStore`, or any object with the methods
            ``load(key) -> bytes | None`` and ``save(key, data)``; else `TypeError`.
        stage: builds missing engines, for example ``pipeline.stages.Build(build_executor)``; `TypeError` if it compiles
            whole programs.
        reuse: read engines from the store.
        keep: save new engines.
    """
    if isinstance(stage, Pipeline) and stage.takes is not Converted:
        hint = 'to cache the engines of a pipeline use pipeline.default().replace("build", pipeline.cached(store))'
        raise TypeError(f"pipeline.cached takes a stage that builds engines, not {stage!r}: {hint}")
    return Cached(store, stage, reuse, keep)


def wrap_in_engine_cache(settings: CompilationSettings, stage: StageLike) -> StageLike:
    """Return the build stage, wrapped in the engine cache if the settings enable the cache."""
    reuse, keep = settings.reuse_cached_engines, settings.cache_built_engines
    if not (reuse or keep):
        return stage
    folder, size = settings.engine_cache_dir, settings.engine_cache_size
    store = FsspecStore(folder) if folder is not None and "://" in folder else DiskStore(folder, size)
    return Cached(store, stage, reuse, keep)
