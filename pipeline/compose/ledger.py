"""``Ledger``: an observer that records each stage's time and memory, and which objects hold weights after the stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from pipeline.compose.events import Event
from pipeline.compose.resident import Sampler
from pipeline.frozen import FrozenDict
from pipeline.program import Converted, Program
from pipeline.records.costs import StageCost

HOLDERS = ("model", "folded", "literals", "plans")


class Ledger:
    """Record the time and memory of stages: ``compile.observed_by(ledger := pipeline.Ledger())``; ``print(ledger)``.

    interval: the seconds between two reads of memory; shorter peaks can be missed.
    entries: an entry for each completed stage, in order. Use a ledger for one compilation at a time. Without Linux's
    /proc, memory is 0.
    """

    def __init__(self, interval: float = 0.01) -> None:
        self.entries: list[StageCost] = []
        self._interval = interval
        self._running: dict[str, Sampler] = {}

    def __call__(self, event: Event) -> None:
        if event.kind == "started":
            self._running[event.stage] = Sampler(interval=self._interval).__enter__()
        elif event.kind in ("finished", "failed"):
            sampler = self._running.pop(event.stage)
            sampler.__exit__()
            entry = StageCost(
                stage=event.stage,
                seconds=event.seconds or 0.0,
                growth=sampler.last.total - sampler.first.total,
                peak=sampler.total - sampler.first.total,
                anonymous=sampler.anonymous - sampler.first.anonymous,
                held=FrozenDict(weight_bytes_by_holder(event.record)),
                failed=event.kind == "failed",
            )
            self.entries.append(entry)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each stage, in the order in which they ended."""
        return {entry.stage: entry.seconds for entry in self.entries}

    def __str__(self) -> str:
        return format_stage_costs(self.entries)


def format_stage_costs(entries: list[StageCost] | tuple[StageCost, ...]) -> str:
    """Return the entries as text, one line each; memory in MB (10^6 bytes)."""
    head = ("stage", "seconds", "growth MB", "peak MB", "anonymous MB", *(f"{holder} MB" for holder in HOLDERS))
    return "\n".join(
        "  ".join(cell.ljust(10) if i == 0 else cell.rjust(len(head[i])) for i, cell in enumerate(cells)).rstrip()
        for cells in (head, *map(_table_cells, entries))
    )


def _table_cells(entry: StageCost) -> tuple[str, ...]:
    memory = (entry.growth, entry.peak, entry.anonymous, *(entry.held.get(holder, 0) for holder in HOLDERS))
    return f"{entry.stage}{'!' * entry.failed}", f"{entry.seconds:.2f}", *(f"{size / 1e6:.1f}" for size in memory)


def weight_bytes_by_holder(record: object) -> Iterator[tuple[str, int]]:
    """Yield pairs such as ``("model", 4096)``: what holds weights in a stage's record, and how many bytes."""
    program = _find_program(record)
    if program is not None:
        own = _bytes_by_storage_address(program.parameters)
        yield "model", sum(own.values())
        literals = _bytes_by_storage_address(getattr(record, "literals", {}))
        yield "literals", sum(literals.values())
        weights = [handle.weights for handle in record.handles] if isinstance(record, Converted) else []
        made = {key: size for each in weights for key, size in _bytes_by_storage_address(each).items()}
        yield "folded", sum(size for key, size in made.items() if key not in own and key not in literals)
        yield "plans", sum(engine.nbytes for engine in getattr(record, "engines", ()))


def _find_program(record: object) -> Program | None:
    """Return the program that a record contains; None for other records."""
    while record is not None and not isinstance(record, Program):
        record = getattr(record, "program", None) or getattr(record, "partitioned", None)
    return record


def _bytes_by_storage_address(tensors: Mapping[str, torch.Tensor]) -> dict[int, int]:
    """Return the bytes of each storage by address, so that shared storages count once."""
    storages = (tensor.untyped_storage() for tensor in tensors.values())
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
