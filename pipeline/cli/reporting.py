"""Write the results of ``pipeline compile``: engines, and a report as text and JSON, with the error on a sample."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import attrs
import torch
from attrs import field, frozen
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten

from pipeline.cli.sources import Source
from pipeline.compiled import Compiled, Executor
from pipeline.compose.ledger import Ledger
from pipeline.errors import Fallback, Unreached
from pipeline.frozen import FrozenDict
from pipeline.program import Program, is_operator
from pipeline.records.agreement import Agreement as Verification
from pipeline.records.agreement import Healed, versions
from pipeline.records.costs import StageCost
from pipeline.verification.samples import create_sample, tuned_sizes
from pipeline.viewing.collect import view_program
from pipeline.viewing.sources import write_view


@frozen
class Agreement:
    """The largest difference between a compiled program's outputs and eager PyTorch's, over all outputs.

    absolute: the largest absolute difference; infinite if an element is NaN or infinite in only one of the two results.
    relative: the difference divided by the largest finite magnitude in eager's output.
    executor: the executor that ran the engines, ``"tensorrt"`` or ``"reference"``.
    """

    absolute: float
    relative: float
    executor: Executor

    def __str__(self) -> str:
        return f"{self.absolute:.2g} absolute, {self.relative:.2g} relative ({self.executor} executor)"


def measure_agreement(compiled: Compiled, source: Source) -> Agreement:
    """Measure the error of a compiled program against the original model in eager PyTorch, on inputs of the optimal
    sizes: the model's own, or random ones."""
    module, program = compiled.module(), compiled.program
    sample = create_sample(program, tuned_sizes(program)[0])
    tensors = (*program.parameters.values(), *program.examples.values())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    (args, kwargs), (eager_args, eager_kwargs) = (sample.arguments(program, device) for _ in range(2))
    ours = module(*args, **kwargs)
    model = source.model.module() if isinstance(source.model, ExportedProgram) else source.model
    with torch.no_grad():
        eager = model(*eager_args, **eager_kwargs)
    return largest_difference(ours, eager, module.executor)


def largest_difference(compiled_outputs: object, eager_outputs: object, executor: Executor = "reference") -> Agreement:
    """Return the largest errors of outputs that ``executor`` computed; raise a `ValueError` for another structure."""
    (left, spec), (right, expected) = tree_flatten(compiled_outputs), tree_flatten(eager_outputs)
    if spec != expected:
        raise ValueError(f"the compiled program returns the structure {spec}, but eager PyTorch returns {expected}")
    pairs = [_absolute_and_relative_error(i, a, b) for i, (a, b) in enumerate(zip(left, right, strict=True))]
    worst = [max((float(pair[k]) for pair in pairs), default=0.0) for k in (0, 1)]
    return Agreement(worst[0], worst[1], executor)


def _absolute_and_relative_error(output_index: int, compiled: Any, eager: Any) -> tuple[float, float]:
    if not isinstance(eager, torch.Tensor):
        return (0.0, 0.0) if compiled == eager else (float("inf"), float("inf"))
    kinds = [f"{each.dtype}{list(each.shape)}" for each in (compiled, eager)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"output {output_index} is {kinds[0]} when compiled, but {kinds[1]} in eager PyTorch")
    a, b = compiled.detach().cpu(), eager.detach().cpu()
    same = (a == b) | ((a != a) & (b != b))
    kind = torch.complex128 if a.is_complex() else torch.float64
    gap = torch.where(same, 0, (a.to(kind) - b.to(kind)).abs()).nan_to_num(nan=float("inf"))
    size = b.to(kind).abs().nan_to_num(0, 0, 0)
    absolute = float(gap.max()) if gap.numel() else 0.0
    return absolute, absolute / (float(size.max()) or 1.0) if absolute else 0.0


@frozen
class EngineFile:
    """One saved engine: its file, the version of TensorRT that built it, and its inputs and outputs as texts (``name:
    dtype[dims with ranges]``)."""

    name: str
    file: str
    nbytes: int
    digest: str
    library: str
    layers: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.file}: {self.nbytes / 1e6:.1f} MB, {self.layers} layers, {self.library}",
                f"  sha256 {self.digest}",
                *(f"  input  {port}" for port in self.inputs),
                *(f"  output {port}" for port in self.outputs),
            ]
        )


@frozen
class CompilationReport:
    """The report that ``pipeline compile`` writes. ``agreement``: the error against eager PyTorch after compilation, or
    None for the reason in ``note``. ``verification``: the errors that the stage `verify` found (``--verify``), or None.
    """

    model: str
    engines: tuple[EngineFile, ...]
    converted: int
    total: int
    fallbacks: tuple[Fallback, ...]
    seconds: FrozenDict[str, float]
    agreement: Agreement | None
    settings: str
    versions: FrozenDict[str, str]
    note: str = ""
    not_refittable: FrozenDict[str, str] = field(factory=FrozenDict)
    precision: str = "fp32"
    dtypes: FrozenDict[str, int] = field(factory=FrozenDict)
    ledger: tuple[StageCost, ...] = ()
    verification: Verification | None = None
    healed: tuple[Healed, ...] = ()
    unreached: tuple[Unreached, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, model: str, compiled: Compiled, ledger: Ledger, agreement: Agreement | None, reason: str, precision: str
    ) -> CompilationReport:
        """Create a program's report; ``ledger`` has each stage's costs, ``reason`` says why ``agreement`` is None."""
        coverage = compiled.coverage
        return cls(
            model=model,
            engines=tuple(_describe_engine_files(compiled)),
            converted=len(coverage.converted),
            total=coverage.total,
            fallbacks=coverage.fallback,
            seconds=FrozenDict({name: round(value, 3) for name, value in ledger.seconds.items()}),
            agreement=agreement,
            settings=repr(compiled.settings),
            versions=versions(),
            note=reason,
            not_refittable=compiled.refit_map.computed,
            precision=precision,
            dtypes=_count_dtypes(compiled.program),
            ledger=tuple(ledger.entries),
            verification=compiled.agreement,
            healed=coverage.healed,
            unreached=coverage.unreached,
            inputs=tuple(port.name for port in compiled.program.inputs),
            outputs=tuple(o.name for o in compiled.program.outputs if o.kind == "user"),
        )

    def as_json(self) -> str:
        """Return the report as JSON: sizes in bytes, times in seconds, errors against eager unrounded."""
        return json.dumps(attrs.asdict(self, value_serializer=_json_value), indent=2, ensure_ascii=False) + "\n"

    def __str__(self) -> str:
        counts = ", ".join(f"{n} operators in {name}" for name, n in self.dtypes.items())
        peaks = ", ".join(f"{entry.stage} {entry.peak / 1e6:.0f}" for entry in self.ledger)
        return "\n".join(
            [
                f"{self.model}: {len(self.engines)} engine{'s'[: len(self.engines) != 1]}, "
                f"{self.converted} of {self.total} operators in TensorRT",
                *map(str, self.engines),
                *(["in PyTorch:"] if self.fallbacks else []),
                *(indent(str(each), "  ") for each in (*self.fallbacks, *self.healed)),
                *map(str, self.unreached),
                f"precision {self.precision}: {counts or 'no operators'}",
                f"error against eager: {self.agreement or f'not measured, {self.note}'}",
                *(["verification: " + str(self.verification)] if self.verification else []),
                f"seconds: {', '.join(f'{name} {value:.2f}' for name, value in self.seconds.items())}",
                *([f"memory at most, in MB above its start: {peaks}"] if self.ledger else []),
                f"settings: {self.settings}",
                f"versions: {', '.join(f'{name} {value}' for name, value in self.versions.items())}",
                *(f"not refittable: {name}: {why}" for name, why in self.not_refittable.items()),
            ]
        )


def _count_dtypes(program: Program) -> FrozenDict[str, int]:
    """Count the program's operators by the dtype of their first result; the most frequent dtype is first."""
    values = (n.meta.get("val") for n in program.graph.nodes if is_operator(n))
    firsts = (v[0] if isinstance(v, (tuple, list)) else v for v in values)
    found = Counter(str(v.dtype).removeprefix("torch.") for v in firsts if isinstance(v, torch.Tensor))
    return FrozenDict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _describe_engine_files(compiled: Compiled) -> Iterator[EngineFile]:
    segments, words = compiled.partitioned.engine_segments, compiled.program.shapes.words
    for segment, engine, network in zip(segments, compiled.engines, compiled.networks, strict=True):
        bound = zip(segment.outputs, network.outputs, strict=True)
        yield EngineFile(
            name=engine.name,
            file=f"{engine.name}.engine",
            nbytes=engine.nbytes,
            digest=engine.digest,
            library=engine.library,
            layers=len(network.layers),
            inputs=tuple(port.text(words) for port in segment.inputs),
            outputs=tuple(port.text(words, tensor.name) for port, tensor in bound),
        )


def _json_value(_: object, __: object, value: object) -> Any:
    """Convert a value for JSON: a mapping to a dict, an infinite float to text (`attrs.asdict` calls this function)."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return str(value)
    return value


def write_results(folder: Path, compiled: Compiled, report: CompilationReport) -> None:
    """Write the engines, both reports (text and JSON) and the program's web page to a folder. If an error occurs, an
    existing folder is unchanged, and a new folder is not created."""
    with replace_folder(folder) as scratch:
        for file, engine in zip(report.engines, compiled.engines, strict=True):
            (scratch / file.file).write_bytes(memoryview(engine.checked_plan()))
        (scratch / "report.txt").write_text(f"{report}\n", encoding="utf-8")
        (scratch / "report.json").write_text(report.as_json(), encoding="utf-8")
        write_view(view_program(compiled, report.model), scratch)


@contextlib.contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which replaces ``folder`` at the end; after an error ``folder`` is unchanged."""
    folder = Path(os.path.realpath(folder))  # a link stays one: what it points to is replaced
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield scratch
        mask = os.umask(0)
        os.umask(mask)
        scratch.chmod(0o777 & ~mask)
        old = folder.rename(scratch.with_name(f"{scratch.name}.old")) if folder.exists() else None
        try:
            scratch.rename(folder)
        except OSError:
            if old is not None:
                old.rename(folder)
            raise
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
