"""Load a compiled program from a file: memory-map engines and weights, and build graphs from their rows."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import torch
from attrs import asdict, evolve
from attrs.filters import exclude

from pipeline.artifact import codec, graphs, manifest_file, op_names, pytrees, settings_json
from pipeline.artifact.allocations import WIDEST, allowed_constant_bytes, largest_nbytes, max_elements
from pipeline.artifact.codec import read_part
from pipeline.artifact.consistency import check_program, check_weights
from pipeline.artifact.container import Reader
from pipeline.artifact.graphs import SavedGraph
from pipeline.artifact.hashing import THREADS, SharedFile
from pipeline.artifact.json_data import MalformedError, MissingOperatorError, decode_json
from pipeline.artifact.manifest import KERNELS, SavedSource, saved_fields
from pipeline.artifact.tensors import MappedTensors, SavedTensor
from pipeline.artifact.unsaved_converter import placeholder_choice
from pipeline.aten.naming import module_meta
from pipeline.compiled import Compiled
from pipeline.errors import ArtifactError, ArtifactWarning, warn
from pipeline.frozen import FrozenDict
from pipeline.network.description import Network
from pipeline.network.engine import Engine
from pipeline.network.validity import first_network_error
from pipeline.program import Partitioned, Program, Verdict, tensor_version
from pipeline.records.kernels import NO_KERNELS, Kernels
from pipeline.records.wording import kind_of, to_path
from pipeline.runtime.call_plan import LayoutBuilder
from pipeline.runtime.inputs import child_specs
from pipeline.runtime.opened_file import FileWeights, OpenedFile
from pipeline.trt import has_gpu

T = TypeVar("T")


def load(path: str | os.PathLike[str], operators: Collection[str] = ()) -> Compiled:
    """Load a compiled program from a file that `Compiled.save` wrote. For a language model's file or folder
    (``save_pretrained``), import transformers and return the object with ``generate``.

    Every byte is checked against a digest; engines and weights are memory-mapped. No other module is imported, and no
    text of the file becomes code: a program can call only the operators of torch that compute without side effects, and
    operators of the libraries in ``operators``. If the class of an output is not imported, the program returns a
    read-only record with the same positions, keys and attributes.

    operators: the namespaces of libraries other than torch whose operators the program may call in PyTorch
        (``{"torchvision"}``), with any arguments: allow them only for files that you trust. Import the library first.

    Raises:
        FileNotFoundError: the file does not exist.
        ArtifactError: the file is not a saved program, was truncated or altered, comes from a newer version, or calls
            an operator that is missing or not allowed; the message names the operator.
    """
    given = to_path(path, "pipeline.load")
    place = given / FOLDER if given.is_dir() else given
    if not given.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file; create one with compiled.save(path)", str(path))
    if place != given and not place.exists():
        raise ArtifactError(f"the folder {path} has no file {FOLDER}", "pass a path that compiled.save(path) wrote")
    compiled = load_program(place, operators)
    with manifest_file.open_program_file(place) as file:
        record = manifest_file.read_manifest(Reader(file, str(place))).generation
    if not record:
        return compiled
    data: dict[str, Any] = json.loads(record)
    library = str(data.get("library"))
    found = [each.load() for each in entry_points(group="pipeline.saved", name=library)]
    if not found:
        why = f"{place} is a language model of {library[:40]}, for which pipeline's loader is not installed"
        raise ArtifactError(why, "install pipeline again (pip install . in its checkout)")
    with raise_as_altered_file(str(place)):
        made: Compiled = found[0](compiled, data, lambda n: load_program(place.with_name(Path(n).name), operators))
    return made


def load_program(path: str | os.PathLike[str], operators: Collection[str] = ()) -> Compiled:
    """Load a program as `load` does, but of a language model only the decoder; warn if there is no GPU."""
    if isinstance(operators, str) or not isinstance(operators, Collection):
        name = operators if isinstance(operators, str) else "torchvision"
        due = f'expected a set of operator namespaces: pass {{"{name}"}}'
        raise TypeError(f"operators is {kind_of(operators)}: {due}")
    compiled = load_without_warning(path, frozenset(operators))
    if not has_gpu():
        warn(f"no GPU was found: {path} runs on the CPU, in the slow reference executor", ArtifactWarning)
    return compiled


FOLDER: Final = "model.trtp"
"""The file name of the program in a folder that a language model was saved to."""


def load_without_warning(path: str | os.PathLike[str], libraries: Collection[str] | None) -> Compiled:
    """Load a program that may call operators of these ``libraries``, such as ``{"torchvision"}`` or `op_names.ANY`."""
    with manifest_file.open_program_file(Path(path)) as file, ThreadPoolExecutor(THREADS) as threads:
        return Loader(file, Path(path), threads, libraries).load_compiled()


def load_printable_program(path: Path) -> Compiled:
    """Return a saved program that can be printed but not run, after checking every byte; raise the errors of `load`."""
    with manifest_file.open_program_file(path) as file, ThreadPoolExecutor(THREADS) as threads:
        return _Describer(file, path, threads, op_names.ANY).load_compiled()


class Loader:
    """Load the program of an open file step by step. Threads check engines and weights against their digests while the
    graph and networks are read; engines and weights are used only after these checks."""

    def __init__(self, file: BinaryIO, path: Path, threads: Executor, libraries: Collection[str] | None) -> None:
        self.file, self.path, self.libraries = file, path, libraries
        self.reader = Reader(file, str(path))
        self.manifest = manifest_file.read_manifest(self.reader)
        self.missing, kept = "", self.manifest
        self.most = allowed_constant_bytes((each.nbytes for each in kept.parameters.values()), kept.computed)
        large = [*filter(None, [kept.weights.entry]), *(engine.entry for engine in kept.engines)]
        large += [KERNELS] * bool(kept.kernels)
        digests = {name: self.expected_digest(name) for name in large}

        def same(again: BinaryIO) -> bool:
            reader = Reader(again, str(path))
            try:
                return all(reader.verify(name, digest) for name, digest in digests.items())
            except ArtifactError:
                return False

        self.opened: tuple[OpenedFile, ...] = (_keep_open(file, path, same),)
        self.verified = {name: threads.submit(self.reader.verify, name, each) for name, each in digests.items()}

    def load_compiled(self) -> Compiled:
        """Return the loaded program, after all checks have succeeded."""
        kept = self.manifest
        networks = tuple(map(self.read_network, kept.networks))
        self.segments = [self.read_entry(name, SavedGraph) for name in kept.graphs]
        self.kept_source = self.read_entry(kept.source, SavedSource) if kept.source else None
        self.tensor = self.tensor_reader()
        try:
            check_weights(networks, kept)
            partitioned = Partitioned(self.program(), kept.segments, self.verdicts(), kept.fallbacks, kept.cuts)
            self.check_recipes()
            compiled = Compiled(
                partitioned=partitioned,
                networks=networks,
                engines=self.engines(),
                refit_map=kept.refit_map,
                literals=self.tensors_by_name(kept.literals),
                agreement=kept.agreement,
                healed=kept.healed,
                kernels=self.kernels(),
            )
        except MissingOperatorError as error:
            raise ArtifactError(f"{self.path} cannot be loaded: {error.message}", error.hint) from None
        except MalformedError as error:
            raise self.reader.damage_error(error.message) from None
        except RecursionError:
            raise self.reader.damage_error("its JSON data is nested too deeply") from None
        _check_parts_match(compiled, self.reader)
        return compiled

    def check_recipes(self) -> None:
        """Raise an error if a recipe (the steps that compute a constant from parameters) calls an operator that files
        must not call, or creates too large a tensor."""
        manifest = self.manifest
        recipes = [*manifest.constants.values(), *manifest.refit_map.values()]
        for target in sorted({step.target for recipe in recipes for step in recipe.steps}):
            read_part("a weight's recipe", lambda name: op_names.find_allowed_operator(name, self.libraries), target)
        parameters = {name: (each.dtype, each.shape) for name, each in manifest.parameters.items()}
        bounds = (max_elements(recipe, parameters) for recipe in recipes)
        large = [r for r, bound in zip(recipes, bounds, strict=True) if bound is None or WIDEST * bound > self.most]
        size = largest_nbytes(large, parameters)
        if size > self.most:
            limit = f"the file declares at most {self.most} bytes for a computed tensor"
            raise MalformedError(f"computing a weight creates a tensor of {size} bytes, but {limit}")

    def read_entry(self, entry_name: str, record_type: type[T]) -> T:
        data = self.reader.read(entry_name, self.expected_digest(entry_name))
        with manifest_file.raise_as_damage(self.reader, entry_name):
            found: T = codec.from_json(decode_json(data), record_type)
        return found

    def read_network(self, entry_name: str) -> Network:
        found = self.read_entry(entry_name, Network)
        if why := first_network_error(found):
            raise self.reader.damage_error(f"entry {entry_name}: {why}")
        return found

    def expected_digest(self, entry_name: str) -> str:
        """Return the SHA-256 that the manifest states for an entry of the file."""
        if entry_name not in self.manifest.entries:
            raise self.reader.damage_error(f"its manifest does not list the entry {entry_name[:80]}")
        return self.manifest.entries[entry_name]

    def engines(self) -> tuple[Engine, ...]:
        if not self.manifest.engines:
            return ()
        memory = memoryview(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ))
        found: list[Engine] = []
        for kept in self.manifest.engines:
            at, shared = self.verified[kept.entry].result(), asdict(kept, recurse=False, filter=exclude("entry"))
            found.append(Engine(plan=memory[at.data_offset : at.end_offset], file=self.opened[0], **shared))
        return tuple(found)

    def kernels(self) -> Kernels:
        """Return the GPU kernels that TensorRT-RTX compiled on the machine that saved the program; often none."""
        if not self.manifest.kernels:
            return NO_KERNELS
        at = self.verified[KERNELS].result()
        return Kernels(self.manifest.kernels, self.reader.read_at(at.data_offset, at.size))

    def tensor_reader(self) -> Callable[[SavedTensor], torch.Tensor]:
        """Return a function that reads saved tensors, from the file itself or from the separate weights file."""
        kept, inside = self.manifest.weights, MappedTensors()
        if kept.entry:
            entry = self.verified[kept.entry].result()
            inside = self.map_tensors(self.file, entry.data_offset, entry.size)
        if kept.entry and not kept.others:
            return inside
        beside = self.map_separate_weights()
        return lambda each: (inside if each.key in inside.rows else beside)(each)

    def map_separate_weights(self) -> MappedTensors:
        """Return the tensors of the separate weights file; meta tensors if it is missing or weights were not saved."""
        kept, beside = self.manifest.weights, self.path.parent / self.manifest.weights.file
        if kept.file and beside.is_file():
            with manifest_file.open_program_file(beside) as file:
                if (shared := SharedFile(file)).size != kept.size or shared.sha256(0, kept.size) != kept.sha256:
                    raise ArtifactError(
                        f"{beside} has other weights than those saved for {self.path}", "save both files again"
                    )
                same = lambda again: SharedFile(again).sha256(0, kept.size) == kept.sha256  # noqa: E731
                self.opened = (*self.opened, _keep_open(file, beside, same))
                return self.map_tensors(file, 0, kept.size)
        self.missing = f"{beside} is missing" if kept.file else f"{self.path} was saved without weights"
        return MappedTensors()

    def map_tensors(self, file: BinaryIO, offset: int, size: int) -> MappedTensors:
        try:
            return MappedTensors(file, offset, size)
        except ArtifactError as error:
            raise self.reader.damage_error(error.message) from None

    def tensors_by_name(self, saved_tensors: Mapping[str, SavedTensor]) -> FrozenDict[str, torch.Tensor]:
        """Return tensors by their names in the program, given their locations in the file."""
        found = {name: read_part(name, self.tensor, each) for name, each in saved_tensors.items()}
        return FileWeights(found, self.opened, self.manifest.call, self.missing)

    def verdicts(self) -> FrozenDict[str, Verdict]:
        """Return, by node name, whether each node can be converted; `UnsavedConverter` stands for each converter."""
        rows = ((v, placeholder_choice(v.converter) if v.supported else None) for v in self.manifest.verdicts)
        return FrozenDict({k.node: Verdict(k.node, k.target, choice, k.reasons, k.where) for k, choice in rows})

    def program(self) -> Program:
        kept, parameters = self.manifest, self.tensors_by_name(self.manifest.parameters)
        program = Program(
            graph_module=self.graph_module(),
            **saved_fields(kept),
            parameters=parameters,
            in_spec=read_part("in_spec", pytrees.from_json, kept.in_spec),
            out_spec=read_part("out_spec", pytrees.from_json, kept.out_spec),
            settings=read_part("settings", settings_json.from_json, kept.settings),
            versions=FrozenDict({name: tensor_version(tensor) for name, tensor in parameters.items()}),
        )
        return evolve(program, source=self.build_source_program(program))

    def build_source_program(self, program: Program) -> Program | None:
        """Return the program before the stage `decompose`, with ``program``'s other fields; None if it was not saved or
        has an operator that this process lacks."""
        kept = self.kept_source
        if kept is None:
            return None
        try:
            module = self.build_graph(kept.graph)
        except MissingOperatorError:
            return None
        fields = {name: getattr(kept, name) for name in ("inputs", "outputs", "constants", "buffers")}
        return evolve(program.without_weights(), graph_module=module, **fields)

    def graph_module(self) -> torch.fx.GraphModule:
        """Build the program's graph. The file has its nodes in several parts, and their order in the manifest."""
        rows = {row.name: row for segment in self.segments for row in segment.nodes}
        if len(rows) != len(self.manifest.nodes) or rows.keys() != {*self.manifest.nodes}:
            raise MalformedError("the graph has other nodes than those that the manifest lists")
        inner = {path: each for segment in self.segments for path, each in segment.graphs}
        tensors = {path: each for segment in self.segments for path, each in segment.tensors}
        ordered = tuple(rows[name] for name in self.manifest.nodes)
        return self.build_graph(SavedGraph(ordered, tuple(inner.items()), tuple(tensors.items())))

    def build_graph(self, graph: SavedGraph) -> torch.fx.GraphModule:
        module = graphs.GraphBuilder(self.tensor, self.libraries, self.most).build(graph)
        for node, row in zip(module.graph.nodes, graph.nodes, strict=True):
            node.meta.update(module_meta(row.module, self.manifest.modules), where=row.where)
        return module


class _Describer(Loader):
    """A loader for `inspect` that runs no operators, recipes or graphs of the file, not even on fake tensors. Tensors
    are meta tensors; an operator that this process lacks is represented by its name. Expressions are not computed,
    except the ranges of sizes, whose cost is bounded."""

    def tensor_reader(self) -> Callable[[SavedTensor], torch.Tensor]:
        """Check engines and weights against their digests, as `Loader` does here; return a reader of meta tensors."""
        for each in self.verified.values():
            each.result()
        self.missing = f"{self.path} was described, not loaded"
        return MappedTensors()

    def check_recipes(self) -> None:
        """Do nothing: the recipes of weights, which a call of the program would run, are only described."""

    def build_source_program(self, program: Program) -> Program | None:
        """Return None: a description does not need the program before `decompose`."""
        return None

    def build_graph(self, graph: SavedGraph) -> torch.fx.GraphModule:
        """Build a graph; if this process lacks a node's operator, the node's target is the operator's name."""
        module = super().build_graph(_without_operator_lookups(graph))
        for node, row in zip(module.graph.nodes, graph.nodes, strict=True):
            if row.calls and row.op == "call_function":
                node.target = op_names.find_callable(row.target) or node.target
        return module


def _without_operator_lookups(graph: SavedGraph) -> SavedGraph:
    """Return a graph with ``calls=False`` in every node, so that building it looks up no operators."""
    inner = tuple((path, _without_operator_lookups(each)) for path, each in graph.graphs)
    return evolve(graph, nodes=tuple(evolve(row, calls=False) for row in graph.nodes), graphs=inner)


def _keep_open(file: BinaryIO, path: Path, has_same_bytes: Callable[[BinaryIO], bool]) -> OpenedFile:
    """Duplicate a file's handle, to stay open with the program. ``has_same_bytes``: whether the loaded bytes remain."""
    again = os.fdopen(os.dup(file.fileno()), "rb")
    return OpenedFile(again, str(path), lambda: has_same_bytes(again))


def _check_parts_match(compiled: Compiled, reader: Reader) -> None:
    """Raise an error if a loaded program's networks, engines, inputs, outputs and graph contradict each other."""
    program, segments = compiled.program, compiled.partitioned.engine_segments
    users = [output for output in program.outputs if output.kind == "user"]
    kinds = [child.type for child in child_specs(program.in_spec)]
    fits = {
        "not one network for each engine segment": len(compiled.networks) == len(segments),
        "not one engine for each network": len(compiled.engines) in (0, len(segments)),
        "other inputs than their structure": program.in_spec.num_leaves == len(program.inputs),
        "other outputs than their structure": program.out_spec.num_leaves == len(users),
        "inputs other than positional and keyword arguments": kinds == [tuple, dict],
    }
    if wrong := [what for what, holds in fits.items() if not holds]:
        raise reader.damage_error(f"it has {wrong[0]}")
    try:
        with raise_as_altered_file(reader.name):
            check_program(compiled)
            LayoutBuilder(program, compiled.partitioned.segments).build()
            compiled.report()
    except MalformedError as error:
        raise reader.damage_error(error.message) from None


@contextmanager
def raise_as_altered_file(file_name: str) -> Iterator[None]:
    """Return a context that turns errors such as `KeyError` and `TypeError`, which contradictions in the file cause,
    into an `ArtifactError`: the file is truncated or was altered."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration, ArithmeticError) as error:
        why = f"its entries contradict each other ({type(error).__name__}: {error})"
        raise ArtifactError(f"{file_name} is truncated or was altered: {why}", "copy or save the file again") from None
